"""Ranks put what they drew before rank 0, which judges for all: through the store, so no collective is disturbed."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist

from ringdp.text.units import names
from ringdp.tools.attach.finding import Finding
from ringdp.tools.attach.records import RankRecords, plain

_audits = count()


class Exchange:
    """The exchange of one audit; every rank makes its audits in the same order.

    Without a process group a rank is alone. Rank 0 waits for others at most `timeout`, and the others for rank 0 twice
    that, since it may have waited itself.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: timedelta) -> None:
        self._timeout = timeout
        self._round = 0
        self._taken: dict[int, int] = {}  # on rank 0: of each rank the rounds whose records are here
        self._withdrawn = 0  # verdicts of this round and those before are in the store no more
        self.rank, self.size, self._store = 0, 1, None
        if dist.is_available() and dist.is_initialized():
            self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
            store = dist.distributed_c10d._get_default_store()
            members = "-".join(map(str, dist.get_process_group_ranks(group)))
            self._store = dist.PrefixStore(f"ringdp/audit/{members}/{next(_audits)}", store)

    def to_rank_0(self, records: list[dict[str, Any]]) -> tuple[dict[int, list[dict[str, Any]]], str]:
        """On rank 0: all ranks' records, by rank, and a sentence about ranks that did not come; elsewhere nothing.

        What a late rank brings is handed out in a later round.
        """
        self._round += 1
        if self._store is None or self.size == 1:
            return {0: records}, ""
        self._store.set(self._key(self._round, "records", self.rank), json.dumps(records, default=plain))
        if self.rank:
            return {}, ""
        ranks = range(self.size)
        late = self._wait([self._key(self._round, "records", rank) for rank in ranks], self._timeout)
        return {rank: self._take_records(rank) for rank in ranks}, late

    def from_rank_0(self, verdict: Any) -> Any:
        """Everywhere: the verdict that rank 0 gave. TimeoutError where it does not come."""
        if self._store is None or self.size == 1:
            return verdict
        key = self._key(self._round, "verdict", 0)
        if self.rank == 0:
            self._withdraw()
            self._store.set(key, json.dumps(verdict))
            return verdict
        if late := self._wait([key], 2 * self._timeout):
            raise TimeoutError(late)
        return json.loads(self._store.get(key))

    def _take_records(self, rank: int) -> list[dict[str, Any]]:
        """Records of all rounds that have come and were not handed out yet."""
        records = []
        for turn in range(self._taken.get(rank, 0) + 1, self._round + 1):
            key = self._key(turn, "records", rank)
            if not self._store.check([key]):
                break
            records += json.loads(self._store.get(key))
            self._store.delete_key(key)
            self._taken[rank] = turn
        return records

    def _withdraw(self) -> None:
        """Verdicts that all ranks have read, as records of later rounds show."""
        read = min(self._taken.get(rank, 0) for rank in range(self.size)) - 1
        while self._withdrawn < read:
            self._withdrawn += 1
            self._store.delete_key(self._key(self._withdrawn, "verdict", 0))

    @staticmethod
    def _key(turn: int, what: str, rank: int) -> str:
        return f"{turn}/{what}/{rank}"

    def _wait(self, keys: list[str], timeout: timedelta) -> str:
        """Says which ranks did not come. Asks again and again: the store's own wait() logs a warning each time."""
        seconds = timeout.total_seconds()
        end = time.monotonic() + seconds
        pause = 0.001
        while not self._store.check(keys):
            if time.monotonic() >= end:
                late = [int(key.rsplit("/", 1)[1]) for key in keys if not self._store.check([key])]
                return f"{names(late)} did not come within {seconds:g} s" if late else ""
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return ""


def records_of(rank: int, world: int, rows: list[dict[str, Any]]) -> RankRecords:
    """Rows that came by the store, as if they had been read from a rank's file."""
    records = RankRecords({"rank": rank, "world": world})
    for row in rows:
        records.kinds.setdefault(row["kind"], []).append(row)
    return records


def late_finding(message: str) -> Finding:
    """An audit whose ranks do not meet at the beginning of an epoch."""
    return Finding(
        "late rank",
        f"at the beginning of an epoch {message}",
        "ranks that are in different epochs pair their gradients wrongly, or wait for each other for good",
        "give all ranks equally many batches: DistributedSampler, drop_last=True, or `with model.join():`",
    )
