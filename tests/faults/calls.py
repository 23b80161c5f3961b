"""For functions on ranks: collectives and messages whose results are known, a store to change, signals by a timer.

A wrong number is an AssertionError.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from ranks import HERE

KNOWN = ("Mismatch", "Internal", "PeerLost", "Timeout", "Aborted")  # kinds of errors that a fault may end them with


def of_rank(rank: int, elements: int) -> torch.Tensor:
    """What this rank has: whole numbers, so that every sum is exact."""
    return (torch.arange(elements, dtype=torch.float32) + 1) * (rank + 1)


def expect(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(got, wanted), "a wrong number"


def reduced(elements: int) -> None:
    own = of_rank(HERE.rank, elements)
    dist.all_reduce(own)
    expect(own, sum(of_rank(rank, elements) for rank in range(HERE.size)))


def gathered(elements: int) -> None:
    all_of_them = [torch.empty(elements) for _ in range(HERE.size)]
    dist.all_gather(all_of_them, of_rank(HERE.rank, elements))
    for rank, got in enumerate(all_of_them):
        expect(got, of_rank(rank, elements))


def moved(elements: int) -> None:
    got = torch.empty(HERE.size * elements)
    dist.all_to_all_single(got, torch.cat([of_rank(HERE.rank + 10 * to, elements) for to in range(HERE.size)]))
    expect(got, torch.cat([of_rank(rank + 10 * HERE.rank, elements) for rank in range(HERE.size)]))


def scattered(elements: int) -> None:
    got = torch.empty(elements)
    dist.reduce_scatter_tensor(got, of_rank(HERE.rank, HERE.size * elements))
    whole = sum(of_rank(rank, HERE.size * elements) for rank in range(HERE.size))
    expect(got, whole[HERE.rank * elements : (HERE.rank + 1) * elements])


def sent(elements: int) -> None:
    to, source = (HERE.rank + 1) % HERE.size, (HERE.rank - 1) % HERE.size
    got = torch.empty(elements)
    works = [dist.isend(of_rank(HERE.rank, elements), to), dist.irecv(got, source)]
    for work in works:
        work.wait()
    expect(got, of_rank(source, elements))


def broadcast(elements: int) -> None:
    got = of_rank(HERE.rank, elements)
    dist.broadcast(got, 1)
    expect(got, of_rank(1, elements))


class Before(dist.Store):
    """Passes everything on."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self.store = store

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=60)) -> None:
        self.store.wait(keys, timeout)

    def get(self, key: str) -> bytes:
        return self.store.get(key)

    def set(self, key: str, value: bytes) -> None:
        self.store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        return self.store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)


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
