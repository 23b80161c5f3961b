"""Signals that the kernel sends to this process by itself, wherever it is then."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable

WALL, OWN_CPU = 1, 2  # CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID


class SignalEvent(ctypes.Structure):
    """struct sigevent, as far as a signal needs it."""

    _fields_ = (
        ("value", ctypes.c_uint64),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("_", ctypes.c_int * 12),
    )


def signal_after(number: signal.Signals, seconds: float, clock: int = WALL) -> Callable[[], None]:
    """Sends `number` once after so many seconds of the clock; what is returned takes that back."""
    library = ctypes.CDLL(None, use_errno=True)
    timer = ctypes.c_void_p()
    event = SignalEvent(signal=number, notify=0)
    assert library.timer_create(clock, ctypes.byref(event), ctypes.byref(timer)) == 0
    nanoseconds = max(1, int(seconds * 1e9))
    once = (ctypes.c_long * 4)(0, 0, nanoseconds // 10**9, nanoseconds % 10**9)
    assert library.timer_settime(timer, 0, once, None) == 0
    return lambda: library.timer_delete(timer) and None
