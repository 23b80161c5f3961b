"""The records of a job's ranks: each writes JSON lines to a file of its own, which is read while it runs or later."""

from __future__ import annotations

import json
import os
import socket
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

SUFFIX = ".jsonl"


def identity() -> tuple[int, int]:
    """(rank, world) of this process: its default group's, else torchrun's, else a job of one."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


def plain(value: Any) -> Any:
    """Converts what json cannot write: numpy's and torch's numbers to numbers, anything else to text."""
    try:
        return value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return repr(value)


class RankFile:
    """Opened by the first record, which is when the rank is known. Forked children write nothing.

    A file that cannot be written is said once; the job goes on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = os.getpid()
        self._stream: TextIO | None = None
        self._broken = False

    def __call__(self, record: dict[str, Any]) -> None:
        """Appends a record, which has a "kind"."""
        if self._broken or os.getpid() != self._pid:
            return
        try:
            if self._stream is None:
                self._stream = self._opened()
            self._stream.write(json.dumps(record, default=plain, separators=(",", ":")) + "\n")
        except OSError as error:
            self._broken = True
            warnings.warn(f"ringdp stops watching: {self._folder}: {error}", RuntimeWarning, stacklevel=2)

    def _opened(self) -> TextIO:
        rank, world = identity()
        restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
        path = self._folder / f"rank{rank}-{restart}-{self._pid}{SUFFIX}"
        stream = path.open("w", buffering=1)  # by line: what was written survives a SIGKILL
        header = {"kind": "rank", "rank": rank, "world": world, "restart": restart, "pid": self._pid}
        stream.write(json.dumps({**header, "host": socket.gethostname(), "time": time.time()}) + "\n")
        return stream


_MOST_RANKS = 1 << 20  # no job has more, and looking through more would take long


@dataclass
class RankRecords:
    """What one process has written so far, by kind and in order."""

    header: dict[str, Any]
    kinds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    lines: int = 0

    @property
    def rank(self) -> int:
        """The rank in the job."""
        return self.header["rank"]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All records of a kind."""
        return self.kinds.get(kind, [])


class Reader:
    """Continues reading where it stopped. An incomplete line is left for the next call.

    A rank that was restarted counts with its latest life.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._files: dict[Path, RankRecords] = {}

    def read(self) -> dict[int, RankRecords]:
        """Records by rank. ValueError names a file that no rank has written."""
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
