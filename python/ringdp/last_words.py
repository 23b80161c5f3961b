"""For which exception this rank leaves its groups: its type and first line go with the goodbye, peers quote them."""

from __future__ import annotations

import multiprocessing
import os
import sys
from functools import cache
from multiprocessing.util import Finalize

_MOST_BYTES = 200


def current() -> str:
    """'ValueError: batch is empty': of what this thread handles, or of what has ended the script; '' without either.

    Called when a group is left: by destroy_process_group in a `finally` or `except`, or by the end of the process.
    """
    ended_script = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)  # a prompt goes on after it
    return _first_line(sys.exc_info()[1] or ended_script)


def _first_line(error: BaseException | None) -> str:
    # How torch.multiprocessing.spawn, and many a main(), end a process for an exception.
    while isinstance(error, SystemExit) and error.__context__ is not None:
        error = error.__context__
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return ""
    try:
        said = str(error).strip().partition("\n")[0]
    except Exception:  # that of a class of the user
        said = ""
    text = type(error).__name__ + (f": {said}" if said else "")
    return text.encode(errors="backslashreplace")[:_MOST_BYTES].decode(errors="ignore")


def tell_of_child() -> None:
    """In a process of multiprocessing, where no script ends and a fork has no atexit: its exception is told."""
    if multiprocessing.parent_process() is not None:
        _watch(os.getpid())


@cache
def _watch(_: int) -> None:
    Finalize(None, _leave_if_failed, exitpriority=0)


def _leave_if_failed() -> None:
    """At the end of the process's function, while its exception is on its way. Without one all is as it was."""
    from ringdp import backend

    if current():
        backend._C.leave_groups()
