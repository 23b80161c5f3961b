"""Ranks put what they drew before rank 0, which judges for all: through the store, so no collective is disturbed."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist

from ringdp.attach.finding import Finding, names
from ringdp.attach.rank_file import plain
from ringdp.attach.records import RankRecords

_audits = count()


class Exchange:
    """Of one audit; every rank makes its audits in the same order. Works without a process group too: alone."""

    def __init__(self, group: dist.ProcessGroup | None, timeout: timedelta) -> None:
        self._timeout = timeout
        self._round = 0
        self.rank, self.size, self._store = 0, 1, None
        if dist.is_available() and dist.is_initialized():
            self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
            store = dist.distributed_c10d._get_default_store()
            members = "-".join(map(str, dist.get_process_group_ranks(group)))
            self._store = dist.PrefixStore(f"ringdp/audit/{members}/{next(_audits)}", store)

    def to_rank_0(self, records: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
        """On rank 0: everyone's records, by rank; elsewhere nothing. TimeoutError names ranks that did not come."""
        self._round += 1
        if self._store is None or self.size == 1:
            return {0: records}
        self._store.set(self._key("records", self.rank), json.dumps(records, default=plain))
        if self.rank:
            return {}
        everyone = range(self.size)
        self._wait([self._key("records", rank) for rank in everyone])
        return {rank: json.loads(self._take(self._key("records", rank))) for rank in everyone}

    def from_rank_0(self, verdict: Any) -> Any:
        """Everywhere: the verdict that rank 0 gave. TimeoutError where it does not come."""
        if self._store is None or self.size == 1:
            return verdict
        key = self._key("verdict", 0)
        if self.rank == 0:
            self._store.set(key, json.dumps(verdict))
            return verdict
        self._wait([key])
        return json.loads(self._store.get(key))

    def _key(self, what: str, rank: int) -> str:
        return f"{self._round}/{what}/{rank}"

    def _take(self, key: str) -> bytes:
        value = self._store.get(key)
        self._store.delete_key(key)
        return value

    def _wait(self, keys: list[str]) -> None:
        """Asks again and again: the store's own wait() logs a warning each time."""
        end = time.monotonic() + self._timeout.total_seconds()
        pause = 0.001
        while not self._store.check(keys):
            if time.monotonic() >= end:
                late = [int(key.rsplit("/", 1)[1]) for key in keys if not self._store.check([key])]
                raise TimeoutError(f"{names(late)} did not come within {self._timeout.total_seconds():g} s")
            time.sleep(pause)
            pause = min(2 * pause, 0.05)


def records_of(rank: int, world: int, rows: list[dict[str, Any]]) -> RankRecords:
    """Rows that came by the store, as if they had been read from a rank's file."""
    records = RankRecords({"rank": rank, "world": world})
    for row in rows:
        records.kinds.setdefault(row["kind"], []).append(row)
    return records


def late_finding(message: str) -> Finding:
    """An audit whose ranks do not meet at the beginning of an epoch."""
    return Finding(
        "uneven steps",
        f"at the beginning of an epoch {message}",
        "ranks that are in different epochs pair their gradients wrongly, or wait for each other for good",
        "give all ranks equally many batches: DistributedSampler, drop_last=True, or `with model.join():`",
    )
