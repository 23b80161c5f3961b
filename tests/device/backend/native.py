"""On a rank: the stand-in with a device of its own (SPIN; without shared memory NCCL), or a shared one (STREAM)."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import HERE
from stand_in import NCCL_LIBRARY, TYPE, StandIn, backend_of, here

EXECUTORS = ("SPIN", "STREAM")
WINDOW_BYTES = 1 << 20  # the least: larger tensors go in pieces
PATIENCE_S = 20.0


def device_for(executor: str) -> torch.device:
    """This rank's, for that executor."""
    return torch.device(TYPE, 0 if executor == "STREAM" else HERE.rank)


def arrive(library: str, executor: str) -> tuple[StandIn, dist.ProcessGroup]:
    """The stand-in, with as many devices as there are ranks and this rank's as the current one; a group on these."""
    os.environ["STAND_IN_DEVICES"] = str(HERE.size)
    os.environ.setdefault("RINGDP_NCCL", str(Path(library).with_name(NCCL_LIBRARY)))
    gpu = here(library)
    gpu.functions.stand_in_use_device(device_for(executor).index)
    return gpu, _group_for(library, executor)


@cache
def _group_for(library: str, executor: str) -> dist.ProcessGroup:
    return here(library).new_group()


def described(group: dist.ProcessGroup) -> str:
    """What the backend says about tensors of the device."""
    return next((line for line in backend_of(group).describe().splitlines() if line.startswith("tensors on ")), "")


def bits(tensor: torch.Tensor) -> bytes:
    """A tensor's elements as they lie in memory."""
    whole = tensor.cpu().clone(memory_format=torch.contiguous_format)
    return whole.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def is_void(tensor: torch.Tensor) -> bool:
    """Whether nothing is left in it but NaN."""
    return bool(torch.isnan(tensor.cpu()).all())
