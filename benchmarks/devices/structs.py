"""The structures of the C interface (csrc/gpu/ringdp_gpu.h, csrc/gpu/device/work.h and adam_work.h)."""

from __future__ import annotations

import ctypes

MAX_RANKS, MAX_BLOCKS, MAX_STEPS, STEP_BYTES = 8, 64, 192, 64
FLAGS_BYTES, EPOCH_BYTES = 4 * MAX_BLOCKS * MAX_RANKS * 128, 16
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
