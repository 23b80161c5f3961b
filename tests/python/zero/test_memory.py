"""Accounting against the formulas of ZeRO: bytes per parameter, padding apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.memory import Memory
from ringdp.zero.optimizer import ZeroOptimizer
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Stock

WIDTH = 256


def counted(stage: int, dtype: torch.dtype, grad_dtype: torch.dtype | None = None) -> tuple[Memory, int]:
    """On a rank: what is held after a step; how many parameters there are."""
    torch.manual_seed(1)
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).to(dtype)
    ddp = DistributedDataParallel(module, zero_stage=stage, grad_dtype=grad_dtype, gradient_as_bucket_view=True)
    master = torch.float32 if dtype == torch.bfloat16 else None
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, master_dtype=master)
    ddp(torch.ones(2, WIDTH, dtype=dtype)).sum().backward()
    optimizer.step()
    assert ddp.memory() == optimizer.memory()
    return optimizer.memory(), sum(p.numel() for p in module.parameters())


# (parameters, gradients, state and master) per parameter; fractions of a rank are summed over ranks.
CASES = [
    (1, torch.float32, None, 4, 4, 8, 0),
    (2, torch.float32, None, 4, None, 8, 0),
    (1, torch.bfloat16, None, 2, 2, 8, 4),
    (2, torch.bfloat16, None, 2, None, 8, 4),
    (2, torch.bfloat16, torch.float32, 2, None, 8, 4),
    (3, torch.float32, None, 4, None, 8, 0),
    (3, torch.bfloat16, None, 2, None, 8, 4),
]


@pytest.mark.parametrize(("stage", "dtype", "grad_dtype", "parameters", "gradients", "state", "master"), CASES)
def test_bytes_are_those_of_the_formulas(trio, stage, dtype, grad_dtype, parameters, gradients, state, master):
    said = trio.run(counted, stage, dtype, grad_dtype)
    count = said[0][1]
    steps = 8 * 4 * 3  # a number per piece, at most
    if stage < 3:
        assert {memory.parameters for memory, _ in said} == {parameters * count}
        assert {memory.gathered for memory, _ in said} == {0}
    else:
        assert sum(memory.parameters for memory, _ in said) == parameters * count
        assert all(2 * parameters * count // 4 <= memory.gathered < 0.6 * parameters * count for memory, _ in said)
    assert 0 <= sum(memory.state for memory, _ in said) - state * count <= steps
    assert sum(memory.master for memory, _ in said) == master * count
    if gradients is not None:
        assert {memory.gradients for memory, _ in said} == {gradients * count}
    else:
        size = (grad_dtype or dtype).itemsize
        assert sum(memory.gradients for memory, _ in said) == size * count
    for memory, _ in said:
        assert memory.total == sum(vars(memory).values()) and f"{memory.total:,} bytes" in str(memory)


def bare() -> Memory:
    ddp = DistributedDataParallel(nn.Linear(4, 4, bias=False))
    return ddp.memory()


def test_without_an_optimizer_there_are_parameters(pair):
    assert [m.parameters for m in pair.run(bare)] == [64, 64]


def with_whole_ones(stage: int) -> list[Any]:
    """On a rank: before and after the optimizer is made; a frozen parameter, and one that is ignored."""
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 1, bias=False))
    module[0].weight.requires_grad_(False)
    module.ignored = nn.Parameter(torch.ones(50))
    Stock._set_params_and_buffers_to_ignore_for_model(module, ["ignored"])
    ddp = DistributedDataParallel(module, zero_stage=stage)
    before = ddp.memory()
    optimizer = ZeroOptimizer(module[1].parameters(), torch.optim.SGD)
    return [before.parameters, optimizer.memory().parameters, before.total - ddp.memory().total]


def test_parameters_that_nobody_steps_count(pair):
    whole = 4 * 50
    everything = 4 * (WIDTH * WIDTH + WIDTH) + whole
    for stage in (1, 2):
        for before, after, _ in pair.run(with_whole_ones, stage):
            assert before == after == everything
    (first, same, change), (second, *_) = pair.run(with_whole_ones, 3)
    assert first + second - whole == everything and same == first and change == 0
