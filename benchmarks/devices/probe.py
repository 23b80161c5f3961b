#!/usr/bin/env python3
"""Can this machine's driver do what ringdp's devices rest on? Without a build of ringdp, torch or a toolkit.

    PYTHONPATH=benchmarks python -m devices.probe [PROBE ...]

Every probe runs in a process of its own, which is killed at its deadline ($PROBE_DEADLINE_S, 10 seconds), and its
result is one line (findings.py).
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from devices.driver import ATTRIBUTES, BARRIER, WAIT, WRITE, Driver, DriverError, IpcHandle
from devices.findings import DIED, FAILED, HUNG, Finding, NotHere, finding, record
from devices.kernels import Kernels

DEADLINE_S = float(os.environ.get("PROBE_DEADLINE_S", "10"))  # of one probe
STEP_S = 0.3 * DEADLINE_S  # of what a stream is to do
KILLED_UNDER_S = 0.2  # of kernels that are queued when a process is killed
WORDS = 16 << 20  # 64 MiB
BYTES = 4 * WORDS
PAGE = 1 << 16
MPS_PIPE = "/tmp/nvidia-mps"
VARIABLES = ("CUDA_", "NVIDIA_VISIBLE_DEVICES")


class Link:
    """One end of a socket between two processes of a probe: JSON values and descriptors."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.settimeout(DEADLINE_S)

    def send(self, value: Any, *fds: int) -> None:
        """At most 60,000 bytes of JSON."""
        socket.send_fds(self._end, [json.dumps(value).encode()], list(fds))

    def receive(self) -> tuple[Any, list[int]]:
        """A value, and descriptors that are the caller's. RuntimeError says how the other process has failed."""
        text, fds, *_ = socket.recv_fds(self._end, 1 << 16, 1)
        if not text:
            raise RuntimeError("the other process has ended")
        value = json.loads(text)
        if isinstance(value, dict) and "error" in value:
            raise RuntimeError(f"the other process: {value['error']}")
        return value, fds


@contextmanager
def beside(function: Callable[[Link], None]) -> Iterator[tuple[Link, int]]:
    """Runs the function in another process, which is killed at the end; a link to it, and its pid.

    It is forked, so neither process may have called the driver before.
    """
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        mine.close()
        link = Link(theirs)
        try:
            function(link)
        except Exception as error:
            link.send({"error": f"{type(error).__name__}: {error}"})
        os._exit(0)
    theirs.close()
    try:
        yield Link(mine), pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        mine.close()


def output_of(*command: str) -> str:
    """What a program prints in one line; '' where there is none."""
    if shutil.which(command[0]) is None:
        return ""
    return " / ".join(subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.split("\n")).strip(" /")


def machine() -> dict[str, Any]:
    """Kernel, limits, and what nvidia-smi says of modes. Needs no driver."""
    query = "--query-gpu=name,driver_version,mig.mode.current,compute_mode,persistence_mode"
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", MPS_PIPE), "control")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {
        "kernel": f"{platform.release()}, {Path('/proc/version').read_text().split(' (')[0]}",
        "cores": len(os.sched_getaffinity(0)),
        "ulimit -l": "unlimited" if locked == resource.RLIM_INFINITY else locked,
        "name, driver, MIG, compute mode, persistence": output_of("nvidia-smi", query, "--format=csv,noheader"),
        "MPS control": str(pipe) if pipe.exists() else "none",
        "variables": {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)},
    }


def driver() -> dict[str, Any]:
    """The device and its attributes, and which devices reach each other."""
    cuda = Driver()
    facts: dict[str, Any] = {"device": cuda.name(), "version": cuda.number("cuDriverGetVersion")}
    count = facts["devices"] = cuda.number("cuDeviceGetCount")
    for name in ATTRIBUTES:
        try:
            facts[name] = cuda.attribute(name)
        except DriverError as error:
            facts[name] = str(error)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    if pairs:
        facts["peer access"] = {f"{a}-{b}": cuda.number("cuDeviceGetP2PAttribute", 1, a, b) for a, b in pairs}
    return facts


# Sharing memory between processes. The other process exports; this one imports.


def export_legacy(link: Link) -> None:
    """A rank that is asked for memory, fills it, and waits to be killed."""
    cuda = Driver()
    memory = cuda.alloc(BYTES)
    handle = IpcHandle()
    cuda.call("cuIpcGetMemHandle", ctypes.byref(handle), memory)
    _fill_and_offer(cuda, memory, link, bytes(handle).hex())


def import_legacy(cuda: Driver, link: Link) -> int:
    """Where its memory is here."""
    text, _ = link.receive()
    return cuda.made("cuIpcOpenMemHandle", IpcHandle.from_buffer_copy(bytes.fromhex(text)), 1)


def export_descriptor(link: Link) -> None:
    """The same by cuMemCreate."""
    cuda = Driver()
    handle = cuda.create(BYTES)
    memory = cuda.map(handle, BYTES)
    fd = ctypes.c_int(-1)
    cuda.call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, 1, 0)
    _fill_and_offer(cuda, memory, link, "a descriptor", fd.value)


def import_descriptor(cuda: Driver, link: Link) -> int:
    """Where its memory is here."""
    _, [fd] = link.receive()
    return cuda.map(cuda.made("cuMemImportFromShareableHandle", fd, 1), BYTES)


def _fill_and_offer(cuda: Driver, memory: int, link: Link, value: str, *fds: int) -> None:
    stream = cuda.stream()
    cuda.fill(memory, 77, WORDS, stream)
    if not cuda.finish(stream, STEP_S):
        raise RuntimeError("memory is not filled in time")
    link.send(value, *fds)
    link.receive()
    link.send(cuda.word(memory + BYTES - 4))
    time.sleep(DEADLINE_S)


LEGACY, DESCRIPTORS = (export_legacy, import_legacy), (export_descriptor, import_descriptor)


Way = tuple[Callable[[Link], None], Callable[[Driver, Link], int]]


def shared(way: Way, then: Callable[[Driver, int, int, int], dict[str, Any]] | None = None) -> dict[str, Any]:
    """Maps another process's memory, reads and writes it. `then`: what else is tried while that process lives."""
    exporter, importer = way
    with beside(exporter) as (link, pid):
        cuda = Driver()
        try:
            memory = importer(cuda, link)
        except (DriverError, RuntimeError) as error:
            raise NotHere(f"refused: {error}") from None
        stream = cuda.stream()
        if (found := cuda.word(memory)) != 77:
            raise RuntimeError(f"the other process has written 77, and {found} is read")
        cuda.fill(memory, 78, WORDS, stream)
        if not cuda.finish(stream, STEP_S):
            raise RuntimeError("memory of the other process is not filled in time")
        link.send("written")
        if (found := link.receive()[0]) != 78:
            raise RuntimeError(f"78 was written, and the other process reads {found}")
        return then(cuda, memory, stream, pid) if then else {"works": True}


def outlive(cuda: Driver, memory: int, stream: int, pid: int) -> dict[str, Any]:
    """What is left of this process's context when the exporter is killed under kernels that write its memory."""
    begin = time.monotonic()
    cuda.fill(memory, 79, WORDS, stream)
    cuda.finish(stream, STEP_S)
    fills = max(4, min(2000, int(KILLED_UNDER_S / (time.monotonic() - begin))))
    for _ in range(fills):
        cuda.fill(memory, 79, WORDS, stream)
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)  # for the driver to take down what the dead process had
    for _ in range(4):
        cuda.fill(memory, 80, WORDS, stream)
    if not cuda.finish(stream, STEP_S):
        raise RuntimeError("what was queued when the exporter was killed does not end")
    fresh = cuda.alloc(BYTES)
    cuda.fill(fresh, 81, WORDS, stream)
    if not cuda.finish(stream, STEP_S) or cuda.word(fresh) != 81 or cuda.word(memory) != 80:
        raise RuntimeError("the context does not compute any more")
    return {"the context survives": True}


def may_outlive(cuda: Driver, memory: int, stream: int, pid: int) -> dict[str, Any]:
    """The same where nobody promises it: either is an answer."""
    try:
        return outlive(cuda, memory, stream, pid)
    except RuntimeError as error:
        return {"the context survives": False, "because": str(error)}


# Host memory and waits of streams.


def pages() -> tuple[mmap.mmap, int]:
    """Pages of a file in memory, which a process that is forked off shares; and their address."""
    fd = os.memfd_create("probe")
    os.ftruncate(fd, PAGE)
    mapping = mmap.mmap(fd, PAGE)
    return mapping, ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def registered() -> dict[str, Any]:
    """Pages of a memfd that two processes register: what one device stream writes, the other process's host reads."""
    mapping, address = pages()

    def other(link: Link) -> None:
        cuda = Driver()
        place, stream = cuda.register(address, PAGE), cuda.stream()
        cuda.fill(place, 5, 1, stream)
        cuda.finish(stream, STEP_S)
        link.send("written")
        time.sleep(DEADLINE_S)

    with beside(other) as (link, _):
        cuda = Driver()
        place = cuda.register(address, PAGE)
        link.receive()
        found, on_device = int.from_bytes(mapping[:4], "little"), cuda.word(place)
    if (found, on_device) != (5, 5):
        raise RuntimeError(f"5 was written, the host reads {found} and the device {on_device}")
    return {"address on the device is the host's": place == address}


ROUND_TRIPS = 200
PEERS = 7  # of the most ranks that share memory

Play = Callable[[Driver, int, int, bool], None]  # all turns of one of two processes: stream, words, whether it begins


def one_call_each(cuda: Driver, stream: int, place: int, first: bool) -> None:
    """A write and a wait in a turn."""
    mine, theirs = (place, place + 128) if first else (place + 128, place)
    for turn in range(1, ROUND_TRIPS + 1):
        if first:
            cuda.write_value(stream, theirs, turn)
        cuda.wait_value(stream, mine, turn)
        if not first:
            cuda.write_value(stream, theirs, turn)


def one_call_a_turn(cuda: Driver, stream: int, place: int, first: bool) -> None:
    """As many writes and waits as between the most ranks, in one call."""
    begin, answer = ([place + 128 * (PEERS * half + k) for k in range(PEERS)] for half in range(2))
    mine, theirs = (begin, answer) if first else (answer, begin)
    waits, writes = [(WAIT, word) for word in mine], [(WRITE, word) for word in theirs]
    for turn in range(1, ROUND_TRIPS + 1):
        cuda.batch(stream, [*writes, *waits] if first else [*waits, *writes], turn)


def waits_between_processes(play: Play = one_call_each) -> dict[str, Any]:
    """Two streams of two processes that let each other go, by words in pages that both have registered."""
    mapping, address = pages()

    def run(cuda: Driver, first: bool) -> float:
        place, stream = cuda.register(address, PAGE), cuda.stream()
        begin = time.monotonic()
        play(cuda, stream, place, first)
        if not cuda.finish(stream, STEP_S):
            raise RuntimeError(f"{ROUND_TRIPS} round trips are not done in {STEP_S} s")
        return time.monotonic() - begin

    def other(link: Link) -> None:
        cuda = Driver()
        link.send("ready")
        run(cuda, first=False)
        link.send("done")

    with beside(other) as (link, _):
        cuda = Driver()
        if not cuda.attribute("64-bit stream memory operations"):
            raise NotHere("the device has no 64-bit stream memory operations")
        link.receive()
        took = run(cuda, first=True)
        link.receive()
    mapping.flush()  # it has lived until here
    return {"us per round trip": round(1e6 * took / ROUND_TRIPS, 1)}


DATA_WORDS = 64 << 10  # that go with every turn, each way
GRID = {"blocks": 24, "threads": 512}  # of the kernels that write and check them


def data_behind_batches() -> dict[str, Any]:
    """Data that a kernel writes to memory of another process before it posts, and a kernel checks there after its wait:
    as ranks that share a device exchange it, by batches of waits and writes.
    """
    mapping, address = pages()
    half = 4 * DATA_WORDS

    def run(cuda: Driver, data: int, first: bool) -> tuple[int, float]:
        kernels, place, stream, errors = Kernels(cuda), cuda.register(address, PAGE), cuda.stream(), cuda.alloc(4)
        begin, answer = ([place + 128 * (PEERS * k + n) for n in range(PEERS)] for k in range(2))
        (mine, theirs), (read, written) = ((begin, answer), (0, half)) if first else ((answer, begin), (half, 0))
        waits, writes = [(WAIT, word) for word in mine], [(WRITE, word) for word in theirs]
        cuda.fill(errors, 0, 1, stream)
        start = time.monotonic()
        for turn in range(1, ROUND_TRIPS + 1):
            value = turn if first else turn | 1 << 16
            for post in (first, not first):
                if post:
                    kernels.launch("put", stream, data + written, DATA_WORDS, value, **GRID)
                    cuda.batch(stream, writes, turn)
                else:
                    cuda.batch(stream, waits, turn)
                    kernels.launch("check", stream, data + read, DATA_WORDS, value ^ 1 << 16, errors, **GRID)
        if not cuda.finish(stream, 2 * STEP_S):
            raise RuntimeError(f"{ROUND_TRIPS} round trips are not done in {2 * STEP_S:g} s")
        return cuda.word(errors), time.monotonic() - start

    def other(link: Link) -> None:
        cuda = Driver()
        handle = cuda.create(BYTES)
        fd = ctypes.c_int(-1)
        memory = cuda.map(handle, BYTES)
        cuda.call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, 1, 0)
        link.send("a descriptor", fd.value)
        link.send(run(cuda, memory, first=False)[0])
        link.receive()

    with beside(other) as (link, _):
        cuda = Driver()
        if not cuda.attribute("64-bit stream memory operations"):
            raise NotHere("the device has no 64-bit stream memory operations")
        try:
            data = import_descriptor(cuda, link)
        except (DriverError, RuntimeError) as error:
            raise NotHere(f"refused: {error}") from None
        wrong, took = run(cuda, data, first=True)
        wrong += link.receive()[0]
        link.send("done")
        facts = {"us per round trip": round(1e6 * took / ROUND_TRIPS, 1), "a barrier in a batch": "taken"}
        try:
            cuda.batch(cuda.stream(), [(BARRIER, 0)], 0)
        except DriverError as error:
            facts["a barrier in a batch"] = str(error)
    mapping.flush()  # it has lived until here
    if wrong:
        raise RuntimeError(f"{wrong} words were others after the wait than had been written before the post")
    return facts


# torch makes the streams of its pools in this order (c10/cuda/CUDAStream.cpp, initDeviceStreamState).
PER_POOL, PRIORITIES = 32, (0, -1, -2, -3)
ALIAS_S = 0.5  # a stream that has not written one word by then waits for another


def aliases() -> dict[str, Any]:
    """Which streams of a pool as torch's wait behind one that waits, though nothing orders them."""
    mapping, address = pages()
    cuda = Driver()
    place, memory = cuda.register(address, PAGE), cuda.alloc(4)
    pools: dict[int, list[int]] = {priority: [] for priority in PRIORITIES}
    for _ in range(PER_POOL):
        for priority in PRIORITIES:
            pools[priority].append(cuda.stream(priority))
    streams = {f"{priority}/{k}": pools[priority][k] for priority in (-1, 0) for k in range(PER_POOL)}
    for stream in streams.values():
        cuda.fill(memory, 0, 1, stream)
        cuda.finish(stream, STEP_S)  # what runs first has to be loaded
    facts: dict[str, Any] = {"connections": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "default")}
    word = ctypes.c_uint64.from_buffer(mapping)
    for turn, waiting in enumerate(("-1/0", "0/0"), start=1):
        cuda.wait_value(streams[waiting], place, turn)
        others = {name: stream for name, stream in streams.items() if name != waiting}
        for stream in others.values():
            cuda.fill(memory, turn, 1, stream)
        time.sleep(ALIAS_S)
        behind = [name for name, stream in others.items() if not cuda.is_idle(stream)]
        word.value = turn
        if not all(cuda.finish(stream, STEP_S) for stream in streams.values()):
            raise RuntimeError(f"streams are not done after the word was written that {waiting} waited for")
        facts[f"wait behind {waiting} (priority/number)"] = ", ".join(behind) or "none"
    return facts


# What other threads can do while one copies to pageable memory, as tensor.cpu() does.
LEAD_S, WAIT_S = 0.05, 0.2  # until the copy is under way; a call that has not returned by then waits for it
COPIED = 32 << 10


def beside_a_copy() -> dict[str, Any]:
    """Which calls of other threads wait while the stream of such a copy waits, and which of the others do so once a
    third thread is in a call that waits.
    """
    mapping, address = pages()
    cuda = Driver()
    place, memory, context = cuda.register(address, PAGE), cuda.alloc(BYTES), cuda.made("cuCtxGetCurrent")
    word, turns, call = ctypes.c_uint64.from_buffer(mapping), iter(range(1, 1 << 30)), cuda.call
    buffer = ctypes.create_string_buffer(COPIED)

    def filled(stream: int) -> None:
        cuda.fill(memory, 1, WORDS // 64, stream)
        cuda.finish(stream, STEP_S)

    def copied(stream: int) -> None:
        call("cuMemcpyDtoDAsync", memory, memory + (1 << 20), COPIED, stream)
        cuda.finish(stream, STEP_S)

    # Of another stream, with an event.
    calls: dict[str, Callable[[int, int], object]] = {
        "event create": lambda stream, event: cuda.made("cuEventCreate", 2),
        "event destroy": lambda stream, event: call("cuEventDestroy", event),
        "event record": lambda stream, event: call("cuEventRecord", event, stream),
        "event query": lambda stream, event: cuda.has_passed(event),
        "stream create": lambda stream, event: cuda.stream(),
        "kernel, to its end": lambda stream, event: filled(stream),
        "copy on the device, to its end": lambda stream, event: copied(stream),
        "write of a word": lambda stream, event: cuda.write_value(stream, place + 128, 1),
        "allocation": lambda stream, event: cuda.alloc(PAGE),
        "pinned allocation": lambda stream, event: cuda.made("cuMemHostAlloc", PAGE, 0),
    }

    def begin(act: Callable[[], object], failures: list[str]) -> threading.Thread:
        def run() -> None:
            try:
                call("cuCtxSetCurrent", context)
                act()
            except (DriverError, RuntimeError) as error:
                failures.append(str(error))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def waits(name: str, one_waits: bool) -> bool:
        turn, failures = next(turns), []
        stream, other, event, spare = cuda.stream(), cuda.stream(), *(cuda.made("cuEventCreate", 2) for _ in range(2))
        filled(other)
        cuda.wait_value(stream, place, turn)
        threads = [begin(lambda: call("cuMemcpyDtoHAsync", buffer, memory, COPIED, stream), failures)]
        time.sleep(LEAD_S)
        if not threads[0].is_alive():
            raise NotHere("a copy to pageable memory does not wait for its stream")
        if one_waits:
            threads.append(begin(lambda: call("cuEventDestroy", spare), failures))
            time.sleep(LEAD_S)
        threads.append(begin(lambda: calls[name](other, event), failures))
        threads[-1].join(WAIT_S)
        found = threads[-1].is_alive()
        word.value = turn
        for thread in threads:
            thread.join(STEP_S)
        if failures or any(thread.is_alive() for thread in threads):
            raise RuntimeError(f"{name}: {failures[0] if failures else 'a call does not end after the copy'}")
        return found

    facts = {}
    for name in calls:
        facts[name] = "waits" if waits(name, False) else "waits behind another" if waits(name, True) else "goes on"
    mapping.flush()  # it has lived until here
    return facts


Probes = dict[str, tuple[Callable[[], dict[str, Any]], dict[str, str]]]  # by name: the function, and its variables
PROBES: Probes = {
    "machine": (machine, {}),
    "driver": (driver, {}),
    "share legacy IPC": (lambda: shared(LEGACY), {}),
    "share descriptors": (lambda: shared(DESCRIPTORS), {}),
    "killed exporter, descriptors": (lambda: shared(DESCRIPTORS, outlive), {}),
    "killed exporter, legacy IPC": (lambda: shared(LEGACY, may_outlive), {}),
    "registered memfd": (registered, {}),
    "waits between processes": (waits_between_processes, {}),
    "batches of waits between processes": (lambda: waits_between_processes(one_call_a_turn), {}),
    "data behind batches of waits": (data_behind_batches, {}),
    "calls beside a copy to pageable memory": (beside_a_copy, {}),
    "streams that alias, 32 connections": (aliases, {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}),
    "streams that alias, 8 connections": (aliases, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
}


def run(module: str, name: str, variables: dict[str, str], deadline_s: float) -> None:
    """Runs one probe of a module in a session of its own; without a line of its own, how it ended is its finding."""
    command = [sys.executable, "-m", module, "--here", name]
    process = subprocess.Popen(command, env={**os.environ, **variables}, start_new_session=True)
    try:
        status = process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        status = None
        record(Finding(name, HUNG, deadline_s, f"no answer in {deadline_s:g} s"))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # one that the driver holds is left
            process.wait(STEP_S)
    if status:
        record(Finding(name, DIED if status < 0 else FAILED, text=f"ended with status {status}"))


def main(module: str, probes: Probes, deadline_s: float = DEADLINE_S) -> int:
    """The probes that the command line names, or all."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--here"]:
        name = arguments[1]
        with finding(name) as facts:
            facts.update(probes[name][0]())
        os._exit(0)  # a driver that waits for its streams would wait for good
    if unknown := [name for name in arguments if name not in probes]:
        print(f"invalid probe '{unknown[0]}' (expected some of: {', '.join(probes)})", file=sys.stderr)
        return 2
    for name in arguments or probes:
        run(module, name, probes[name][1], deadline_s)
    return 0


if __name__ == "__main__":
    sys.exit(main("devices.probe", PROBES))
