"""Which blocks are compared: all of them in time, each within its parameter, the same on all ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from ringdp.tools.watch.blocks import BLOCK_BYTES, MOST_BLOCKS, Blocks, as_numbers


def blocks_of(model, ignored=()):
    return Blocks(SimpleNamespace(module=model, parameters_to_ignore=ignored))


@pytest.fixture
def model():
    layers = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(200, 3).double())
    layers.empty = torch.nn.Parameter(torch.empty(0))
    layers.whole = torch.nn.Parameter(torch.zeros(2 * BLOCK_BYTES, dtype=torch.int8), requires_grad=False)
    return layers


@pytest.mark.parametrize("stride", [1, 3, 64])
def test_every_block_has_its_turn(model, stride):
    blocks = blocks_of(model)
    assert len(blocks) == 4 + 1 + 1 + 1 + 2  # 240,000 bytes are four blocks
    places = {blocks.place(key * stride, 0) for key in range(20 * len(blocks))}
    assert len(places) == len(blocks)
    covered = dict.fromkeys(blocks.names, 0)
    for index, begin, end in places:
        covered[blocks.names[index]] += end - begin
    assert covered == {name: p.numel() for name, p in model.named_parameters() if p.numel()}


def test_fewer_blocks_are_the_first_of_more(model):
    blocks = blocks_of(model)
    for key in range(5):
        sums = blocks.sums(key, MOST_BLOCKS)
        assert len(sums) == MOST_BLOCKS == len(blocks.sums(key, 10**6)) and blocks.sums(key, 3) == sums[:3]


def test_one_bit_changes_the_sum_of_its_block_only(model):
    blocks = blocks_of(model)
    before = {key: blocks.sums(key, 1) for key in range(50)}
    with torch.no_grad():
        model[0].weight.view(-1).view(torch.int32)[20_000] ^= 1
    changed = {blocks.describe(key, 0) for key in range(50) if blocks.sums(key, 1) != before[key]}
    assert changed == {"elements 16,384 to 32,767 of 0.weight"}


def test_what_is_no_replica_is_left_out(model):
    model.meta = torch.nn.Parameter(torch.empty(3, device="meta"))
    model.turned = torch.nn.Parameter(torch.ones(3, 4).t())
    assert blocks_of(model, ignored=["0.bias"]).names == ["whole", "0.weight", "1.weight", "1.bias"]
    assert len(blocks_of(torch.nn.ReLU())) == 0 and blocks_of(torch.nn.ReLU()).sums(1, 4) == []


def test_sums_of_a_device_are_numbers_later():
    assert as_numbers([torch.tensor(0), torch.tensor(41), 7]) == [1, 42, 7]


def test_a_model_that_is_gone_is_not_kept_alive():
    blocks = blocks_of(torch.nn.Linear(2, 2))
    with pytest.raises(ReferenceError):
        blocks.sums(1, 1)
