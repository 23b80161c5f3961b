"""The CUDA part as its C interface shows it: opened by ctypes, with or without a device."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import ringdp
from devices.core import Handle
from stand_in import GPU_LIBRARY

LIBRARY = Path(ringdp.__file__).with_name("libringdp_gpu.so")


@pytest.fixture
def handle_of() -> type[Handle]:
    """Makes handles."""
    return Handle


@pytest.fixture(scope="session")
def path() -> Path:
    """Where the library is."""
    if not LIBRARY.exists():
        pytest.skip("the CUDA part is not built here: no nvcc, or RINGDP_CUDA=off")
    return LIBRARY


@pytest.fixture(scope="session")
def emulated(stand_in) -> Path:
    """The same host code over a device of host threads."""
    return Path(stand_in).with_name(GPU_LIBRARY)


@pytest.fixture(scope="session", params=["path", "emulated"])
def core(request) -> ctypes.CDLL:
    """The library, as it ships and with an emulated device."""
    library = ctypes.CDLL(str(request.getfixturevalue(request.param)))
    library.rd_gpu_error.restype = ctypes.c_char_p
    return library


@pytest.fixture
def devices(core) -> int:
    """How many there are."""
    count = ctypes.c_int(-1)
    assert core.rd_gpu_count(ctypes.byref(count)) == 0
    return count.value
