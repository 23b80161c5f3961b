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
from devices.probe import PAGE, STEP_S, Probes, main, pages

REPEATS = 20
ARGUMENT_BYTES = (256, 4096, 12800)  # the last: a plan of 192 steps (csrc/device/kernel/work.h)
DEADLINE_NS = 1_000_000_000  # of a kernel that waits

# Kernel parameters of more than 4 KiB need PTX 8.1.
_NOTHING = "\n".join(
    f".visible .entry nothing_{size}(.param .align 8 .b8 argument[{size}]) {{ ret; }}" for size in ARGUMENT_BYTES
)
PTX = f"""
.version 8.1
.target sm_80
.address_size 64
{_NOTHING}

.visible .entry ping(.param .u64 mine_, .param .u64 theirs_, .param .u64 rounds_, .param .u64 first_,
                     .param .u64 deadline_)
{{
  .reg .pred %p<4>;
  .reg .u64 %mine, %theirs, %rounds, %first, %end, %now, %turn, %seen;
  ld.param.u64 %mine, [mine_];
  ld.param.u64 %theirs, [theirs_];
  ld.param.u64 %rounds, [rounds_];
  ld.param.u64 %first, [first_];
  ld.param.u64 %end, [deadline_];
  mov.u64 %now, %globaltimer;
  add.u64 %end, %end, %now;
  setp.ne.u64 %p0, %first, 0;
  mov.u64 %turn, 0;
next:
  add.u64 %turn, %turn, 1;
  @%p0 st.release.sys.u64 [%theirs], %turn;
wait:
  mov.u64 %now, %globaltimer;
  setp.gt.u64 %p1, %now, %end;
  @%p1 bra done;
  ld.acquire.sys.u64 %seen, [%mine];
  setp.lt.u64 %p2, %seen, %turn;
  @%p2 bra wait;
  @!%p0 st.release.sys.u64 [%theirs], %turn;
  setp.lt.u64 %p3, %turn, %rounds;
  @%p3 bra next;
done:
  ret;
}}
"""


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


def launch(cuda: Driver, function: int, stream: int, *arguments: ctypes.c_uint64 | ctypes.Array) -> None:
    """A kernel of one thread."""
    parameters = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
    cuda.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None)


def empty_kernels() -> dict[str, Any]:
    """Launches of a kernel that does nothing, by the size of its arguments."""
    cuda = Driver()
    module, stream = cuda.made("cuModuleLoadData", PTX.encode()), cuda.stream()
    facts = {}
    for size in ARGUMENT_BYTES:
        function = cuda.made("cuModuleGetFunction", module, f"nothing_{size}".encode())
        argument = (ctypes.c_ubyte * size)()
        took = medians(lambda f=function, a=argument: launch(cuda, f, stream, a), [stream], cuda, 200)
        facts[f"us with {size} bytes"] = took
    return facts


def kernels_that_wait() -> dict[str, Any]:
    """Two kernels of one process that let each other go by flags in the device's memory (SPIN)."""
    cuda, rounds = Driver(), 1000
    module = cuda.made("cuModuleLoadData", PTX.encode())
    function = cuda.made("cuModuleGetFunction", module, b"ping")
    streams, flags = [cuda.stream(), cuda.stream()], cuda.alloc(4096)
    took = []
    for _ in range(5):
        cuda.fill(flags, 0, 1024, streams[0])
        cuda.finish(streams[0], STEP_S)
        begin = time.monotonic()
        for rank, stream in enumerate(streams):
            mine, theirs = flags + 2048 * rank, flags + 2048 * (1 - rank)
            values = (mine, theirs, rounds, int(rank == 0), DEADLINE_NS)
            launch(cuda, function, stream, *map(ctypes.c_uint64, values))
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


RUNGS: Probes = {
    "event, record and wait": (events, {}),
    "copy of 4 KiB on the device": (copies, {}),
    "wake of a stream by the host": (wakes, {}),
    "empty kernel": (empty_kernels, {}),
    "flags between two kernels": (kernels_that_wait, {}),
    "words between two streams": (streams_that_wait, {}),
}


if __name__ == "__main__":
    sys.exit(main("devices.ladder", RUNGS))
