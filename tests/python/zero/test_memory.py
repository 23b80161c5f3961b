"""Accounting against the formulas of ZeRO, and memory that comes and goes under what autograd has saved."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from ringdp import _native
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
        gathered = sum(memory.gathered for memory, _ in said)  # once for all ranks
        assert 2 * parameters * count // 4 <= gathered < 0.6 * parameters * count
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


# csrc/zero/transient_storage.cc: memory that comes and goes under tensors that autograd has saved.

_C = _native.load()


def test_a_tensor_without_memory_has_everything_else():
    for like in (torch.ones(3, 4).t(), torch.ones(()), torch.ones(0, 3), torch.ones(2, dtype=torch.complex64)):
        absent = _C.without_memory(like, "it is gone")
        assert (absent.shape, absent.stride(), absent.dtype) == (like.shape, like.stride(), like.dtype)
        assert absent.untyped_storage().nbytes() == like.untyped_storage().nbytes()
        if like.numel():
            with pytest.raises(RuntimeError, match="it is gone"):
                absent.sum()


READS = {
    "sum": lambda t: t.sum(),
    "item": lambda t: t[0].item(),
    "copy from": lambda t: torch.zeros(6).copy_(t),
    "copy to": lambda t: t.copy_(torch.zeros(6)),
    "multiply": lambda t: t.view(2, 3) @ t.view(3, 2),
    "view": lambda t: t.view(2, 3).t().clone(),
    "numpy": lambda t: t.numpy(),
    "address": lambda t: t.data_ptr(),
    "print": lambda t: repr(t),
    "save": lambda t: torch.save(t, io.BytesIO()),
    "fill": lambda t: t.fill_(3),
}


@pytest.mark.parametrize("read", READS)
def test_whoever_touches_it_is_told(read):
    tensor = torch.arange(6.0)
    kept = _C.take_memory(tensor, "unit 7 is freed")
    with pytest.raises(RuntimeError, match="unit 7 is freed"):
        READS[read](tensor)
    assert torch.equal(kept.view(torch.float32), torch.arange(6.0))


def test_memory_goes_back_to_the_same_tensor():
    tensor = torch.arange(6.0)
    view, address = tensor[2:].view(2, 2), tensor.data_ptr()
    kept = _C.take_memory(tensor, "gone")
    assert kept.data_ptr() == address and kept.nbytes == 24
    _C.give_memory(tensor, kept)
    assert torch.equal(view, torch.tensor([[2.0, 3.0], [4.0, 5.0]])) and tensor.data_ptr() == address
    assert kept.untyped_storage().nbytes() == 0
    view.fill_(9)
    assert tensor.sum() == 37


def test_too_little_memory_is_refused():
    tensor = torch.ones(6)
    _C.take_memory(tensor, "gone")
    with pytest.raises(RuntimeError, match="24 bytes does not fit into 20"):
        _C.give_memory(tensor, torch.empty(20, dtype=torch.uint8))


def test_what_autograd_has_saved_comes_back_with_the_memory():
    """A view of the weight, and the weight itself, are saved; their values are away between forward and backward."""
    flat = torch.randn(12)
    weight = torch.nn.Parameter(torch.empty(3, 4))
    absent = _C.without_memory(weight, "weight is freed")
    _C.set_values([weight], [flat.view(3, 4)])
    x = torch.randn(2, 4, requires_grad=True)
    expected = torch.autograd.grad(((x @ weight.t()) * weight.sum() * weight[0, 0]).sum(), [x, weight])
    loss = ((x @ weight.t()) * weight.sum() * weight[0, 0]).sum()
    _C.set_values([weight], [absent])
    kept = _C.take_memory(flat, "flat is freed")
    with pytest.raises(RuntimeError, match="is freed"):
        torch.autograd.grad(loss, [x, weight], retain_graph=True)
    _C.give_memory(flat, kept.clone())
    _C.set_values([weight], [flat.view(3, 4)])
    found = torch.autograd.grad(loss, [x, weight])
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_lists_go_together():
    with pytest.raises(RuntimeError, match="0 values for 1 parameters"):
        _C.set_values([torch.nn.Parameter(torch.ones(1))], [])
