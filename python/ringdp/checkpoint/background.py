"""A save that continues in a thread, at most one per process; its error is always reported.

Thread rule: call `wait`, `done` and `finish_latest` on the thread that saves. The background thread is not a daemon: at
its end the interpreter waits for the save, and prints its error to stderr if it has not been raised.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from pathlib import Path

_latest: Pending | None = None


class Pending:
    """A save in the background."""

    def __init__(self, action: Callable[[], Path]) -> None:
        """Starts `action` in a thread, after finish_latest()."""
        global _latest
        self._action = action
        self._path: Path | None = None
        self._error: BaseException | None = None
        self.reported = False
        self._thread = threading.Thread(target=self._run, name="ringdp-checkpoint")
        self._thread.start()
        _latest = self

    def done(self) -> bool:
        """Whether it has ended, with or without an error."""
        return not self._thread.is_alive()

    def join(self) -> BaseException | None:
        """Waits until it has ended; returns its error, or None."""
        self._thread.join()
        return self._error

    def wait(self) -> Path:
        """Waits until the checkpoint is complete; returns its folder. Raises the error of the save."""
        error = self.join()
        self.reported = True
        if error is not None:
            raise error
        assert self._path is not None
        return self._path

    def _run(self) -> None:
        try:
            self._path = self._action()
        except BaseException as error:
            self._error = error


def finish_latest() -> None:
    """Before a save: waits for the previous one, and raises its error unless `wait` has done so."""
    global _latest
    latest, _latest = _latest, None
    if latest is not None and latest.join() is not None and not latest.reported:
        latest.wait()


def join_latest() -> None:
    """Before a load: waits for a running save; its error is left for `wait` or the next save."""
    if _latest is not None:
        _latest.join()


@atexit.register
def _last_words() -> None:
    if _latest is not None and not _latest.reported and (error := _latest.join()) is not None:
        print(f"ringdp.checkpoint: the last save in the background failed: {error}", file=sys.stderr)
