"""ZeroOptimizer.regroup: shards are cut anew for another group, and outlive a rank whose shard another one keeps."""

from __future__ import annotations

import pathlib
import sys

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import HERE, error_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.regroup import Place, senders_of
from torch import nn

sys.path.append(str(pathlib.Path(__file__).parent.parent / "ddp"))
from leafy import STEPS, in_one_process, loss_of, made, optimizer_of, state_hash

pytestmark = pytest.mark.usefixtures("one_thread")
LEAVES, CLIP = 7, 0.05


def wrapped(model: str = "plain", dtype: str = "float32", stage: int = 1):
    ddp = DistributedDataParallel(made(model, dtype), micro_batches=LEAVES, zero_stage=stage, bucket_cap_mb=0.001)
    ddp.reducer.keep_layout()
    return ddp, optimizer_of(ddp)


def run(ddp, step: int, group: dist.ProcessGroup) -> None:
    for leaf in range(group.rank(), LEAVES, group.size()):
        with ringdp.leaf(step, leaf):
            loss_of(ddp, HERE.rank, step, leaf).backward()


def step_of(ddp, optimizer, step: int, group: dist.ProcessGroup, clip: float = 0) -> None:
    run(ddp, step, group)
    ddp.finish_step()
    if clip:
        ringdp.clip_grad_norm_(ddp.parameters(), clip)
    optimizer.share_gradients()
    optimizer.step()
    optimizer.gather()
    optimizer.zero_grad()


def one_is_gone_for_a_step(model: str, dtype: str, stage: int, gone: int) -> str:
    """With its state, which it does not have any more when it comes back."""
    everybody = dist.group.WORLD
    others = dist.new_group([rank for rank in range(HERE.size) if rank != gone])
    ddp, optimizer = wrapped(model, dtype, stage)
    has_state = True
    for step in range(STEPS):
        group = others if step == 1 else everybody
        if step == 1 and HERE.rank == gone:
            has_state = False
            continue
        ddp.regroup(group)
        optimizer.regroup(group, has_state=has_state, keep_next=True)
        has_state = True
        for buffer in ddp.buffers() if step == 2 else ():
            dist.broadcast(buffer, (gone + 1) % HERE.size)
        step_of(ddp, optimizer, step, group, CLIP)
    optimizer.release_next()
    return state_hash(ddp)


@pytest.mark.parametrize("model", ["branching", "plain"])
@pytest.mark.parametrize(
    ("dtype", "stage", "gone"),
    [("float32", 1, 2), ("float32", 2, 0), ("float32", 3, 1), ("bfloat16", 1, 1), ("bfloat16", 3, 0)],
)
def test_a_shard_outlives_its_rank(world_of, model, dtype, stage, gone):
    if (model, stage) == ("branching", 3):
        model = "tied"  # not all leaves gather the same units
    want = in_one_process(model, LEAVES, dtype, clip=CLIP)
    assert world_of(3).run(one_is_gone_for_a_step, model, dtype, stage, gone) == [want] * 3


def masters_follow(stage: int) -> bool:
    """The fp32 copies of 16-bit parameters, by their owner before and after."""
    world = dist.group.WORLD
    ddp = DistributedDataParallel(made("plain", "bfloat16"), micro_batches=LEAVES, zero_stage=stage)
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1e-2, master_dtype=torch.float32)
    for step in range(STEPS):
        step_of(ddp, optimizer, step, world)
        ddp.regroup(world)
        optimizer.regroup(world, keep_next=step % 2 == 0)
    optimizer.consolidate_state_dict(to=0)
    other = DistributedDataParallel(made("plain", "bfloat16"), micro_batches=LEAVES, zero_stage=stage)
    undisturbed = ringdp.ZeroOptimizer(other.parameters(), torch.optim.AdamW, lr=1e-2, master_dtype=torch.float32)
    for step in range(STEPS):
        step_of(other, undisturbed, step, world)
    undisturbed.consolidate_state_dict(to=0)
    if HERE.rank:
        return True
    state, want = (one.state_dict()["state"] for one in (optimizer, undisturbed))
    assert all("master" in entry for entry in want.values())
    return all(torch.equal(state[n][key], value) for n, entry in want.items() for key, value in entry.items())


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fp32_copies_follow(world_of, stage):
    assert world_of(3).run(masters_follow, stage) == [True] * 3


@pytest.mark.parametrize(("key", "rank"), [("exp_avg", 1), ("step", 0)])
@on_ranks(2, True)
def test_a_copy_that_differs_is_named(key, rank):
    """Of a tensor and of a number."""
    ddp, optimizer = wrapped()
    world = dist.group.WORLD
    optimizer.regroup(world, keep_next=True)
    step_of(ddp, optimizer, 0, world)
    if HERE.rank == rank:
        next(iter(optimizer.state.values()))[key].add_(1)
    said = error_of(optimizer.regroup, world)
    return f"shard of rank {rank} and the copy of it on another rank have other bits" in said


@pytest.mark.parametrize(
    ("places", "want"),
    [
        ([(3, 0, 2), (3, 1, 2)], [0, 1]),
        ([(3, 1, 2, True), (-1, 0, 1)], [0, 0]),  # rank 0 is gone, and 1 has its shard
        ([(-1, 0, 1), (5, 2, 4, True), (5, 0, 4, True)], [2, 2, 1, 1]),
        ([(0, 0, 1), (-1, 0, 1)], [0]),
    ],
)
def test_each_old_shard_comes_from_its_owner_or_from_the_rank_before(places, want):
    assert senders_of([Place(*place) for place in places]) == want


def test_a_shard_that_nobody_has_is_named():
    with pytest.raises(RuntimeError, match=r"of the 4 ranks before, the shard of ranks 1, 2 is lost: .* a checkpoint"):
        senders_of([Place(2, 0, 4), Place(2, 3, 4, True)])


@on_ranks(2, True)
def test_an_optimizer_that_was_left_behind_says_so():
    ddp, optimizer = wrapped()
    other = dist.new_group([0, 1])
    ddp.regroup(other)
    run(ddp, 0, other)
    return "call optimizer.regroup(group), too" in error_of(optimizer.step)


@on_ranks(2, (True, True))
def test_copies_are_counted():
    """AdamW's two moments of the other rank's elements."""
    ddp, optimizer = wrapped()
    optimizer.regroup(dist.group.WORLD, keep_next=True)
    step_of(ddp, optimizer, 0, dist.group.WORLD)
    pieces = optimizer._flats[0].layout.pieces(1 - HERE.rank)
    elements, numbers = sum(length for _, _, length, _, _ in pieces), len(pieces)
    counted = optimizer.memory().copies == 4 * (2 * elements + numbers)
    optimizer.release_next()
    return counted, optimizer.memory().copies == 0


@on_ranks(2, True)
def test_a_copy_is_of_one_other_rank():
    _, optimizer = wrapped()
    world = dist.group.WORLD
    regroup = lambda keep_next: optimizer.regroup(world, keep_next=keep_next)  # noqa: E731
    assert "keep_next=2 in a group of 2, must be from 0 to 1" in error_of(regroup, 2, kind=ValueError)
    return "keep_next=0 on one rank and 1 on another" in error_of(regroup, world.rank(), kind=ValueError)


@on_ranks(2, True)
def test_what_would_not_reach_the_copy_is_refused():
    ddp, optimizer = wrapped(stage=2)
    world = dist.group.WORLD
    optimizer.regroup(world, keep_next=True)
    step_of(ddp, optimizer, 0, world)
    refused = "is not possible while this rank's shard is to outlive it"
    assert f"load_state_dict() {refused}" in error_of(optimizer.load_state_dict, {})
    assert f"add_param_group() {refused}" in error_of(
        optimizer.add_param_group, {"params": [nn.Parameter(torch.ones(1))]}
    )
    holder = optimizer.holder({parameter: name for name, parameter in ddp.module.named_parameters()})
    assert list(holder.pieces())
    assert f"loading a checkpoint {refused}" in error_of(lambda: list(holder.wants([], {})))
    assert f"a change {refused}" in error_of(optimizer.state.clear)
    run(ddp, 1, world)
    ddp.finish_step()
    before = [tensor.clone() for tensor in ddp.parameters()]
    assert "without share_gradients()" in error_of(optimizer.step)
    assert all(torch.equal(*pair) for pair in zip(before, ddp.parameters(), strict=True))
    optimizer.zero_grad()
    run(ddp, 2, world)
    ddp.finish_step()
    optimizer.share_gradients()
    assert "call it before share_gradients()" in error_of(optimizer.shard_grads)
    optimizer.step()
    assert "parameters are not whole" in error_of(optimizer.consolidate_state_dict)
    assert "parameters are not whole" in error_of(lambda: list(holder.pieces()))
    assert "parameter 0.weight is read before it has arrived" in error_of(lambda: next(ddp.module.parameters()).sum())
    optimizer.gather()
    assert torch.isfinite(next(ddp.module.parameters()).sum())
    return True


@on_ranks(2, True)
def test_shards_of_stage_3_are_not_written_on_one_side():
    ddp, optimizer = wrapped(stage=3)
    saved, world = ddp.full_state_dict(), dist.group.WORLD
    ddp.regroup(world)
    optimizer.regroup(world, keep_next=True)
    refused = "is not possible while this rank's shard is to outlive it"
    assert f"load_state_dict() {refused}" in error_of(ddp.module.load_state_dict, saved)
    assert f"gathered(writes=True) {refused}" in error_of(ddp.gathered(writes=True).__enter__)
    optimizer.release_next()
    ddp.module.load_state_dict(saved)
    next(ddp.module.parameters()).data = torch.zeros(33, 6)
    return ".data of parameter 0.weight was assigned while it was freed" in error_of(optimizer.regroup, world)


@on_ranks(2, True)
def test_values_that_were_assigned_are_taken_over():
    ddp, optimizer = wrapped()
    (first, *_), world = ddp.module.parameters(), dist.group.WORLD
    first.data = torch.full_like(first, 3.0)
    optimizer.regroup(world, keep_next=True)
    assert first.eq(3).all()
    step_of(ddp, optimizer, 0, world)
    return bool(first.ne(3).any())


@on_ranks(2, True)
def test_what_comes_before_is_named():
    _, optimizer = wrapped()
    other = dist.new_group([0, 1])
    assert "call ddp.regroup(group) before" in error_of(optimizer.regroup, other)
    passing = DistributedDataParallel(made("plain"), zero_stage=2)
    in_passes = ringdp.ZeroOptimizer(passing.parameters(), torch.optim.SGD, lr=0.1, overlap_with_ddp=True)
    assert "overlap_with_ddp=True" in error_of(in_passes.regroup, dist.group.WORLD, kind=NotImplementedError)
    return True


class Counting(torch.optim.SGD):
    element_wise = True


@on_ranks(2, True)
def test_a_class_that_may_keep_more_than_its_state_is_refused():
    ddp = DistributedDataParallel(made("plain"), micro_batches=LEAVES, zero_stage=1)
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), Counting, lr=0.1)
    return "Counting is not one of torch's" in error_of(optimizer.regroup, dist.group.WORLD, kind=NotImplementedError)
