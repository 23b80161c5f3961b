"""A save that goes on in a thread, one per process at most; no error of it is lost.

Thread rule: `wait`, `done` and `settle` are for the thread that saves. The thread is no daemon: an interpreter that
ends waits for the save, and says on stderr when it failed and nobody has been told.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from pathlib import Path

_latest: Pending | None = None


class Pending:
    """A save that has begun."""

    def __init__(self, action: Callable[[], Path]) -> None:
        """Starts `action` in a thread; the save before it must be settled."""
        global _latest
        self._action = action
        self._path: Path | None = None
        self._error: BaseException | None = None
        self.told = False
        self._thread = threading.Thread(target=self._run, name="ringdp-checkpoint")
        self._thread.start()
        _latest = self

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def join(self) -> BaseException | None:
        """Waits until it has ended; its error, if any."""
        self._thread.join()
        return self._error

    def wait(self) -> Path:
        """Waits until the checkpoint is complete; its folder. Raises what went wrong."""
        error = self.join()
        self.told = True
        if error is not None:
            raise error
        assert self._path is not None
        return self._path

    def _run(self) -> None:
        try:
            self._path = self._action()
        except BaseException as error:
            self._error = error


def settle() -> None:
    """Before a save: waits for the one before it, and raises its error unless `wait` has done so."""
    global _latest
    before, _latest = _latest, None
    if before is not None and before.join() is not None and not before.told:
        before.wait()


def join_latest() -> None:
    """Before a load: waits for a save in flight; an error of it is left for `wait` or the next save."""
    if _latest is not None:
        _latest.join()


@atexit.register
def _last_words() -> None:
    if _latest is not None and not _latest.told and (error := _latest.join()) is not None:
        print(f"ringdp.checkpoint: the last save in the background failed: {error}", file=sys.stderr)
