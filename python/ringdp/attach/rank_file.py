"""A rank's records: one JSON object per line, in a file of its own, complete up to the moment the process dies."""

from __future__ import annotations

import json
import os
import socket
import time
import warnings
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
    """What json cannot write: numpy's and torch's numbers as numbers, anything else as text."""
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
