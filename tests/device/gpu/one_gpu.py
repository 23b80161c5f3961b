"""What tests of real GPUs have in common: whether there is one, the library's functions, and inputs as bytes.

$GPU_STAND_IN, the library of the stand-in as tests/device/stand_in/stand_in.py builds it, is used in place of a GPU by
those that do not need torch's device cuda: so that they are known to run before there is a GPU.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from devices.core import Core, CoreError
from devices.core import open_core as open_library
from devices.one_process import Place
from devices.place import CudaPlace
from devices.plan import Problem, plan_of
from oracle import bytes_of, fold, values
from ranks import HERE
from stand_in import NCCL_LIBRARY, TYPE, StandInPlace, here, loaded

STAND_IN = os.environ.get("GPU_STAND_IN", "")
DEVICE = TYPE if STAND_IN else "cuda"  # of tensors
WORLDS = [1, 2, 4, 8]
SUMMED = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64]


def require(*, cuda: bool = False) -> None:
    """At the top of a test file: skips all of it where there is no GPU, or no library. Ranks load the file, too.

    cuda: it needs torch's device of this name.
    """
    if HERE.rank >= 0:
        return
    if not torch.cuda.is_available() and (cuda or not STAND_IN):
        pytest.skip("no GPU that torch can use", allow_module_level=True)
    # Read when CUDA starts: streams that share a hardware queue would wait for one another.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    try:
        open_core()
    except CoreError as error:
        pytest.skip(f"the CUDA part: {error}", allow_module_level=True)


def open_core() -> Core:
    """The library's functions, with a device."""
    if STAND_IN:
        loaded(STAND_IN)  # before ringdp looks for its library
    return open_library()


def require_several(least: int) -> None:
    """At the top of a test file, behind require(): skips all of it on fewer devices."""
    if HERE.rank < 0 and (count := open_core().count()) < least:
        pytest.skip(f"it needs {least} GPUs, and there are {count}", allow_module_level=True)


def device_at(index: int) -> str:
    """For tensors."""
    return f"{DEVICE}:{index}"


def use(index: int) -> str:
    """On a rank: makes this device the current one; its name."""
    if STAND_IN:
        os.environ["RINGDP_NCCL"] = str(Path(STAND_IN).with_name(NCCL_LIBRARY))  # which torch has not loaded there
        here(STAND_IN).functions.stand_in_use_device(index)
    else:
        torch.cuda.set_device(index)
    return device_at(index)


def described() -> str:
    """On a rank: what group()'s backend says of tensors on devices."""
    lines = group()._get_backend(torch.device(DEVICE)).describe().splitlines()
    return next((line for line in lines if line.startswith("tensors on ")), "")


def group() -> dist.ProcessGroup:
    """On a rank: all ranks, for tensors on DEVICE. Collective at its first use."""
    return here(STAND_IN).group if STAND_IN else dist.group.WORLD


def place() -> Place:
    """Where streams come from."""
    return StandInPlace(STAND_IN) if STAND_IN else CudaPlace()


def name_of(dtype: torch.dtype) -> str:
    """As the plans call it."""
    return str(dtype).removeprefix("torch.")


def dtype_of(problem: Problem) -> torch.dtype:
    """torch's."""
    return getattr(torch, problem.dtype)


def inputs_of(problem: Problem, label: str = "") -> list[torch.Tensor]:
    """What every rank brings; anybody can make anybody's."""
    dtype = dtype_of(problem)
    count = plan_of(problem, 0).input_bytes // dtype.itemsize
    return [values(f"{problem.collective} {label}", rank, count, dtype) for rank in range(problem.world)]


def has_output(problem: Problem, rank: int) -> bool:
    """Whether it gets anything; else what lies there is nobody's to look at."""
    if problem.collective == "broadcast" and problem.world > 1:
        return rank != problem.root
    return problem.collective not in ("reduce", "gather") or rank == problem.root


def expected(problem: Problem, inputs: list[torch.Tensor], rank: int) -> bytes:
    """What this rank's output must hold: the serial fold in rank order, or what was moved."""
    parts = [tensor.chunk(problem.world) for tensor in inputs]
    results = {
        "all_reduce": lambda: fold(inputs, problem.op),
        "reduce_scatter": lambda: fold([part[rank] for part in parts], problem.op),
        "reduce": lambda: fold(inputs, problem.op),
        "broadcast": lambda: inputs[problem.root],
        "all_gather": lambda: torch.cat(inputs),
        "gather": lambda: torch.cat(inputs),
        "scatter": lambda: inputs[problem.root].chunk(problem.world)[rank],
        "all_to_all": lambda: torch.cat([part[rank] for part in parts]),
    }
    return bytes_of(results[problem.collective]().contiguous())
