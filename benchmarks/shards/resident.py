"""Memory of other processes as the kernel counts it, sampled from outside while they run.

Pss: private pages, and of every page that several processes map their equal share of it. So what N ranks share counts
once over all of them, and memory that one has given back to the kernel does not count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

EVERY_S = 0.02


def pss(pid: int | str = "self") -> int:
    """Bytes; 0 when the process is gone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)


class Sampler:
    """Reads some processes again and again, on a thread of its own. Use as a context."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int, int]] = []
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, pids: Sequence[int]) -> None:
        """From now on these."""
        self._thread = threading.Thread(target=self._run, args=(tuple(pids),), name="sampler")
        self._thread.start()

    def peak(self, pid: int, begin: float, end: float) -> int:
        """The largest between two times of time.monotonic(), which is one clock for all processes; 0 without one."""
        return max((size for when, whose, size in self._samples if whose == pid and begin <= when <= end), default=0)

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, pids: tuple[int, ...]) -> None:
        while not self._done.wait(EVERY_S):
            for pid in pids:
                self._samples.append((time.monotonic(), pid, pss(pid)))
