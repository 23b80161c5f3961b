"""Planted differences are found with name, rank, element and values; equal ranks have none; shards are refused."""

from __future__ import annotations

import pytest
import ringdp
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel


def flip(tensor, element, bit):
    """One bit of one element, where it lies."""
    raw = tensor.detach().view(-1).view(torch.uint8)
    raw[element * tensor.element_size() + bit // 8] ^= 1 << (bit % 8)


def trained(width=40):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(width, 600), torch.nn.Linear(600, 3, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def plant(where, rank, element, bit, backend="ringdp"):
    from ranks import group_of

    model, optimizer = trained()
    places = {
        "weight": model[0].weight,
        "half": model[1].bias,
        "state": optimizer.state[model[0].weight]["exp_avg"],
        "step": optimizer.state[model[1].weight]["step"],
    }
    if dist.get_rank() == rank and where:
        flip(places[where], element, bit)
    found = ringdp.check_replicas(model, optimizer, group_of(backend))
    return bool(found), [(d.name, d.ranks, d.element) for d in found.differences], str(found), found.tensors


@pytest.mark.parametrize("backend", ["ringdp", "gloo"])
def test_equal_ranks_are_equal(trio, backend):
    for same, differences, text, tensors in trio.run(plant, None, 0, 0, 0, backend):
        assert same and differences == [] and tensors == 4 + 4 * 3
        assert "are the same on all ranks" in text


@pytest.mark.parametrize(
    ("where", "name", "element", "bit"),
    [
        ("weight", "0.weight", 23_999, 0),
        ("weight", "0.weight", 17_000, 31),
        ("half", "1.bias", 2, 15),
        ("state", "exp_avg of 0.weight", 5, 22),
        ("step", "step of 1.weight", 0, 23),
    ],
)
def test_one_flipped_bit_is_found(trio, where, name, element, bit):
    for same, differences, text, _ in trio.run(plant, where, 2, element, bit):
        assert not same and differences == [(name, (2,), element)]
        assert f"{name} differs on rank 2; first at element {element}, by rank: " in text


def test_of_two_ranks_both_are_named(pair):
    for _, differences, _, _ in pair.run(plant, "weight", 0, 7, 3):
        assert differences == [("0.weight", (0, 1), 7)]


def other_models():
    model = torch.nn.Linear(4, 4 + (dist.get_rank() == 1))
    with pytest.raises(RuntimeError, match=r"rank 0 has \('weight', \(4, 4\).* where rank 1 has \('weight', \(5, 4\)"):
        ringdp.check_replicas(model)
    with pytest.raises(RuntimeError, match="rank 0 has 2 tensors, rank 1 has 4"):
        ringdp.check_replicas(torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(1 + dist.get_rank()))))


def test_other_tensors_are_named(pair):
    pair.run(other_models)


def nested(rank_that_differs):
    parameter = torch.nn.Parameter(torch.ones(3))
    model = torch.nn.ParameterList([parameter])
    optimizer = torch.optim.LBFGS([parameter])
    optimizer.state[parameter]["old_dirs"] = [torch.ones(3), torch.ones(3)]
    optimizer.state[parameter]["more"] = {"deep": (1, 2.0, "text", None)}
    if dist.get_rank() == rank_that_differs:
        optimizer.state[parameter]["old_dirs"][1][2] = 5.0
    found = ringdp.check_replicas(model, optimizer)
    return found.tensors, [difference.name for difference in found.differences]


def test_state_within_lists_and_dicts_is_compared(trio):
    assert trio.run(nested, 2) == [(5, ["old_dirs[1] of 0"])] * 3
    assert trio.run(nested, None) == [(5, [])] * 3


def shards():
    model = torch.nn.Linear(64, 64)
    whole = ringdp.DistributedDataParallel(model, zero_stage=2)
    optimizer = ringdp.ZeroOptimizer(whole.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(NotImplementedError, match="ZeroOptimizer shards its state"):
        ringdp.check_replicas(whole, optimizer)
    assert ringdp.check_replicas(whole)
    sharded = ringdp.DistributedDataParallel(torch.nn.Linear(64, 64), zero_stage=3)
    with pytest.raises(NotImplementedError, match="zero_stage=3"):
        ringdp.check_replicas(sharded)
    fsdp = FullyShardedDataParallel(torch.nn.Linear(64, 64), device_id=torch.device("cpu"), use_orig_params=True)
    with pytest.raises(NotImplementedError, match="FullyShardedDataParallel shards parameters"):
        ringdp.check_replicas(torch.nn.Sequential(fsdp))


def test_shards_are_refused_by_name(pair):
    pair.run(shards)
