"""Ctrl-C and SIGTERM: end at once where that is safe, after the current step while training."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Takes over SIGINT and SIGTERM. Main thread only.

    Outside `deferred()` a signal raises SystemExit(128 + number), which runs the clean-up on its way out.
    Inside, it is only remembered in `number`, so that the ranks can agree on the step after which they stop.
    torchrun sends a terminal's Ctrl-C a second time, so a repeated signal changes nothing.
    """

    def __init__(self) -> None:
        self.number = 0
        self._deferred = False

    def install(self) -> None:
        """From here on this object gets the process's signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Signals wait for the end of the block, unless the block itself acts on `number`."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        first, self.number = not self.number, number
        if first and not self._deferred:
            raise SystemExit(128 + number)
