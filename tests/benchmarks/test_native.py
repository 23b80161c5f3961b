"""The C half of a race: patterns that a check must find wrong, and limits that must move what they say."""

from __future__ import annotations

import ctypes

import pytest
import torch
from race.native import DTYPES, Block

SEEDS = [11, 222, 3333]


def filled(native, dtype, count, seed, first=0):
    """`count` elements of the pattern from `first` on."""
    whole = torch.empty(first + count, dtype=getattr(torch, dtype))
    getattr(native, f"race_fill_{dtype}")(whole.data_ptr(), first + count, seed)
    return whole[first:].clone()


def wrong(native, dtype, tensor, first=0, seeds=SEEDS):
    array = (ctypes.c_uint32 * len(seeds))(*seeds)
    return getattr(native, f"race_wrong_{dtype}")(tensor.data_ptr(), tensor.numel(), first, array, len(seeds))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", [0, 5, 1024])
def test_a_sum_is_right_and_every_single_damage_is_seen(native, dtype, first):
    total = sum(filled(native, dtype, 3000, seed, first).double() for seed in SEEDS).to(getattr(torch, dtype))
    assert wrong(native, dtype, total, first) == 0
    for place in (0, 1023, 1024, 2999):
        damaged = total.clone()
        damaged[place] += 1
        assert wrong(native, dtype, damaged, first) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_ranks_rounds_and_places_give_other_values(native, dtype):
    mine = filled(native, dtype, 4096, 1)
    assert set(mine.tolist()) == set(range(-4, 4))
    for other in (filled(native, dtype, 4096, 2), filled(native, dtype, 4096, 1, first=1)):
        assert (mine == other).float().mean() < 0.2


@pytest.mark.parametrize("dtype", DTYPES)
def test_minus_zero_is_zero(native, dtype):
    assert wrong(native, dtype, torch.zeros(10, dtype=getattr(torch, dtype)).neg(), seeds=[]) == 0


def test_fold_and_scale(native):
    parts = torch.arange(3 * 1500, dtype=torch.float32)
    out = torch.empty(1500)
    native.race_fold(out.data_ptr(), parts.data_ptr(), 1500, 3)
    assert torch.equal(out, parts.view(3, 1500).sum(0))
    native.race_scale(out.data_ptr(), 1500, -2.0)
    assert torch.equal(out, -2 * parts.view(3, 1500).sum(0))


def test_the_block_is_what_c_says(native):
    assert 0 <= native.race_block_bytes() - ctypes.sizeof(Block) < 128
