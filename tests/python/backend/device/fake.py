"""The fake device: built once per session by tests, loaded and served on their ranks.

On a rank: `here(library)` is the device, with a group of all ranks whose tensors may lie on it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[3]
TYPE = "privateuseone"
BACKEND = f"cpu:ringdp,{TYPE}:ringdp"
BUILD = """
import sys
from torch.utils import cpp_extension
source, folder, *includes = sys.argv[1:]
cpp_extension.load("fake_device", [source], build_directory=folder, extra_include_paths=includes,
                   extra_cflags=["-O1", "-g0"], is_python_module=False)
"""


@pytest.fixture(scope="session")
def fake_device() -> str:
    """The library of the fake device; compiled when it or what it includes changed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if not (shutil.which(os.environ.get("CXX", "c++")) and shutil.which("ninja", path=path)):
        pytest.skip("the fake device needs a C++ compiler and ninja")
    folder = ROOT / "build" / f"fake-device-{torch.__version__}"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "fake_device.so"
    sources = [*FOLDER.glob("fake_*"), ROOT / "csrc/backend/device/device_core.h"]
    if library.exists() and library.stat().st_mtime >= max(source.stat().st_mtime for source in sources):
        return str(library)
    arguments = [str(FOLDER / "fake_device.cc"), str(folder), str(ROOT / "csrc"), str(FOLDER)]
    environment = {**os.environ, "PATH": path}
    subprocess.run([sys.executable, "-c", BUILD, *arguments], env=environment, check=True, timeout=300)
    return str(library)


class Fake:
    """The device on a rank."""

    def __init__(self, library: str) -> None:
        from ringdp import _native

        self.functions = loaded(library)
        _native.load().serve_device(TYPE, capsule(self.functions.fake_core()))
        self.group = self.new_group()

    def new_group(self, timeout_s: float = 30.0) -> dist.ProcessGroup:
        """A group of all ranks, for tensors of the CPU and of this device."""
        return dist.new_group(range(HERE.size), backend=BACKEND, timeout=timedelta(seconds=timeout_s))

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device."""
        return tensor.to(TYPE)

    def hold(self, stream: int = 0) -> None:
        """What is queued on the stream from now on waits for go()."""
        self.functions.fake_hold(stream)

    def go(self, stream: int = 0) -> None:
        self.functions.fake_go(stream)

    def is_idle(self, stream: int = 0) -> bool:
        return self.functions.fake_is_idle(stream)

    def synchronize(self, stream: int = 0) -> None:
        self.functions.fake_synchronize(stream)

    def current_stream(self) -> int:
        return self.functions.fake_current_stream()

    def pinned_bytes(self) -> int:
        """Host memory that ringdp has pinned."""
        return self.functions.fake_pinned_bytes()

    @contextmanager
    def stream(self, number: int) -> Iterator[None]:
        """Inside, this thread's current stream is `number`, 1 to 7."""
        before = self.current_stream()
        self.functions.fake_use_stream(number)
        yield
        self.functions.fake_use_stream(before)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Inside, the default stream is being captured."""
        self.functions.fake_set_capturing(0, True)
        yield
        self.functions.fake_set_capturing(0, False)


@cache
def loaded(library: str) -> Any:
    """The library's functions. From now on torch has the device; ringdp does not serve it yet."""
    torch._register_device_module(TYPE, types.ModuleType(f"torch.{TYPE}"))
    functions = ctypes.CDLL(library)
    functions.fake_core.restype = ctypes.c_void_p
    for name in ("fake_pinned_bytes", "fake_current_stream"):
        getattr(functions, name).restype = ctypes.c_size_t
    functions.fake_is_idle.restype = ctypes.c_bool
    return functions


def capsule(pointer: int) -> object:
    """A pointer as the extension takes it."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(pointer, None, None)


@cache
def here(library: str) -> Fake:
    """On a rank: the device. Collective at its first use, which makes the group."""
    return Fake(library)


def backend_of(group: dist.ProcessGroup) -> Any:
    """The backend that carries the device's tensors."""
    return group._get_backend(torch.device(TYPE))


def error_of(call: Callable[[], object]) -> str:
    """What the call's error says; '' without one."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""
