"""The exception with which this rank leaves its groups: peers quote its type and first line in their errors."""

from __future__ import annotations

import multiprocessing
import os
import sys
from functools import cache
from multiprocessing.util import Finalize

_MOST_BYTES = 200


def current() -> str:
    """'ValueError: batch is empty': the exception that this thread handles or that has ended the script, or ''.

    Called when a group is left: by destroy_process_group in a `finally` or `except`, or by the end of the process.
    """
    ended_script = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)  # an interactive session goes on
    return _first_line(sys.exc_info()[1] or ended_script)


def _first_line(error: BaseException | None) -> str:
    # torch.multiprocessing.spawn, and many a main(), turn an exception into SystemExit.
    while isinstance(error, SystemExit) and error.__context__ is not None:
        error = error.__context__
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return ""
    try:
        said = str(error).strip().partition("\n")[0]
    except Exception:  # the user's class has a broken __str__
        said = ""
    text = type(error).__name__ + (f": {said}" if said else "")
    return text.encode(errors="backslashreplace")[:_MOST_BYTES].decode(errors="ignore")


def tell_of_child() -> None:
    """In a multiprocessing child, where atexit does not run: leaves groups with its exception, if it fails."""
    if multiprocessing.parent_process() is not None:
        _watch(os.getpid())


@cache
def _watch(_: int) -> None:
    Finalize(None, _leave_if_failed, exitpriority=0)


def _leave_if_failed() -> None:
    """Runs at the end of the process's function, while its exception propagates; without one it does nothing."""
    from ringdp import backend

    if current():
        backend._C.leave_groups()
