"""The C interface of libringdp_gpu.so: its structures (csrc/device/runtime/ringdp_gpu.h, csrc/device/kernel/work.h)
and its functions. A call that fails raises CoreError with the library's sentence. Addresses are integers.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from devices.findings import NotHere

MAX_RANKS, MAX_BLOCKS, MAX_STEPS, STEP_BYTES = 8, 64, 192, 64
FLAGS_BYTES, EPOCH_BYTES = 4 * MAX_BLOCKS * MAX_RANKS * 128, 24
SCALARS_BYTES = 36
_Pointers = ctypes.c_void_p * MAX_RANKS


class Handle(ctypes.Structure):
    """rd_gpu_handle: memory as another process imports it."""

    _fields_ = (
        ("key", ctypes.c_ubyte * 64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("needs_fd", ctypes.c_int32),
    )


class Device(ctypes.Structure):
    """rd_gpu_device."""

    _fields_ = (
        ("name", ctypes.c_char * 64),
        ("uuid", ctypes.c_ubyte * 16),
        ("multiprocessors", ctypes.c_int32),
        ("major", ctypes.c_int32),
        ("minor", ctypes.c_int32),
        ("waits_on_streams", ctypes.c_int32),
        ("shares_fds", ctypes.c_int32),
        ("memory_bytes", ctypes.c_uint64),
        ("mig", ctypes.c_int32),
        ("mps", ctypes.c_int32),
    )


class Expired(ctypes.Structure):
    """The first wait that ended at its deadline; `set` is 2 once it is written."""

    _fields_ = (
        ("set", ctypes.c_uint32),
        ("rank", ctypes.c_int32),
        ("block", ctypes.c_int32),
        ("step", ctypes.c_int32),
        ("peer", ctypes.c_int32),
        ("slot", ctypes.c_uint32),
        ("epoch", ctypes.c_uint64),
        ("wanted", ctypes.c_uint64),
        ("seen", ctypes.c_uint64),
        ("launch", ctypes.c_uint64),
    )


class Work(ctypes.Structure):
    """What one launch runs on one rank."""

    _fields_ = (
        ("rank", ctypes.c_int32),
        ("world", ctypes.c_int32),
        ("blocks", ctypes.c_int32),
        ("steps", ctypes.c_int32),
        ("captured", ctypes.c_int32),
        ("spans_devices", ctypes.c_int32),
        ("epoch", ctypes.c_void_p),
        ("stream_epoch", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("divisor", ctypes.c_double),
        ("input", _Pointers),
        ("output", _Pointers),
        ("stage", _Pointers),
        ("pushed", _Pointers),
        ("pushed_bytes", ctypes.c_int64),
        ("flags", _Pointers),
        ("abort", ctypes.c_void_p),
        ("aborts", _Pointers),
        ("expired", ctypes.c_void_p),
        ("step", ctypes.c_uint64 * (MAX_STEPS * STEP_BYTES // 8)),
    )


class AdamWork(ctypes.Structure):
    """What one launch of the fused step works on, on one rank."""

    _fields_ = (
        ("rank", ctypes.c_int32),
        ("world", ctypes.c_int32),
        ("count", ctypes.c_int64),
        ("divisor", ctypes.c_double),
        ("gradients", _Pointers),
        ("parameters", _Pointers),
        ("state", ctypes.c_void_p * 3),
        ("scalars", ctypes.c_float * (SCALARS_BYTES // 4)),
        ("abort", ctypes.c_void_p),
        ("epoch", ctypes.c_void_p),
    )


def sizes() -> dict[str, int]:
    """Bytes of each, as ringdp._C.device_sizes() names them."""
    return {
        "Work": ctypes.sizeof(Work),
        "AdamWork": ctypes.sizeof(AdamWork),
        "AdamScalars": SCALARS_BYTES,
        "Epoch": EPOCH_BYTES,
        "Expired": ctypes.sizeof(Expired),
        "Flags": FLAGS_BYTES,
        "Step": STEP_BYTES,
    }


SPIN, STREAM = 0, 1
SHARE_AUTO, SHARE_FD = 0, 1
_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ARGUMENTS = {
    "count": [_pointer],
    "describe": [_int, _pointer],
    "alloc": [_int, _size, _int, _pointer],
    "free": [_pointer],
    "export": [_pointer, _pointer, _pointer],
    "import": [_int, _pointer, _int, _pointer],
    "unimport": [_pointer],
    "host_alloc": [_size, _pointer, _pointer],
    "host_free": [_pointer],
    "host_map": [_pointer, _size, _pointer],
    "host_unmap": [_pointer],
    "copy": [_pointer, _pointer, _size, _pointer],
    "copy_now": [_int, _pointer, _pointer, _size],
    "stream": [_int, _pointer],
    "run": [_pointer, _size, _int, _int, _int, _pointer],
    "adam_step": [_pointer, _size, _pointer],
    "kernels": [_pointer, _size],
}


class CoreError(RuntimeError):
    """A call that was refused or failed."""


@dataclass(frozen=True)
class Pinned:
    """Host memory that devices map: the host's address and the device's."""

    host: int
    device: int


class Core:
    """The library at `path`; CoreError when it does not open."""

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise CoreError(f"{path} does not open: {error}") from None
        self._library.rd_gpu_error.restype = ctypes.c_char_p
        for name, arguments in _ARGUMENTS.items():
            getattr(self._library, f"rd_gpu_{name}").argtypes = arguments

    def said(self) -> str:
        """The sentence that the last call of this thread left."""
        return self._library.rd_gpu_error().decode()

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._library, f"rd_gpu_{name}")(*arguments) != 0:
            raise CoreError(self.said())

    def count(self) -> int:
        """How many devices there are; said() tells why none."""
        found = ctypes.c_int()
        self._call("count", ctypes.byref(found))
        return found.value

    def describe(self, device: int = 0) -> Device:
        """Facts of a device."""
        found = Device()
        self._call("describe", device, ctypes.byref(found))
        return found

    def kernels(self) -> str:
        """Registers and blocks of all kernels, which are loaded by it."""
        text = ctypes.create_string_buffer(1 << 16)
        self._call("kernels", text, len(text))
        return text.value.decode()

    def alloc(self, size: int, device: int = 0, sharing: int = SHARE_AUTO) -> int:
        """Zero-filled memory that other processes can map."""
        found = ctypes.c_void_p()
        self._call("alloc", device, size, sharing, ctypes.byref(found))
        return found.value or 0

    def free(self, memory: int) -> None:
        """Gives alloc()'s memory back."""
        self._call("free", memory)

    def export(self, memory: int) -> tuple[Handle, int]:
        """A handle and the descriptor that travels with it, which is the caller's to close; -1: none."""
        handle, fd = Handle(), ctypes.c_int(-1)
        self._call("export", memory, ctypes.byref(handle), ctypes.byref(fd))
        return handle, fd.value

    def import_(self, handle: Handle, fd: int, device: int = 0) -> int:
        """Another process's memory here."""
        found = ctypes.c_void_p()
        self._call("import", device, ctypes.byref(handle), fd, ctypes.byref(found))
        return found.value or 0

    def unimport(self, memory: int) -> None:
        """Gives import_()'s mapping back."""
        self._call("unimport", memory)

    def host_alloc(self, size: int) -> Pinned:
        """Zero-filled pinned memory."""
        host, device = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("host_alloc", size, ctypes.byref(host), ctypes.byref(device))
        return Pinned(host.value or 0, device.value or 0)

    def host_free(self, pinned: Pinned) -> None:
        """Gives host_alloc()'s memory back."""
        self._call("host_free", pinned.host)

    def host_map(self, address: int, size: int) -> Pinned:
        """Host memory that exists, whole pages, for devices too."""
        device = ctypes.c_void_p()
        self._call("host_map", address, size, ctypes.byref(device))
        return Pinned(address, device.value or 0)

    def host_unmap(self, pinned: Pinned) -> None:
        """Ends host_map()."""
        self._call("host_unmap", pinned.host)

    def copy(self, to: int, source: int, size: int, stream: int = 0) -> None:
        """Bytes from anywhere to anywhere, in the order of the stream."""
        self._call("copy", to, source, size, stream)

    def copy_now(self, to: int, source: int, size: int, device: int = 0) -> None:
        """Between devices, or from or to pinned memory, on a stream of its own that is waited for."""
        self._call("copy_now", device, to, source, size)

    def stream(self, device: int = 0) -> int:
        """A new one of the highest priority; it lasts until the process ends."""
        found = ctypes.c_void_p()
        self._call("stream", device, ctypes.byref(found))
        return found.value or 0

    def run(self, work: Work, element: int, reduce: int, executor: int, stream: int = 0) -> None:
        """Queues one launch of a plan."""
        self._call("run", ctypes.byref(work), ctypes.sizeof(work), element, reduce, executor, stream)

    def adam_step(self, work: AdamWork, stream: int = 0) -> None:
        """Queues one fused step."""
        self._call("adam_step", ctypes.byref(work), ctypes.sizeof(work), stream)


def open_core() -> Core:
    """The library that ringdp opens too, with a device; CoreError says why there is none."""
    from ringdp import _native

    report = _native.load().gpu_report()
    if not report["devices"]:
        raise CoreError(report["why_none"])
    return Core(report["library"])


def core_or_skip() -> Core:
    """open_core() of a finding, which is skipped where there is none."""
    try:
        return open_core()
    except CoreError as error:
        raise NotHere(str(error)) from None
