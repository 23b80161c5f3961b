#!/usr/bin/env python3
"""Microseconds of the single operations that a collective on devices is made of, from one up to the next.

    PYTHONPATH=benchmarks python -m devices.ladder [RUNG ...]

Needs no build, no torch and no toolkit: kernels are PTX, which the driver compiles. Rungs are probes (probe.py), each
in a process of its own with a deadline. Medians over REPEATS, of the host's clock.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from devices.driver import Driver
from devices.kernels import ARGUMENT_BYTES, Kernels
from devices.probe import PAGE, STEP_S, Probes, main, pages

REPEATS = 20
HIGHEST = -5  # of the priorities of streams
DEADLINE_NS = 1_000_000_000  # of a kernel that waits


def medians(call: Callable[[], None], streams: list[int], cuda: Driver, calls: int) -> float:
    """Microseconds per call until the streams are idle."""
    took = []
    for _ in range(REPEATS):
        begin = time.monotonic()
        for _ in range(calls):
            call()
        if not all(cuda.finish(stream, STEP_S) for stream in streams):
            raise RuntimeError(f"{calls} calls are not done in {STEP_S} s")
        took.append((time.monotonic() - begin) / calls)
    return round(1e6 * median(took), 2)


def events() -> dict[str, Any]:
    """An event that one stream records and another waits for, there and back."""
    cuda = Driver()
    streams, event = [cuda.stream(), cuda.stream()], cuda.made("cuEventCreate", 2)  # without timing

    def there_and_back() -> None:
        for source, target in (streams, streams[::-1]):
            cuda.call("cuEventRecord", event, source)
            cuda.call("cuStreamWaitEvent", target, event, 0)

    return {"us per record and wait": medians(there_and_back, streams, cuda, 200) / 2}


def copies() -> dict[str, Any]:
    """Copies of 4 KiB on the device, one after another."""
    cuda = Driver()
    stream, source, target = cuda.stream(), cuda.alloc(4096), cuda.alloc(4096)
    call = cuda.call
    return {"us": medians(lambda: call("cuMemcpyDtoDAsync", target, source, 4096, stream), [stream], cuda, 200)}


def wakes() -> dict[str, Any]:
    """From a store of the host until it sees that the stream has gone on that waited for it."""
    cuda = Driver()
    mapping, address = pages()
    place, stream = cuda.register(address, PAGE), cuda.stream()
    word, took = ctypes.c_uint64.from_buffer(mapping), []
    for turn in range(1, REPEATS + 1):
        cuda.wait_value(stream, place, turn)
        time.sleep(0.002)
        begin = time.monotonic()
        word.value = turn
        if not cuda.finish(stream, STEP_S):
            raise RuntimeError("a store of the host does not let the stream go")
        took.append(time.monotonic() - begin)
    return {"us": round(1e6 * median(took), 2)}


def empty_kernels() -> dict[str, Any]:
    """Launches of a kernel that does nothing, by the size of its arguments."""
    cuda = Driver()
    kernels, stream = Kernels(cuda), cuda.stream()
    facts = {}
    for size in ARGUMENT_BYTES:
        name = f"nothing_{size}"
        argument = (ctypes.c_ubyte * size)()
        took = medians(lambda n=name, a=argument: kernels.launch(n, stream, a), [stream], cuda, 200)
        facts[f"us with {size} bytes"] = took
    return facts


def kernels_that_wait() -> dict[str, Any]:
    """Two kernels of one process that let each other go by flags in the device's memory (SPIN)."""
    cuda, rounds = Driver(), 1000
    kernels = Kernels(cuda)
    streams, flags = [cuda.stream(), cuda.stream()], cuda.alloc(4096)
    took = []
    for _ in range(5):
        cuda.fill(flags, 0, 1024, streams[0])
        cuda.finish(streams[0], STEP_S)
        begin = time.monotonic()
        for rank, stream in enumerate(streams):
            mine, theirs = flags + 2048 * rank, flags + 2048 * (1 - rank)
            kernels.launch("ping", stream, mine, theirs, rounds, int(rank == 0), DEADLINE_NS)
        if not all(cuda.finish(stream, STEP_S) for stream in streams):
            raise RuntimeError("two kernels that wait for each other do not end")
        took.append(time.monotonic() - begin)
        if cuda.word(flags) != rounds or cuda.word(flags + 2048) != rounds:
            raise RuntimeError(f"at the deadline they are at {cuda.word(flags)} of {rounds}: they do not run at once")
    return {"us per round trip": round(1e6 * median(took) / rounds, 2)}


def streams_that_wait() -> dict[str, Any]:
    """Two streams of one process that let each other go by words in host memory (STREAM)."""
    cuda = Driver()
    mapping, address = pages()
    place, streams, turns = cuda.register(address, PAGE), [cuda.stream(), cuda.stream()], iter(range(1, 1 << 30))

    def there_and_back() -> None:
        turn = next(turns)
        cuda.write_value(streams[0], place + 128, turn)
        cuda.wait_value(streams[1], place + 128, turn)
        cuda.write_value(streams[1], place, turn)
        cuda.wait_value(streams[0], place, turn)

    took = medians(there_and_back, streams, cuda, 50)
    mapping.flush()  # it has lived until here
    return {"us per round trip": took}


def makings() -> dict[str, Any]:
    """Making and destroying a stream, and an event that is recorded: the first of a process, and later ones."""
    cuda = Driver()
    took: dict[str, list[float]] = {}

    def timed(what: str, call: Callable[[], int | None]) -> int | None:
        begin = time.monotonic()
        made = call()
        took.setdefault(what, []).append(time.monotonic() - begin)
        return made

    for _ in range(REPEATS):
        stream = timed("stream create", lambda: cuda.stream(HIGHEST))
        event = timed("event create", lambda: cuda.made("cuEventCreate", 2))
        timed("event record", lambda s=stream, e=event: cuda.call("cuEventRecord", e, s))
        timed("event destroy", lambda e=event: cuda.call("cuEventDestroy", e))
        timed("stream destroy", lambda s=stream: cuda.call("cuStreamDestroy", s))
    facts = {f"us of the first {what}": round(1e6 * times[0], 2) for what, times in took.items()}
    return facts | {f"us of a later {what}": round(1e6 * median(times[1:]), 2) for what, times in took.items()}


RUNGS: Probes = {
    "streams and events, made and destroyed": (makings, {}),
    "event, record and wait": (events, {}),
    "copy of 4 KiB on the device": (copies, {}),
    "wake of a stream by the host": (wakes, {}),
    "empty kernel": (empty_kernels, {}),
    "flags between two kernels": (kernels_that_wait, {}),
    "words between two streams": (streams_that_wait, {}),
}


if __name__ == "__main__":
    sys.exit(main("devices.ladder", RUNGS))
