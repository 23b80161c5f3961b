"""What an optimizer gets at stage 3: pieces of shards, which together are the parameters."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.flat import in_memory_order
from ringdp.zero.held import HeldShards
from small_models import fresh
from unit_models import MODELS
from zero_rig import same


def held(kind: str, trainable: bool = True) -> tuple[Any, HeldShards]:
    ddp = DistributedDataParallel(fresh(MODELS[kind]), zero_stage=3)
    sharded = ddp.sharded_model
    return ddp, HeldShards(sharded.trainable if trainable else sharded.frozen, dist.group.WORLD)


def parts(kind: str, trainable: bool) -> list[Any]:
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
    right &= flat.useful_bytes == sum(t.nbytes for t in flat.tensors) <= flat.held_bytes
    return [right, [(names[flat.parameters[p.parameter]], p.length) for p in flat.pieces]]


def test_pieces_of_all_ranks_are_the_parameters(trio):
    for kind, trainable in (("stack", True), ("frozen", True), ("frozen", False), ("strided", True), ("types", True)):
        said = trio.run(parts, kind, trainable)
        assert all(right for right, _ in said)
        found: dict[str, int] = {}
        for name, length in (entry for _, pieces in said for entry in pieces):
            found[name] = found.get(name, 0) + length
        model = MODELS[kind]()
        wanted = {n: p.numel() for n, p in model.named_parameters() if p.requires_grad is trainable}
        wanted.pop("steps", None)  # integers stay whole
        assert found == wanted


def stepped() -> bool:
    """On a rank: whether others see what this rank has written to its pieces, once units are gathered."""
    ddp, flat = held("stack")
    with torch.no_grad():
        for tensor in flat.tensors:
            tensor.fill_(0.1)
    for bucket in range(len(flat)):
        flat.take_back(bucket)
        assert flat.publish(bucket) is None
    return all(bool((v == torch.tensor(0.1)).all()) for v in ddp.full_state_dict().values())


def test_what_is_stepped_is_what_is_gathered(pair):
    assert pair.run(stepped) == [True, True]


def with_masters() -> bool:
    ddp = DistributedDataParallel(fresh(MODELS["stack"]).bfloat16(), zero_stage=3)
    flat = HeldShards(ddp.sharded_model.trainable, dist.group.WORLD, torch.float32)
    with torch.no_grad():
        for tensor in flat.tensors:
            tensor.fill_(1 + 2**-12)  # too little for bfloat16
    for bucket in range(len(flat)):
        flat.publish(bucket)
        flat.take_back(bucket)
    kept = all(bool((t == 1 + 2**-12).all()) for t in flat.tensors)
    return kept and all(bool((v == 1).all()) for v in ddp.full_state_dict().values())


def test_masters_are_rounded_into_shards(pair):
    assert pair.run(with_masters) == [True, True]


def ranks_without_pieces() -> int:
    ddp = DistributedDataParallel(fresh(lambda: torch.nn.Linear(3, 3)), zero_stage=3)
    flat = HeldShards(ddp.sharded_model.trainable, dist.group.WORLD)
    assert ddp(torch.ones(HERE.size, 3)).shape == (HERE.size, 3)
    return len(flat.tensors)


def test_a_rank_may_have_nothing(trio):
    counts = trio.run(ranks_without_pieces)
    assert sum(counts) == 2 and min(counts) == 0
