"""The records of all ranks of a job, read while it runs or when it is over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringdp.attach.rank_file import SUFFIX

_MOST_RANKS = 1 << 20  # more are no job, and would take as long to look through


@dataclass
class RankRecords:
    """What one process has written so far, by kind and in order."""

    header: dict[str, Any]
    kinds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    lines: int = 0

    @property
    def rank(self) -> int:
        """Its rank in the job."""
        return self.header["rank"]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All records of a kind."""
        return self.kinds.get(kind, [])


class Reader:
    """Reads on where it stopped the last time. A line that is not complete yet waits for the next call.

    A rank that was restarted counts with its latest life.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._files: dict[Path, RankRecords] = {}

    def read(self) -> dict[int, RankRecords]:
        """By rank. ValueError names a file that no rank has written."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            self._read_on(path)
        latest: dict[int, RankRecords] = {}
        for records in sorted(self._files.values(), key=lambda r: (r.header["restart"], r.header["time"])):
            latest[records.rank] = records
        return dict(sorted(latest.items()))

    def _read_on(self, path: Path) -> None:
        with path.open("rb") as stream:
            stream.seek(self._offsets.get(path, 0))
            text = stream.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._offsets[path] = self._offsets.get(path, 0) + len(complete)
        try:
            for line in complete.splitlines():
                self._add(path, json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} holds no records of a rank: {error}") from None

    def _add(self, path: Path, record: dict[str, Any]) -> None:
        if path not in self._files:
            if record["kind"] != "rank":
                raise ValueError("its first line does not name a rank")
            _check_header(record)
            self._files[path] = RankRecords(record)
        records = self._files[path]
        records.kinds.setdefault(record["kind"], []).append(record)
        records.lines += 1


def _check_header(header: dict[str, Any]) -> None:
    rank, world = header["rank"], header["world"]
    if type(rank) is not int or type(world) is not int or not 0 <= rank < world <= _MOST_RANKS:
        raise ValueError(f"rank {rank!r} of {world!r}")
    if type(header["restart"]) is not int or type(header["time"]) not in (int, float):
        raise ValueError("its first line does not say when it began")


def world_of(ranks: Mapping[int, RankRecords]) -> int:
    """How many ranks the job has; 0 where none has written anything."""
    return max((records.header["world"] for records in ranks.values()), default=0)


def absent(ranks: Mapping[int, RankRecords]) -> list[int]:
    """Ranks that have written nothing: on another host, or without ringdp."""
    return [rank for rank in range(world_of(ranks)) if rank not in ranks]
