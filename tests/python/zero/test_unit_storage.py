"""One unit's shards and memory."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.zero.bucket_plan import bucket_plans
from ringdp.zero.unit_storage import Blocks, Bucket, UnitStorage
from ringdp.zero.units import units_of
from torch import nn
from zero_rig import same


def storage_of(model: nn.Module, group: Any = None) -> UnitStorage:
    """The model as one unit, with the values of this rank."""
    group = dist.group.WORLD if group is None else group
    named = dict(model.named_parameters())
    blocks = Blocks(group)
    buckets = []
    for plan in bucket_plans(units_of(model, []), named, group.size()):
        parameters = [named[n] for n in plan.names]
        bucket = Bucket("all", parameters, plan, torch.device("cpu"), group, blocks)
        for place, parameter in enumerate(parameters):
            bucket.view(place).copy_(parameter.data)
        bucket.seal(None)
        buckets.append(bucket)
    return UnitStorage(0, "all", buckets, blocks)


def layers() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(70, 70), nn.Linear(70, 33).double(), nn.Linear(9, 9).requires_grad_(False))


def comes_and_goes() -> list[bool]:
    """On a rank: values before and after, that identities stay, and what a freed parameter says."""
    model, values = layers(), [p.detach().clone() for p in layers().parameters()]
    storage, found = storage_of(model), []
    for _ in range(3):
        storage.free()
        storage.free()  # nothing
        said = ""
        try:
            model[0].bias.sum()
        except RuntimeError as error:
            said = str(error)
        found.append("parameter 0.bias" in said and "unit all" in said and not storage.has_memory)
        storage.start()
        storage.wait()
        found.append(all(same(p, v) for p, v in zip(model.parameters(), values, strict=True)))
    return found


def test_values_come_back(trio):
    assert trio.run(comes_and_goes) == [[True] * 6] * 3


def test_one_rank_has_all_of_it(world_of):
    assert world_of(1).run(comes_and_goes) == [[True] * 6]


def parts() -> list[Any]:
    """On a rank: shards as they are, and bytes."""
    storage = storage_of(layers())
    whole = [b.view(0).untyped_storage() for b in storage.buckets]
    assert [w.nbytes() for w in whole] == [b.nbytes for b in storage.buckets]
    assert storage.nbytes == sum(b.nbytes for b in storage.buckets)
    shards = []
    for bucket in storage.buckets:
        flat = torch.empty(0, dtype=bucket.dtype).set_(bucket.view(0).untyped_storage())
        size = flat.numel() // HERE.size
        shards.append(same(bucket.shard, flat[HERE.rank * size :][:size]))
    return [all(shards), len(shards)]


def test_shards_are_equal_parts_padding_included(trio):
    assert trio.run(parts) == [[True, 3]] * 3


def lent() -> list[bool]:
    """On a rank: a value given by all, of other strides; and one that was put elsewhere."""
    model = layers()
    storage = storage_of(model)
    storage.free()
    bucket = next(b for b in storage.buckets if "0.weight" in b.plan.names)
    place = bucket.plan.names.index("0.weight")
    value = torch.arange(4900.0).view(70, 70).t()
    bucket.lend(place)
    with torch.no_grad():
        model[0].weight.copy_(value)
    bucket.take_back(place)
    found = [not storage.has_memory]
    storage.start()
    storage.wait()
    found.append(torch.equal(model[0].weight, value))
    model[0].bias.data = torch.full((70,), 4.0)
    bucket.recall()
    bucket.seal(0)
    storage.free()
    storage.start()
    storage.wait()
    found.append(bool((model[0].bias == 4).all()) and torch.equal(model[0].weight, value))
    return found


def test_values_can_be_given(trio):
    assert trio.run(lent) == [[True] * 3] * 3


def reused() -> list[int]:
    """On a rank: addresses of one unit's memory over time."""
    storage = storage_of(nn.Linear(64, 64))
    seen = set()
    for _ in range(4):
        seen.add(storage.buckets[0].view(0).data_ptr())
        storage.free()
        storage.start()
        storage.wait()
    return len(seen)


def test_memory_is_used_again(pair):
    assert pair.run(reused) == [1, 1]


def kept() -> list[bool]:
    blocks = Blocks(dist.group.WORLD)
    made = [blocks.take(4096, torch.device("cpu")) for _ in range(3)]
    for block in made:
        blocks.put(block)
    addresses = [b.data_ptr() for b in made]
    again = [blocks.take(4096, torch.device("cpu")).data_ptr() for _ in range(2)]
    other = blocks.take(8192, torch.device("cpu"))
    return [again == addresses[:0:-1], other.nbytes == 8192]


def test_two_blocks_are_kept(pair):
    assert pair.run(kept) == [[True, True]] * 2


def of_different_units() -> str:
    """On a rank: the error of ranks that gather units of different sizes, in a group that it ends."""
    group = dist.new_group(list(range(HERE.size)))
    storage = storage_of(layers() if HERE.rank else nn.Linear(9, 9), group)
    storage.free()
    try:
        storage.start()
        storage.wait()
    except dist.DistBackendError as error:
        return str(error)
    return ""


def test_ranks_that_gather_different_units_are_told_theirs(pair):
    for said in pair.run(of_different_units):
        assert said.startswith("Mismatch") and "This rank was gathering unit all (zero_stage=3)" in said
