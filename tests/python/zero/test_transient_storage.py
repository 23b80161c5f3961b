"""csrc/zero/transient_storage.cc: memory that comes and goes under tensors that autograd has saved."""

from __future__ import annotations

import io

import pytest
import torch
from ringdp import _native

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
