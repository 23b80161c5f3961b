"""The stand-in: devices of host threads, with the host code of libringdp_gpu.so and the text of its kernels.

Built once per session by tests, loaded and served on their ranks. On a rank: `here(library)` is its device, with a
group of all ranks whose tensors may lie on it. As a program it builds the library and prints its path.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE
from ranks import error_of as error_of

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
TYPE = "privateuseone"  # a name of its own would make torch take it for the accelerator of all groups
BACKEND = f"cpu:ringdp,{TYPE}:ringdp"
GPU_LIBRARY = "libringdp_gpu_stand_in.so"
DEVICE_LIBRARY = "libstand_in_device.so"
NCCL_LIBRARY = "libnccl_stand_in.so"
KERNEL, COPY = "launch_on_host_threads", "cudaMemcpyAsync"
WAIT, WRITE, BATCH = "cuStreamWaitValue32", "cuStreamWriteValue32", "cuStreamBatchMemOp"
CALLS = (KERNEL, COPY, "cudaMemsetAsync", "cudaLaunchHostFunc", WAIT, WRITE, BATCH)


def built() -> str:
    """Torch's device and the library for ringdp; compiled as far as something changed, by one process at a time."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    tools = [os.environ.get("CXX") or "c++", "cmake", "ninja"]
    absent = [tool for tool in tools if shutil.which(tool, path=path) is None]
    if absent:
        pytest.skip(f"the stand-in of a GPU needs {', '.join(absent)}")
    folder = ROOT / "build" / f"gpu-stand-in-{torch.__version__}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build(folder, {**os.environ, "PATH": path})
    return str(folder / DEVICE_LIBRARY)


def build(folder: Path, environment: dict[str, str]) -> None:
    """Fails the tests that need it with the compiler's words."""
    torch_folder = Path(torch.__file__).parent
    configure = ["cmake", "-S", FOLDER, "-B", folder, "-G", "Ninja", f"-DTORCH={torch_folder}"]
    for command in (configure, ["cmake", "--build", folder, "--parallel", "2"]):
        done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=900)
        if done.returncode != 0:
            pytest.fail(f"the stand-in of a GPU does not build:\n{(done.stdout + done.stderr)[-4000:]}", pytrace=False)


class StandIn:
    """The devices on a rank; streams are those of the current one: 0 is the default, 1 to 7 are the tests'."""

    def __init__(self, library: str) -> None:
        from ringdp import _native

        self.functions = loaded(library)
        _native.load().serve_device(TYPE)
        self.group = self.new_group()

    def new_group(self, timeout_s: float = 30.0) -> dist.ProcessGroup:
        """A group of all ranks, for tensors of the CPU and of this device."""
        return dist.new_group(range(HERE.size), backend=BACKEND, timeout=timedelta(seconds=timeout_s))

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device."""
        return tensor.to(TYPE)

    def be_accelerator(self) -> None:
        """For good: autograd runs backward passes on it. Torch then takes it for the accelerator of all groups."""
        torch.utils.rename_privateuse1_backend(TYPE)

    def hold(self, stream: int = 0) -> None:
        """What is queued on the stream from now on waits for go()."""
        self.functions.stand_in_hold(stream)

    def go(self, stream: int = 0) -> None:
        self.functions.stand_in_go(stream)

    def is_idle(self, stream: int = 0) -> bool:
        return self.functions.stand_in_is_idle(stream)

    def synchronize(self, stream: int = 0) -> None:
        self.functions.stand_in_synchronize(stream)

    def current_stream(self) -> int:
        return self.functions.stand_in_current_stream()

    def pinned_bytes(self) -> int:
        """Host memory that ringdp has pinned."""
        return self.functions.stand_in_pinned_bytes()

    def copied_bytes(self) -> int:
        """What ringdp has had copied on devices of this process."""
        return self.functions.stand_in_copied_bytes()

    def copies_beside_kernels(self) -> int:
        """How many copies of this process went to streams on which no kernel has been launched."""
        return self.functions.stand_in_calls(b"a copy on a stream without kernels")

    def launched_blocks(self) -> int:
        """The blocks of all kernels that this process has launched."""
        return self.functions.stand_in_launched_blocks()

    def launched_arguments(self) -> int:
        """The bytes of all their arguments, which go to the device at every launch."""
        return self.functions.stand_in_launched_arguments()

    def calls(self) -> Counter[str]:
        """How often this process has called each of CALLS."""
        return Counter({name: self.functions.stand_in_calls(name.encode()) for name in CALLS})

    def streams(self) -> int:
        """How many of all devices there are: the tests', the pool's, and those that ringdp has made."""
        return self.functions.stand_in_streams()

    def is_lost(self) -> bool:
        """Whether a kernel has touched what the current device does not reach: it can no longer be used then."""
        return self.functions.stand_in_is_lost(self.functions.stand_in_used_device())

    def contexts(self) -> set[int]:
        """The devices on which this process has a context."""
        devices = self.functions.stand_in_contexts()
        return {index for index in range(devices.bit_length()) if devices >> index & 1}

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        """Inside, this thread's current device is `index`."""
        before = self.functions.stand_in_used_device()
        self.functions.stand_in_use_device(index)
        yield
        self.functions.stand_in_use_device(before)

    @contextmanager
    def stream(self, number: int) -> Iterator[None]:
        """Inside, this thread's current stream is `number`, 1 to 7."""
        before = self.current_stream()
        self.functions.stand_in_use_stream(number)
        yield
        self.functions.stand_in_use_stream(before)

    @contextmanager
    def capturing(self, stream: int = 0) -> Iterator[Graph]:
        """Inside, the stream is being captured; afterwards the graph can be replayed."""
        graph = Graph(self.functions)
        self.functions.stand_in_begin_capture(self.functions.stand_in_numbered(stream))
        yield graph
        graph.jobs = self.functions.stand_in_end_capture(self.functions.stand_in_numbered(stream))
        if graph.jobs is None:
            raise RuntimeError("there is no graph: a stream that joined the capture was not waited for")


class Graph:
    """What a stream was given while it was captured."""

    def __init__(self, functions: Any) -> None:
        self.functions, self.jobs = functions, None

    def replay(self, stream: int = 0) -> None:
        """Runs it on a stream that is not being captured."""
        self.functions.stand_in_replay(self.jobs, self.functions.stand_in_numbered(stream))

    def __del__(self) -> None:
        if self.jobs is not None:
            self.functions.stand_in_end_graph(self.jobs)


@cache
def loaded(library: str) -> Any:
    """The device's functions. From now on torch has the device; ringdp finds its library, but does not serve it yet."""
    os.environ["RINGDP_GPU_LIBRARY"] = str(Path(library).with_name(GPU_LIBRARY))
    torch._register_device_module(TYPE, types.ModuleType(f"torch.{TYPE}"))
    functions = ctypes.CDLL(library)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name in ("pinned_bytes", "copied_bytes", "launched_blocks", "launched_arguments", "current_stream", "streams"):
        getattr(functions, f"stand_in_{name}").restype = ctypes.c_size_t
    for name in ("numbered", "end_capture"):
        getattr(functions, f"stand_in_{name}").restype = pointer
    for name in ("begin_capture", "end_capture", "end_graph", "synchronize_stream"):
        getattr(functions, f"stand_in_{name}").argtypes = [pointer]
    for name in ("hold", "go", "is_idle", "synchronize", "use_stream", "numbered", "use_device"):
        getattr(functions, f"stand_in_{name}").argtypes = [number]
    functions.stand_in_calls.argtypes, functions.stand_in_calls.restype = [ctypes.c_char_p], number
    functions.stand_in_replay.argtypes = [pointer, pointer]
    for name in ("is_idle", "is_lost"):
        getattr(functions, f"stand_in_{name}").restype = ctypes.c_bool
    return functions


class StandInPlace:
    """The first device's streams, the default one first, as benchmarks/devices takes them."""

    def __init__(self, library: str) -> None:
        self._functions = loaded(library)
        self._used = 0

    def streams(self, count: int) -> list[int]:
        """At most 8."""
        self._used = max(self._used, count)
        return [self._functions.stand_in_numbered(number) for number in range(count)]

    def synchronize(self) -> None:
        """Waits for those that were asked for."""
        for number in range(self._used):
            self._functions.stand_in_synchronize(number)

    def finish(self, stream: int) -> None:
        """Waits for what is queued on this one, by its handle."""
        self._functions.stand_in_synchronize_stream(stream)

    def keep_busy(self) -> None:
        """Work of a stream that is none of these: the stand-in knows no priorities."""
        before = self._functions.stand_in_current_stream()
        self._functions.stand_in_use_stream(7)
        torch.zeros(1000, device=TYPE).fill_(1.0)
        self._functions.stand_in_use_stream(before)


@cache
def here(library: str) -> StandIn:
    """On a rank: the device. Collective at its first use, which makes the group."""
    return StandIn(library)


def backend_of(group: dist.ProcessGroup) -> Any:
    """The backend that carries the device's tensors."""
    return group._get_backend(torch.device(TYPE))


if __name__ == "__main__":
    print(Path(built()).with_name(GPU_LIBRARY))
