"""Tensors, stretches and pieces, and the errors that name them."""

from __future__ import annotations

import hashlib

import pytest
import ringdp
import torch
from ringdp.checkpoint.piece import CheckpointError, Piece, Spec, Stretch, reordered, sha256_of, spec_of, whole
from states import bits_of, odd_state


def test_a_spec_describes_a_tensor():
    spec = spec_of("exp_avg", "layer.weight", torch.zeros(3, 4, dtype=torch.bfloat16))
    assert (spec.key, spec.elements, spec.torch_dtype) == ("exp_avg/layer.weight", 12, torch.bfloat16)
    assert str(spec) == "exp_avg/layer.weight (bfloat16 [3, 4])"
    assert Stretch(spec, 2, 5).bytes == 10
    assert Stretch(spec, 2, 5).stop == 7


def test_a_dtype_that_torch_lacks_is_named():
    with pytest.raises(CheckpointError, match=r"master/w has the dtype float3"):
        _ = Spec("master", "w", (1,), "float3").torch_dtype


def test_a_whole_tensor_is_taken_in_row_major_order_whatever_its_strides_are():
    tensor = torch.arange(12.0).view(3, 4).t()
    assert whole("parameter", "w", tensor).tensor.tolist() == tensor.contiguous().view(-1).tolist()


def test_a_whole_contiguous_tensor_is_not_copied():
    tensor = torch.arange(6.0).view(2, 3)
    assert whole("parameter", "w", tensor).tensor.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize(
    ("offset", "tensor"), [(0, torch.zeros(2, 3)), (5, torch.zeros(2)), (-1, torch.zeros(2)), (0, torch.zeros(7))]
)
def test_what_is_no_flat_piece_of_the_tensor_is_refused(offset, tensor):
    with pytest.raises(CheckpointError, match=r"not a flat piece of parameter/w \(float32 \[2, 3\]\)"):
        _ = Piece("parameter", "w", (2, 3), offset, tensor).stretch


def test_elements_can_be_counted_in_the_order_of_memory():
    image = torch.arange(120).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    memory = image.as_strided((120,), (1,))
    rows, order = spec_of("parameter", "w", image), (0, 2, 3, 1)
    assert reordered(image.reshape(-1), rows, order).tolist() == memory.tolist()
    stored = Piece("parameter", "w", (2, 3, 4, 5), 0, memory, order).stretch.spec
    assert stored.row_major == rows != stored
    assert reordered(memory, stored, ()).tolist() == image.reshape(-1).tolist()
    turned = (3, 0, 1, 2)
    assert reordered(memory, stored, turned).tolist() == image.permute(turned).reshape(-1).tolist()


def test_an_order_that_is_no_permutation_is_refused():
    with pytest.raises(CheckpointError, match=r"has the order \[0, 0\], not a permutation"):
        _ = Piece("parameter", "w", (2, 3), 0, torch.zeros(6), (0, 0)).stretch


def test_the_hash_is_that_of_the_bytes():
    for tensor in odd_state(3).values():
        flat = tensor.reshape(-1)
        assert sha256_of(flat) == hashlib.sha256(bits_of(flat)).hexdigest()
    strided = torch.arange(10.0)[::2]
    assert sha256_of(strided) == hashlib.sha256(bits_of(strided)).hexdigest()


def test_it_is_public_and_a_runtime_error():
    assert ringdp.checkpoint.CheckpointError is CheckpointError
    assert issubclass(CheckpointError, RuntimeError)
