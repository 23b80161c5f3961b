"""CUDA's driver by ctypes: no torch, no toolkit and no build of ringdp. For probes of what a machine can do.

A call that fails raises DriverError with CUDA's name of the error. Addresses, streams and events are integers. The
library is libcuda.so.1, or what $LIBCUDA names. Signatures and numbers are those of cuda.h, CUDA 12.0 and later.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence

from devices.findings import NotHere

VERSION = 12000  # of the interface: names stand for what they stood for then
NOT_READY = 600
NON_BLOCKING, MAPPED = 1, 2  # of streams, and of registered host memory
GEQ, DEFAULT = 0, 0  # of waits, and of writes
WAIT, WRITE, BARRIER = 4, 5, 6  # of 64-bit words, in a batch; and of memory, of all devices
ATTRIBUTES = {
    "multiprocessors": 16,
    "compute mode": 20,
    "capability, major": 75,
    "capability, minor": 76,
    "host native atomics": 86,
    "compute preemption": 90,
    "flush of remote writes": 98,
    "host pointer for registered memory": 91,
    "host register": 99,
    "virtual memory": 102,
    "POSIX file descriptors": 103,
    "64-bit stream memory operations": 122,
    "stream wait value NOR": 123,
    "IPC events": 125,
    "multicast": 132,
    "MPS": 133,
}
_int, _size, _pointer, _uint, _u64 = (
    ctypes.c_int,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_uint,
    ctypes.c_uint64,
)


class DriverError(RuntimeError):
    """A call that was refused or failed."""


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class Location(ctypes.Structure):
    """CUmemLocation; type 1 is a device."""

    _fields_ = (("type", _int), ("id", _int))


class Kind(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", _int),
        ("handle_types", _int),
        ("location", Location),
        ("metadata", _pointer),
        ("flags", ctypes.c_ubyte * 8),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc; flags 3 is reading and writing."""

    _fields_ = (("location", Location), ("flags", _int))


class StreamOperation(ctypes.Structure):
    """CUstreamBatchMemOpParams of a wait or a write."""

    _fields_ = (
        ("operation", _int),
        ("address", _u64),
        ("value", _u64),
        ("flags", _uint),
        ("alias", _u64),
        ("pad", _u64),
    )


_ARGUMENTS = {
    "cuInit": [_uint],
    "cuDriverGetVersion": [_pointer],
    "cuGetErrorName": [_int, _pointer],
    "cuDeviceGetCount": [_pointer],
    "cuDeviceGetName": [ctypes.c_char_p, _int, _int],
    "cuDeviceGetAttribute": [_pointer, _int, _int],
    "cuDeviceGetP2PAttribute": [_pointer, _int, _int, _int],
    "cuDevicePrimaryCtxRetain": [_pointer, _int],
    "cuCtxGetCurrent": [_pointer],
    "cuCtxSetCurrent": [_pointer],
    "cuMemAlloc": [_pointer, _size],
    "cuMemcpyDtoH": [_pointer, _u64, _size],
    "cuMemcpyDtoHAsync": [_pointer, _u64, _size, _pointer],
    "cuMemcpyDtoDAsync": [_u64, _u64, _size, _pointer],
    "cuMemsetD32Async": [_u64, _uint, _size, _pointer],
    "cuStreamCreateWithPriority": [_pointer, _uint, _int],
    "cuStreamDestroy": [_pointer],
    "cuStreamQuery": [_pointer],
    "cuStreamWaitEvent": [_pointer, _pointer, _uint],
    "cuStreamWaitValue64": [_pointer, _u64, _u64, _uint],
    "cuStreamWriteValue64": [_pointer, _u64, _u64, _uint],
    "cuStreamBatchMemOp": [_pointer, _uint, _pointer, _uint],
    "cuEventCreate": [_pointer, _uint],
    "cuEventRecord": [_pointer, _pointer],
    "cuEventQuery": [_pointer],
    "cuEventDestroy": [_pointer],
    "cuIpcGetMemHandle": [_pointer, _u64],
    "cuIpcOpenMemHandle": [_pointer, IpcHandle, _uint],
    "cuMemHostAlloc": [_pointer, _size, _uint],
    "cuMemHostRegister": [_pointer, _size, _uint],
    "cuMemHostGetDevicePointer": [_pointer, _pointer, _uint],
    "cuMemCreate": [_pointer, _size, _pointer, _u64],
    "cuMemExportToShareableHandle": [_pointer, _u64, _int, _u64],
    "cuMemImportFromShareableHandle": [_pointer, _pointer, _int],
    "cuMemAddressReserve": [_pointer, _size, _size, _u64, _u64],
    "cuMemMap": [_u64, _size, _size, _u64, _u64],
    "cuMemSetAccess": [_u64, _size, _pointer, _size],
    "cuModuleLoadData": [_pointer, ctypes.c_char_p],
    "cuModuleGetFunction": [_pointer, _pointer, ctypes.c_char_p],
    "cuLaunchKernel": [_pointer, *[_uint] * 7, _pointer, _pointer, _pointer],
}


class Driver:
    """The driver, and device 0 with its context current on this thread. NotHere where there is none.

    What it allocates is given back when the process ends.
    """

    def __init__(self) -> None:
        name = os.environ.get("LIBCUDA") or "libcuda.so.1"
        try:
            library = ctypes.CDLL(name)
        except OSError:
            raise NotHere(f"no {name}") from None
        if not hasattr(library, "cuGetProcAddress_v2"):
            raise NotHere(f"{name} is older than CUDA 12.0")
        self._find = library.cuGetProcAddress_v2
        self._find.argtypes = [ctypes.c_char_p, _pointer, _int, _u64, _pointer]
        self._found: dict[str, Callable[..., int]] = {}
        try:
            self.call("cuInit", 0)
        except DriverError as error:
            raise NotHere(f"no device: {error}") from None
        context = self.made("cuDevicePrimaryCtxRetain", 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function of the driver."""
        if result := self._function(name)(*arguments):
            text = ctypes.c_char_p()
            self._function("cuGetErrorName")(result, ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or b'error').decode()} ({result})")

    def made(self, name: str, *arguments: object) -> int:
        """Calls a function whose first argument is where it puts its result."""
        result = ctypes.c_void_p()
        self.call(name, ctypes.byref(result), *arguments)
        return result.value or 0

    def _function(self, name: str) -> Callable[..., int]:
        if name not in self._found:
            address = ctypes.c_void_p()
            if self._find(name.encode(), ctypes.byref(address), VERSION, 0, None) or not address.value:
                raise NotHere(f"the driver has no {name}")
            self._found[name] = ctypes.CFUNCTYPE(_int, *_ARGUMENTS[name])(address.value)
        return self._found[name]

    # What it is.

    def number(self, name: str, *arguments: object) -> int:
        """A function's result that is an int."""
        result = ctypes.c_int()
        self.call(name, ctypes.byref(result), *arguments)
        return result.value

    def name(self) -> str:
        """Of device 0."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), 0)
        return text.value.decode()

    def attribute(self, name: str) -> int:
        """One of ATTRIBUTES."""
        return self.number("cuDeviceGetAttribute", ATTRIBUTES[name], 0)

    # Memory.

    def alloc(self, size: int) -> int:
        """Memory of the device."""
        return self.made("cuMemAlloc", size)

    def create(self, size: int) -> int:
        """Physical memory that can be exported as a descriptor; its handle. Whole multiples of 2 MiB."""
        kind = Kind(type=1, handle_types=1, location=Location(1, 0))
        return self.made("cuMemCreate", size, ctypes.byref(kind), 0)

    def map(self, handle: int, size: int) -> int:
        """Where physical memory is now."""
        address = self.made("cuMemAddressReserve", size, 0, 0, 0)
        self.call("cuMemMap", address, size, 0, handle, 0)
        access = Access(Location(1, 0), 3)
        self.call("cuMemSetAccess", address, size, ctypes.byref(access), 1)
        return address

    def register(self, address: int, size: int) -> int:
        """Host pages for the device, too; their address there."""
        self.call("cuMemHostRegister", address, size, MAPPED)
        return self.made("cuMemHostGetDevicePointer", address, 0)

    def fill(self, address: int, value: int, count: int, stream: int) -> None:
        """Writes 32-bit words, in the order of the stream."""
        self.call("cuMemsetD32Async", address, value, count, stream)

    def word(self, address: int) -> int:
        """A 32-bit word of the device, now."""
        value = ctypes.c_uint32()
        self.call("cuMemcpyDtoH", ctypes.byref(value), address, 4)
        return value.value

    # Streams.

    def stream(self, priority: int = 0) -> int:
        """One that does not wait for the null stream."""
        return self.made("cuStreamCreateWithPriority", NON_BLOCKING, priority)

    def wait_value(self, stream: int, address: int, value: int) -> None:
        """The stream waits until the 64-bit word is at least that."""
        self.call("cuStreamWaitValue64", stream, address, value, GEQ)

    def write_value(self, stream: int, address: int, value: int) -> None:
        """The stream writes the 64-bit word."""
        self.call("cuStreamWriteValue64", stream, address, value, DEFAULT)

    def batch(self, stream: int, operations: Sequence[tuple[int, int]], value: int) -> None:
        """The stream waits for, or writes, this value of 64-bit words, in their order: (WAIT or WRITE, address), or
        (BARRIER, 0).
        """
        array = (StreamOperation * len(operations))()
        for one, (operation, address) in zip(array, operations, strict=True):
            one.operation, one.address, one.value = operation, address, value
            one.flags = GEQ if operation == WAIT else DEFAULT
        self.call("cuStreamBatchMemOp", stream, len(array), ctypes.byref(array), 0)

    def is_idle(self, stream: int) -> bool:
        """Whether all that is queued has run."""
        return self._is_over("cuStreamQuery", stream)

    def has_passed(self, event: int) -> bool:
        """Whether the stream has come by."""
        return self._is_over("cuEventQuery", event)

    def _is_over(self, query: str, what: int) -> bool:
        result = self._function(query)(what)
        if result not in (0, NOT_READY):
            self.call(query, what)  # fails again, and is told
        return result == 0

    def finish(self, stream: int, within_s: float, nap_s: float = 0.0) -> bool:
        """Polls until the stream is idle; whether it was in time. Nothing waits inside the driver."""
        deadline = time.monotonic() + within_s
        while not self.is_idle(stream):
            if time.monotonic() > deadline:
                return False
            time.sleep(nap_s)
        return True
