"""Codes against a formula per element, and what is owed."""

from __future__ import annotations

import math

import pytest
import torch
from ringdp.local.codec import BLOCK, CODECS, FLOAT32, Codec, in_blocks
from torch import Tensor

LOSSY = [codec for codec in CODECS.values() if not codec.is_exact]


def there_and_back(codec: Codec, blocks: Tensor) -> Tensor:
    encoded = codec.encode(blocks)
    assert encoded.shape == (len(blocks), codec.block_bytes) and encoded.dtype == torch.uint8
    return codec.decode(encoded)


def test_float32_is_exact():
    blocks = torch.randn(3, BLOCK)
    blocks[0, :4] = torch.tensor([math.nan, math.inf, -0.0, 1e-44])
    assert there_and_back(FLOAT32, blocks).view(torch.int32).equal(blocks.view(torch.int32))


@pytest.mark.parametrize("codec", LOSSY)
def test_a_code_is_the_nearest_multiple_of_the_scale(codec):
    blocks = torch.randn(5, BLOCK, generator=torch.Generator().manual_seed(codec.bits))
    found, most = there_and_back(codec, blocks), 2 ** (codec.bits - 1) - 1
    for block, decoded in zip(blocks.double(), found.double(), strict=True):
        scale = float(block.abs().max()) / most
        assert float((block - decoded).abs().max()) <= scale * (0.5 + 1e-4)
        assert torch.allclose(decoded / scale, (decoded / scale).round(), atol=1e-4)
    assert len(found[0].unique()) > most / 2  # codes are used


@pytest.mark.parametrize("codec", LOSSY)
def test_every_code_comes_back(codec):
    most = 2 ** (codec.bits - 1) - 1
    codes = torch.arange(-most, most + 1).float()
    for part in codes.split(BLOCK - 1):
        block = torch.cat([torch.tensor([float(most)]), part])  # so that the scale is 1
        blocks = in_blocks(block, 1)
        assert there_and_back(codec, blocks).equal(blocks)


@pytest.mark.parametrize("codec", LOSSY)
def test_blocks_do_not_know_each_other(codec):
    blocks = torch.randn(3, BLOCK)
    blocks[1] = 0.0
    alone = [there_and_back(codec, block[None])[0] for block in blocks]
    assert torch.stack(alone).equal(there_and_back(codec, blocks))
    assert not alone[1].any()


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_block_with_a_value_that_is_not_finite_is_nan(codec, value):
    blocks = torch.randn(2, BLOCK)
    blocks[1, 77] = value
    found = there_and_back(codec, blocks)
    assert found[0].isfinite().all() and found[1].isnan().all()


@pytest.mark.parametrize("codec", LOSSY)
def test_the_smallest_numbers_are_owed_and_not_made_infinite(codec):
    owed = torch.zeros(3)
    decoded = codec.decode(codec.encode_owing(torch.tensor([1e-45, -1e-45, 0.0]), owed, 1)).flatten()[:3]
    assert torch.equal(decoded + owed, torch.tensor([1e-45, -1e-45, 0.0]))


@pytest.mark.parametrize("codec", LOSSY)
def test_what_is_left_out_comes_later(codec):
    """A value far below the scale of its block arrives on average, and would never without feedback."""
    values = torch.zeros(200)
    values[0], values[1], values[150] = 1.0, 3e-4, 2e-4
    owed, total, rounds = torch.zeros(200), torch.zeros(200), 2000
    for _ in range(rounds):
        total += codec.decode(codec.encode_owing(values, owed, 2)).flatten()[:200]
    assert torch.allclose(total / rounds, values, atol=1.5 / 7 / rounds * 2, rtol=1e-3)
    assert codec.decode(codec.encode_owing(values, torch.zeros(200), 2)).flatten()[1] == 0


def test_sizes_of_blocks():
    assert [CODECS[name].block_bytes for name in (None, "int8", "int4")] == [512, 132, 68]
