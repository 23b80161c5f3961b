"""Codes against a formula per element, and residuals."""

from __future__ import annotations

import math

import pytest
import torch
from ringdp.compress.codec import (
    BLOCK,
    NAMES,
    SPARSE_BLOCK,
    Codec,
    Coded,
    Float32,
    TopK,
    TopK2Bit,
    codecs_of,
    in_blocks,
)
from torch import Tensor

MOST = {"int8": 127, "int4": 7}
ROUNDED = [Coded("int8"), Coded("int4")]
SCALED = [*ROUNDED, Coded("fp8")]
LOSSY = [*SCALED, Coded("sign"), TopK(4), TopK(16), TopK2Bit(64), TopK2Bit(512)]


def there_and_back(codec: Codec, blocks: Tensor) -> Tensor:
    encoded = codec.encode(blocks)
    assert encoded.shape == (len(blocks), codec.block_bytes) and encoded.dtype == torch.uint8
    return codec.decode(encoded)


def test_float32_is_exact():
    blocks = torch.randn(3, BLOCK)
    blocks[0, :4] = torch.tensor([math.nan, math.inf, -0.0, 1e-44])
    assert there_and_back(Float32(), blocks).view(torch.int32).equal(blocks.view(torch.int32))


@pytest.mark.parametrize("codec", ROUNDED)
def test_a_code_is_the_nearest_multiple_of_the_scale(codec):
    blocks = torch.randn(5, BLOCK, generator=torch.Generator().manual_seed(MOST[codec.kind]))
    found, most = there_and_back(codec, blocks), MOST[codec.kind]
    for block, decoded in zip(blocks.double(), found.double(), strict=True):
        scale = float(block.abs().max()) / most
        assert float((block - decoded).abs().max()) <= scale * (0.5 + 1e-4)
        assert torch.allclose(decoded / scale, (decoded / scale).round(), atol=1e-4)
    assert len(found[0].unique()) > most / 2  # codes are used


@pytest.mark.parametrize("codec", ROUNDED)
def test_every_code_comes_back(codec):
    most = MOST[codec.kind]
    codes = torch.arange(-most, most + 1).float()
    for part in codes.split(BLOCK - 1):
        block = torch.cat([torch.tensor([float(most)]), part])  # so that the scale is 1
        blocks = in_blocks(block, 1)
        assert there_and_back(codec, blocks).equal(blocks)


@pytest.mark.parametrize("codec", LOSSY)
def test_blocks_do_not_know_each_other(codec):
    blocks = torch.randn(3, codec.block)
    blocks[1] = 0.0
    alone = [there_and_back(codec, block[None])[0] for block in blocks]
    assert torch.stack(alone).equal(there_and_back(codec, blocks))
    assert not alone[1].any()


@pytest.mark.parametrize("codec", [*SCALED, TopK2Bit(64)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_block_with_a_value_that_is_not_finite_is_nan(codec, value):
    blocks = torch.randn(2, codec.block)
    blocks[1, 77] = value
    found = there_and_back(codec, blocks)
    assert found[0].isfinite().all() and found[1].isnan().all()


@pytest.mark.parametrize("codec", SCALED)
def test_the_smallest_numbers_stay_in_the_residual_and_are_not_made_infinite(codec):
    """A scale that has no bits left would lose them, or make the largest value exceed the largest code."""
    least = 2.0**-149
    values = torch.tensor([least, -least, 0.0, 190 * least, -10 * least])
    for part in (values[:3], values):
        residuals = torch.zeros(len(part))
        decoded = codec.decode(codec.encode_with_feedback(part, residuals, 1)).flatten()[: len(part)]
        assert torch.equal(decoded + residuals, part) and decoded.isfinite().all()


def test_float8_is_torchs_of_values_by_the_scale():
    codec = Coded("fp8")
    blocks = torch.randn(5, 256, generator=torch.Generator().manual_seed(8))
    for block, decoded in zip(blocks, there_and_back(codec, blocks), strict=True):
        scale = block.abs().max() / 448
        assert torch.equal(decoded, (block / scale).to(torch.float8_e4m3fn).float() * scale)


def test_sign_has_the_mean_size():
    codec = Coded("sign")
    blocks = torch.randn(3, 512, generator=torch.Generator().manual_seed(9))
    blocks[1, :4] = torch.tensor([0.0, -0.0, 3.0, -1.0])
    blocks[2, 7] = math.inf
    first, second, third = there_and_back(codec, blocks)
    assert torch.allclose(first.abs(), blocks[0].abs().mean(), rtol=1e-6) and len(first.abs().unique()) == 1
    assert torch.equal(first.sign(), blocks[0].sign())
    assert torch.allclose(second.abs(), blocks[1].abs().sum() / 510, rtol=1e-6)
    assert second[:4].sign().tolist() == [1.0, 1.0, 1.0, -1.0]
    assert third.isnan().all()


@pytest.mark.parametrize("kept", [1, 2, 16, BLOCK])
def test_topk_keeps_the_largest_and_of_equal_ones_the_first(kept):
    blocks = torch.randn(3, BLOCK, generator=torch.Generator().manual_seed(kept))
    blocks[1] = torch.arange(BLOCK) % 4 - 1.5  # many are equal
    blocks[2, 5], blocks[2, 99] = math.nan, -math.inf
    found = there_and_back(TopK(kept), blocks)
    for block, decoded in zip(blocks.tolist(), found, strict=True):
        size = [math.inf if math.isnan(value) else abs(value) for value in block]
        order = sorted(range(BLOCK), key=lambda place: (-size[place], place))
        for place in range(BLOCK):
            wanted = torch.tensor(block[place]).bfloat16().float() if place in order[:kept] else torch.tensor(0.0)
            assert torch.equal(decoded[place], wanted) or (wanted.isnan() and decoded[place].isnan())


def in_two_bits(block: list[float], kept: int) -> list[float]:
    """The definition: signs, and the means of those sizes above the mean of all kept and of the others."""
    order = sorted(range(len(block)), key=lambda place: (-abs(block[place]), place))[:kept]
    sizes = {place: abs(block[place]) for place in order}
    middle = 0.0 if 0.0 in sizes.values() else math.fsum(sizes.values()) / kept
    found = [0.0] * len(block)
    for large in (False, True):
        own = [place for place in order if (sizes[place] > middle) == large]
        size = math.fsum(sizes[place] for place in own) / max(1, len(own))
        for place in own:
            found[place] = math.copysign(float(torch.tensor(size).bfloat16()), block[place])
    return found


@pytest.mark.parametrize("kept", [8, 64, 320, 344, 1024, SPARSE_BLOCK])
def test_two_bits_are_a_sign_and_one_of_two_magnitudes(kept):
    """Places are listed up to 340 of them."""
    blocks = torch.randn(5, SPARSE_BLOCK, generator=torch.Generator().manual_seed(kept))
    blocks[1] = torch.arange(SPARSE_BLOCK) % 4 - 1.5  # many are equal
    blocks[2, 7:] = 0.0  # fewer are not 0
    blocks[3, 11] = 3e38  # far above the others
    blocks[4] = -2.5
    found = there_and_back(TopK2Bit(kept), blocks)
    assert found.tolist() == [in_two_bits(block, kept) for block in blocks.tolist()]
    overflowing = torch.full((1, SPARSE_BLOCK), 3e38)
    assert there_and_back(TopK2Bit(kept), overflowing).isnan().all()


@pytest.mark.parametrize("codec", [*ROUNDED, TopK(4), TopK2Bit(8, 256)])
def test_what_is_left_out_comes_later(codec):
    """A value far below others of its block arrives on average, and would never without feedback."""
    values = torch.zeros(300)
    values[:8], values[20], values[150] = 1.0, 3e-3, 1e-3
    residuals, total, rounds = torch.zeros(300), torch.zeros(300), 4000
    for _ in range(rounds):
        total += codec.decode(codec.encode_with_feedback(values, residuals, 2)).flatten()[:300]
    assert torch.allclose(total + residuals, rounds * values, rtol=1e-2)  # nothing is lost
    assert total[20] > 0 and total[150] > 0
    assert codec.decode(codec.encode_with_feedback(values, torch.zeros(300), 2)).flatten()[20] == 0


def test_sizes_of_blocks():
    sizes = {name: tuple(codec.block_bytes for codec in codecs_of(name, 8)) for name in NAMES}
    assert sizes == {
        None: (1024, 1024),
        "int8": (260, 260),
        "int4": (132, 132),
        "topk": (12, 96),
        "topk-2bit": (116, 644),
    }
    assert codecs_of("topk", 1000).means.block_bytes == 3 * BLOCK
    assert codecs_of("topk-2bit", 1000).means.block_bytes == 4 + SPARSE_BLOCK // 8 + SPARSE_BLOCK // 4
