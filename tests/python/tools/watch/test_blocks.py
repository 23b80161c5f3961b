"""Which blocks are compared: all of them in time, each within its parameter, the same on all ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from ringdp.tools.watch.blocks import BLOCK_BYTES, LANES, Blocks, as_number


def blocks_of(model, ignored=()):
    return Blocks(SimpleNamespace(module=model, parameters_to_ignore=ignored))


@pytest.fixture
def model():
    layers = torch.nn.Sequential(torch.nn.Linear(600, 400), torch.nn.Linear(400, 3).double())
    layers.empty = torch.nn.Parameter(torch.empty(0))
    layers.whole = torch.nn.Parameter(torch.zeros(2 * BLOCK_BYTES, dtype=torch.int8), requires_grad=False)
    return layers


def test_blocks_are_all_of_the_parameters(model):
    blocks = blocks_of(model)
    assert len(blocks) == 4 + 1 + 1 + 1 + 2  # 960,000 bytes are four blocks
    covered = dict.fromkeys(blocks.names, 0)
    for index, begin, end in map(blocks.place, range(len(blocks))):
        covered[blocks.names[index]] += end - begin
    assert covered == {name: p.numel() for name, p in model.named_parameters() if p.numel()}


@pytest.mark.parametrize("size", [1, 9, 16, 17, 25, 100, 1000])
@pytest.mark.parametrize(("count", "stride"), [(1, 1), (2, 1), (8, 1), (32, 1), (1, 2), (1, 4), (1, 32)])
def test_every_block_has_its_turn_at_every_number_of_them(size, count, stride):
    blocks = blocks_of(torch.nn.ParameterList(torch.zeros(1) for _ in range(size)))
    looks = -(-(size | 1) // count)  # no more than it must be
    seen = [block for look in range(0, looks * stride, stride) for block in blocks.chosen(look, count)]
    assert set(seen) == set(range(size))


def test_fewer_blocks_are_the_first_of_more(model):
    blocks = blocks_of(model)
    for look in range(50):
        chosen = blocks.chosen(look, LANES)
        assert chosen == blocks.chosen(look, 10**6) and set(blocks.chosen(look, 4)) <= set(chosen)
        assert [block for block, _ in blocks.sums(look, 4)] == blocks.chosen(look, 4)


def test_one_bit_changes_the_sum_of_its_block_only(model):
    blocks = blocks_of(model)
    before = dict(pair for look in range(20) for pair in blocks.sums(look, LANES))
    with torch.no_grad():
        model[0].weight.view(-1).view(torch.int32)[80_000] ^= 1
    after = dict(pair for look in range(20) for pair in blocks.sums(look, LANES))
    changed = {blocks.describe(block) for block in after if after[block] != before[block]}
    assert changed == {"elements 65,536 to 131,071 of 0.weight"}


def test_what_is_no_replica_is_left_out(model):
    model.meta = torch.nn.Parameter(torch.empty(3, device="meta"))
    model.turned = torch.nn.Parameter(torch.ones(3, 4).t())
    assert blocks_of(model, ignored=["0.bias"]).names == ["whole", "0.weight", "1.weight", "1.bias"]
    assert len(blocks_of(torch.nn.ReLU())) == 0 and blocks_of(torch.nn.ReLU()).sums(1, 4) == []


def test_sums_of_a_device_are_numbers_later():
    assert [as_number(value) for value in (torch.tensor(0), torch.tensor(41), 7)] == [1, 42, 7]


def test_a_model_that_is_gone_is_not_kept_alive():
    blocks = blocks_of(torch.nn.Linear(2, 2))
    with pytest.raises(ReferenceError):
        blocks.sums(0, LANES)
