"""The C half of the runner (native.c): compiled when a session starts, loaded by every process; shared memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("native.c")
MAX_RANKS, MAX_TEAMS = 64, 16
DTYPES = {"float32": 4, "bfloat16": 2}  # name: bytes of an element
_TEAM = ctypes.c_int32 * 96
_int, _size, _long, _pointer, _word = ctypes.c_int, ctypes.c_size_t, ctypes.c_int64, ctypes.c_void_p, ctypes.c_uint32
_SIGNATURES = {
    "block_bytes": ([], _size),
    "give_turn": ([_pointer, _int], None),
    "await_turn": ([_pointer, _int, _int, _int], _int),
    "finish_turn": ([_pointer], None),
    "await_done": ([_pointer, _int, _int], _int),
    "give_up": ([_pointer], None),
    "barrier": ([_pointer, _int, _int, _int], _int),
    **{f"fill_{dtype}": ([_pointer, _size, _word], None) for dtype in DTYPES},
    **{f"wrong_{dtype}": ([_pointer, _size, ctypes.c_uint64, _pointer, _int], _long) for dtype in DTYPES},
    "scale": ([_pointer, _size, ctypes.c_float], None),
    "copy": ([_pointer, _pointer, _size], None),
    "fold": ([_pointer, _pointer, _size, _int], None),
}


class Block(ctypes.Structure):
    """The words that all processes of a session share: struct block of native.c."""

    _fields_ = (
        ("teams", _TEAM * MAX_TEAMS),
        ("done", ctypes.c_int32 * 32),
        ("gone", ctypes.c_int32 * 32),
        ("order", _long * 8),
        ("start", _long * MAX_RANKS),
        ("stop", _long * MAX_RANKS),
        ("wrong", _long * MAX_RANKS),
    )


def compile_native(folder: Path) -> Path:
    """The library, made by $CC or cc for this machine; RuntimeError with the compiler's words when it cannot be."""
    library = folder / "native.so"
    compiler = os.environ.get("CC", "cc")
    command = [*compiler.split(), "-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC", str(SOURCE)]
    try:
        subprocess.run([*command, "-o", str(library)], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise RuntimeError(f"no C compiler {compiler!r}: install one, or name it with CC=") from None
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{compiler} cannot compile {SOURCE}: {error.stderr.strip()}") from None
    return library


def load_native(library: Path) -> ctypes.CDLL:
    """The library with its functions' types set."""
    native = ctypes.CDLL(str(library))
    for name, (arguments, result) in _SIGNATURES.items():
        function = getattr(native, f"runner_{name}")
        function.argtypes, function.restype = arguments, result
    if native.runner_block_bytes() > ctypes.sizeof(Block) + 128:
        raise RuntimeError(f"{library}: struct block and Block differ: remove the file and start again")
    return native


class Mapping:
    """Shared memory by its path: /proc/<pid>/fd/<n> of a memfd, so nothing stays behind in a file system."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR)
        self.size = os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, self.size)
        os.close(descriptor)
        self._bytes = (ctypes.c_char * self.size).from_buffer(self._map)
        self.address = ctypes.addressof(self._bytes)

    def block(self) -> Block:
        """The block at its beginning."""
        return Block.from_buffer(self._map)


def make_shared(name: str, size: int) -> tuple[int, str]:
    """A new memfd of `size` bytes: the descriptor, which the caller keeps open, and the path others map it by."""
    descriptor = os.memfd_create(name)
    os.ftruncate(descriptor, size)
    return descriptor, f"/proc/{os.getpid()}/fd/{descriptor}"
