"""Units, which parameters are gathered together, and their buckets: layout, memory, this rank's shards."""

from __future__ import annotations

import time
from collections import OrderedDict
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, error_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero import unit_storage
from ringdp.zero.flat import in_memory_order
from ringdp.zero.unit_storage import Blocks, Bucket, ShardedParameters, UnitStorage, bucket_plans
from ringdp.zero.units import Unit, units_of
from small_models import fresh
from torch import nn
from unit_models import MODELS, Block
from zero_rig import same


def names(model: nn.Module, **arguments: object) -> list[str]:
    units = units_of(model, **arguments)
    whole = sum(p.numel() for n, p in model.named_parameters() if p.is_floating_point())
    assert sum(u.elements for u in units) == whole
    assert sum(len(u.parameters) for u in units) == sum(p.is_floating_point() for p in model.parameters())
    return [u.name for u in units]


class Call(nn.Module):
    """Children by name, with a forward."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: object) -> object:
        return x


def test_a_model_without_containers_is_one_unit():
    assert names(Call(a=nn.Linear(3, 3), b=nn.Linear(3, 3))) == ["(model)"]


def test_blocks_and_what_lies_beside_them_are_units():
    assert names(MODELS["stack"]()) == ["(model)", "first", "blocks.0", "blocks.1", "blocks.2", "last"]


def test_a_sequential_is_its_children():
    assert names(nn.Sequential(Block(4), nn.Tanh(), Block(4))) == ["0", "2"]


def test_only_what_holds_most_of_the_model_is_divided_further():
    inner = Call(layers=nn.ModuleList([Block(8), Block(8)]), norm=nn.LayerNorm(8))
    assert names(Call(inner=inner, head=nn.Linear(8, 2))) == ["inner.layers.0", "inner.layers.1", "inner.norm", "head"]
    small = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert names(Call(small=small, large=nn.Linear(50, 50))) == ["small", "large"]


def test_what_nobody_calls_is_divided_at_any_size():
    """A list has no forward, so its hooks would never run."""
    parts = nn.ModuleDict({"x": nn.Linear(2, 2), "y": nn.ParameterList([nn.Parameter(nn.Linear(2, 2).weight)])})
    model = Call(parts=parts, large=nn.Linear(50, 50))
    assert names(model) == ["(model)", "parts.x", "large"]
    assert units_of(model)[0].parameters == ("parts.y.0",)


def test_modules_and_classes_may_be_chosen():
    model = MODELS["stack"]()
    assert names(model, chosen=[]) == ["(model)"]
    assert names(model, chosen=[Block]) == ["(model)", "blocks.0", "blocks.1", "blocks.2"]
    nested = names(model, chosen=[model.blocks[1], model.blocks[1].mix])
    assert nested == ["(model)", "blocks.1", "blocks.1.mix"]


def test_shared_parameters_belong_to_the_first_and_are_needed_by_all():
    model = MODELS["tied"]()
    by_name = {u.name: u for u in units_of(model)}
    assert by_name["blocks.0"].modules == ("blocks.0", "back")
    assert "back" not in by_name
    twice = nn.Linear(3, 3)
    shared = Call(a=nn.Sequential(OrderedDict(x=twice)), b=Call(y=twice, z=nn.Linear(9, 9)))
    units = {u.name: u for u in units_of(shared)}
    assert units["a"].modules == ("a", "b.y")


def test_a_module_that_is_there_twice_is_one_unit():
    layer = nn.Linear(4, 4)
    assert [u.modules for u in units_of(nn.Sequential(layer, nn.Tanh(), layer))] == [("0",)]


def test_integers_and_ignored_parameters_stay_whole():
    units = units_of(MODELS["frozen"](), ignored={"scale"})
    assert not {"scale", "steps"} & {name for unit in units for name in unit.parameters}


def test_units_can_be_printed():
    assert str(Unit("blocks.0", ("a", "b"), ("blocks.0",), 1234)) == "blocks.0: 1,234 elements in 2 parameters"


@pytest.mark.parametrize(
    ("chosen", "error", "named"),
    [
        ([nn.Conv2d], ValueError, "Conv2d"),
        ([nn.Linear(3, 3)], ValueError, "Linear"),
        ([nn.ModuleList], ValueError, "blocks has no forward"),
        (["blocks.0"], TypeError, "'blocks.0'"),
        ([int], TypeError, "int"),
        (Block, TypeError, "must be a list"),
    ],
    ids=str,
)
def test_a_bad_choice_is_named(chosen, error, named):
    with pytest.raises(error, match=named):
        units_of(MODELS["stack"](), chosen)


# The buckets of units: their layout, their memory, and this rank's shards of them.


@pytest.mark.parametrize("kind", MODELS)
def test_every_parameter_has_one_place(kind):
    model = MODELS[kind]()
    named, units = dict(model.named_parameters()), units_of(model)
    plans = bucket_plans(units, named, 3)
    assert sorted(n for p in plans for n in p.names) == sorted(n for u in units for n in u.parameters)
    for plan in plans:
        assert set(plan.names) <= set(units[plan.unit].parameters)
        assert len({named[n].dtype for n in plan.names}) == 1
        assert {named[n].requires_grad for n in plan.names} == {plan.trainable}


@pytest.mark.parametrize("kind", ["frozen", "types"])
def test_numbers_are_those_of_the_reducer(kind):
    """It is given the trainable parameters in the model's order."""
    model = MODELS[kind]()
    named = dict(model.named_parameters())
    trainable = [n for n, p in named.items() if p.requires_grad]
    for plan in bucket_plans(units_of(model), named, 2):
        if plan.trainable:
            members = plan.layout.buckets[plan.number]
            assert tuple(trainable[m] for m in members) == plan.names
            assert plan.layout.padded(plan.number) >= sum(named[n].numel() for n in plan.names)


def test_the_last_units_come_first():
    model = MODELS["stack"]()
    units = [p.unit for p in bucket_plans(units_of(model), dict(model.named_parameters()), 2)]
    assert units == sorted(units, reverse=True)


def storage_of(model: nn.Module, group: Any = None) -> UnitStorage:
    """The model as one unit, with the values of this rank."""
    group = dist.group.WORLD if group is None else group
    named = dict(model.named_parameters())
    blocks = Blocks(group, torch.device("cpu"))
    buckets = []
    for plan in bucket_plans(units_of(model, []), named, group.size()):
        parameters = [named[n] for n in plan.names]
        bucket = Bucket("all", parameters, plan, torch.device("cpu"), group, blocks)
        for place, parameter in enumerate(parameters):
            bucket.view(place).copy_(parameter.data)
        bucket.write_shard(None)
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
        said = error_of(model[0].bias.sum)
        found.append("parameter 0.bias" in said and "unit all" in said and not storage.has_memory)
        storage.start()
        storage.wait()
        found.append(all(same(p, v) for p, v in zip(model.parameters(), values, strict=True)))
    return found


def test_values_come_back(trio):
    assert trio.run(comes_and_goes) == [[True] * 6] * 3


@pytest.mark.parametrize("shared", [False, True])
@on_ranks(2, [False, True])
def test_a_unit_that_is_on_its_way_cannot_be_read(shared: bool) -> list[bool]:
    """Its memory holds what another unit has left there. Whether it can be read before wait(), and is right after."""
    model, values = layers(), [p.detach().clone() for p in layers().parameters()]
    storage = storage_of(model)
    storage.free()
    if HERE.rank == 1:
        time.sleep(0.1)
    storage.start(shared=shared)
    early = any(not error_of(torch.clone, parameter) for parameter in model.parameters())
    storage.wait()
    return [early, all(map(torch.equal, model.parameters(), values))]


def test_one_rank_has_all_of_it(world_of):
    assert world_of(1).run(comes_and_goes) == [[True] * 6]


@on_ranks(3, [True, 3])
def test_shards_are_equal_parts_padding_included() -> list[Any]:
    """Shards as they are, and bytes."""
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


@on_ranks(3, [True] * 3)
def test_values_can_be_given() -> list[bool]:
    """A value given by all, of other strides; and one that was put elsewhere."""
    model = layers()
    storage = storage_of(model)
    storage.free()
    bucket = next(b for b in storage.buckets if "0.weight" in b.plan.names)
    place = bucket.plan.names.index("0.weight")
    value = torch.arange(4900.0).view(70, 70).t()
    bucket.lend_memory(place)
    with torch.no_grad():
        model[0].weight.copy_(value)
    bucket.keep_part(place)
    found = [not storage.has_memory]
    storage.start()
    storage.wait()
    found.append(torch.equal(model[0].weight, value))
    model[0].bias.data = torch.full((70,), 4.0)
    bucket.restore_views()
    bucket.write_shard(0)
    storage.free()
    storage.start()
    storage.wait()
    found.append(bool((model[0].bias == 4).all()) and torch.equal(model[0].weight, value))
    return found


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_memory_is_used_again(world_of, transport):
    """Shared and own."""
    assert world_of(2, transport=transport).run(addresses) == [1, 1]


def addresses() -> int:
    """On a rank: of one unit's memory over time."""
    storage = storage_of(nn.Linear(64, 64))
    seen = set()
    for _ in range(4):
        storage.free()
        dist.barrier()  # all ranks have returned what they share
        storage.start()
        storage.wait()
        seen.add(storage.buckets[0].view(0).data_ptr())
    return len(seen)


@on_ranks(2, [True, True], transport="tcp")  # where nothing is shared
def test_two_blocks_are_kept() -> list[bool]:
    blocks = Blocks(dist.group.WORLD, torch.device("cpu"))
    made = [blocks.take(4096) for _ in range(3)]
    for block in made:
        blocks.put(block)
    addresses = [b.data_ptr() for b in made]
    again = [blocks.take(4096).data_ptr() for _ in range(2)]
    other = blocks.take(8192)
    return [again == addresses[:0:-1], other.nbytes == 8192]


@on_ranks(2, error=("DistBackendError: Mismatch", "This rank was gathering unit all (zero_stage=3)"))
def test_ranks_that_gather_different_units_are_told_theirs() -> None:
    """The error of ranks that gather units of different sizes, in a group that it ends."""
    group = dist.new_group(list(range(HERE.size)))
    storage = storage_of(layers() if HERE.rank else nn.Linear(9, 9), group)
    storage.free()
    storage.start()
    storage.wait()


@pytest.mark.parametrize("shared", [False, True])
@on_ranks(2, True)
def test_a_unit_whose_gather_cannot_start_is_free_again(shared: bool) -> bool:
    """As when its group has failed meanwhile; of units of its own, and of shared ones after the first call."""
    unit = storage_of(layers())
    unit.free()
    owner, name = (dist, "broadcast") if shared else (unit_storage, "all_gather")
    original = getattr(owner, name)
    setattr(owner, name, fails)
    try:
        start = partial(unit.start, shared=shared)
        assert "PeerLost" in error_of(start, kind=dist.DistBackendError)
    finally:
        setattr(owner, name, original)
    for bucket in unit.buckets:
        bucket.check_free()
        assert "after they were freed" in error_of(torch.clone, bucket.view(0))  # its memory is free for another unit
    unit.start()
    unit.wait()
    return unit.has_memory


def fails(*arguments: object, **options: object) -> None:
    raise dist.DistBackendError("PeerLost: rank 1 is gone")


def held(kind: str, trainable: bool = True) -> tuple[Any, ShardedParameters]:
    ddp = DistributedDataParallel(fresh(MODELS[kind]), zero_stage=3)
    sharded = ddp.sharded_model
    return ddp, ShardedParameters(sharded.trainable if trainable else sharded.frozen, dist.group.WORLD)


def parts_held(kind: str, trainable: bool) -> list[Any]:
    """On a rank: (name, elements) of its pieces; whether values are those of the parameters, in the reducer's order."""
    ddp, flat = held(kind, trainable)
    names = {p: n for n, p in ddp.module.named_parameters()}
    whole = ddp.full_state_dict()
    right = True
    for piece, tensor in zip(flat.pieces, flat.tensors, strict=True):
        parameter = flat.parameters[piece.parameter]
        right &= same(tensor.detach(), in_memory_order(whole[names[parameter]], parameter)[piece.part])
    if trainable:
        right &= all(a is b for a, b in zip(flat.parameters, ddp.reducer.parameters, strict=True))
        right &= len(flat) == len(ddp.reducer.layout())
    right &= flat.useful_bytes == sum(t.nbytes for t in flat.tensors) <= flat.padded_bytes
    return [right, [(names[flat.parameters[p.parameter]], p.length) for p in flat.pieces]]


def test_pieces_of_all_ranks_are_the_parameters(trio):
    for kind, trainable in (("stack", True), ("frozen", True), ("frozen", False), ("strided", True), ("types", True)):
        said = trio.run(parts_held, kind, trainable)
        assert all(right for right, _ in said)
        found: dict[str, int] = {}
        for name, length in (entry for _, pieces in said for entry in pieces):
            found[name] = found.get(name, 0) + length
        model = MODELS[kind]()
        wanted = {n: p.numel() for n, p in model.named_parameters() if p.requires_grad is trainable}
        wanted.pop("steps", None)  # integers stay whole
        assert found == wanted


@on_ranks(2, True)
def test_what_is_stepped_is_what_is_gathered() -> bool:
    """Whether others see what this rank has written to its pieces, once units are gathered."""
    ddp, flat = held("stack")
    with torch.no_grad():
        for tensor in flat.tensors:
            tensor.fill_(0.1)
    for bucket in range(len(flat)):
        flat.restore_views(bucket)
        assert flat.gather_stepped(bucket) is None
    return all(bool((v == torch.tensor(0.1)).all()) for v in ddp.full_state_dict().values())


@on_ranks(2, True)
def test_masters_are_rounded_into_shards() -> bool:
    ddp = DistributedDataParallel(fresh(MODELS["stack"]).bfloat16(), zero_stage=3)
    flat = ShardedParameters(ddp.sharded_model.trainable, dist.group.WORLD, torch.float32)
    with torch.no_grad():
        for tensor in flat.tensors:
            tensor.fill_(1 + 2**-12)  # too little for bfloat16
    for bucket in range(len(flat)):
        flat.gather_stepped(bucket)
        flat.restore_views(bucket)
    kept = all(bool((t == 1 + 2**-12).all()) for t in flat.tensors)
    return kept and all(bool((v == 1).all()) for v in ddp.full_state_dict().values())


def ranks_without_pieces() -> int:
    ddp = DistributedDataParallel(fresh(lambda: torch.nn.Linear(3, 3)), zero_stage=3)
    flat = ShardedParameters(ddp.sharded_model.trainable, dist.group.WORLD)
    assert ddp(torch.ones(HERE.size, 3)).shape == (HERE.size, 3)
    return len(flat.tensors)


def test_a_rank_may_have_nothing(trio):
    counts = trio.run(ranks_without_pieces)
    assert sum(counts) == 2 and min(counts) == 0
