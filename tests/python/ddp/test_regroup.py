"""ddp.regroup: a wrapper goes on in another group, with the micro-batches that its ranks hold."""

from __future__ import annotations

from pathlib import Path

import leafy
import pytest
import ringdp
import torch.distributed as dist
from leafy import STEPS, in_one_process, loss_of, made, state_hash
from ranks import HERE, error_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel

pytestmark = pytest.mark.usefixtures("one_thread")
LEAVES = 7
# By rank: the leaves before rank 2 has gone, the others, and what takes the place of rank 2's.
BEFORE, REST, AGAIN = [[0, 2], [3], [1, 4]], [[6], [5], []], [[1], [4]]


def run(ddp, step, leaves):
    for leaf in leaves:
        with ringdp.leaf(step, leaf):
            loss_of(ddp, HERE.rank, step, leaf).backward()


def goes_on(model: str, dtype: str, moment: str, backend: str) -> str:
    """Rank 2 leaves in each step; the others go on with what they hold, and take it in again after the step."""
    everybody, others = dist.group.WORLD, dist.new_group([0, 1], backend=backend)
    ddp = DistributedDataParallel(made(model, dtype), process_group=everybody, micro_batches=LEAVES)
    ddp.reducer.keep_layout()
    optimizer, part = leafy.optimizer_of(ddp), ddp.reducer.leaf_steps
    for step in range(STEPS):
        run(ddp, step, BEFORE[HERE.rank])
        if moment == "with a mean that is dropped":
            run(ddp, step, REST[HERE.rank])
            part.finish(keep=True)
        if HERE.rank < 2:
            ddp.regroup(others)
            if moment == "between leaves":
                run(ddp, step, REST[HERE.rank])
            run(ddp, step, AGAIN[HERE.rank])
            optimizer.step()
            optimizer.zero_grad()
        else:
            part.forget()
        ddp.regroup(everybody)
        for tensor in [*ddp.parameters(), *ddp.buffers()]:
            dist.broadcast(tensor.detach(), 0)
    return state_hash(ddp)


@pytest.mark.parametrize("model", ["branching", "plain"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("moment", ["between leaves", "with a mean that is dropped"])
@pytest.mark.parametrize("backend", ["ringdp", "gloo"])
def test_micro_batches_live_on_in_another_group(world_of, model, dtype, moment, backend):
    want = in_one_process(model, LEAVES, dtype)
    assert world_of(3).run(goes_on, model, dtype, moment, backend) == [want] * 3


def in_a_mean() -> str:
    """A mean that was taken, not committed and not dropped may be used when the group has changed nothing."""
    ddp = DistributedDataParallel(made("branching"), micro_batches=LEAVES)
    optimizer = leafy.optimizer_of(ddp)
    for step in range(STEPS):
        run(ddp, step, [[0, 1, 2, 3], [4, 5, 6]][HERE.rank])
        ddp.reducer.leaf_steps.finish(keep=True)
        ddp.reducer.leaf_steps.commit()
        optimizer.step()
        ddp.regroup(dist.group.WORLD)
    return state_hash(ddp)


def test_a_mean_is_used_once_all_have_it(world_of):
    assert world_of(2).run(in_a_mean) == [in_one_process("branching", LEAVES)] * 2


def finished_mean() -> str:
    ddp = DistributedDataParallel(made("plain"), micro_batches=LEAVES)
    optimizer = leafy.optimizer_of(ddp)
    for step in range(STEPS):
        run(ddp, step, [[0, 1, 2, 3], [4, 5, 6]][HERE.rank])
        ddp.finish_step()
        ddp.regroup(dist.group.WORLD)
        optimizer.step()
    return state_hash(ddp)


def test_the_mean_of_a_step_that_is_over_stays(world_of):
    assert world_of(2).run(finished_mean) == [in_one_process("plain", LEAVES)] * 2


TRAINING = {}


def begins() -> None:
    """A training of one step, in a group that is left then."""
    ddp = DistributedDataParallel(made("plain"), micro_batches=2)
    TRAINING.update(ddp=ddp, optimizer=leafy.optimizer_of(ddp))
    trains(0)


def trains(step: int) -> None:
    run(TRAINING["ddp"], step, [HERE.rank])
    TRAINING["optimizer"].step()
    TRAINING["optimizer"].zero_grad()


def goes_on_in_a_new_group() -> None:
    TRAINING["ddp"].regroup(dist.group.WORLD)
    trains(1)


def heaps() -> set[str]:
    """The shared memory for tensors that this process maps: inodes."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "ringdp-heap" in line}


def test_the_memory_of_sums_is_that_of_the_group_before(run_on_fresh_ranks):
    world = run_on_fresh_ranks(2)
    world.join()
    world.run(begins)
    before = world.run(heaps)
    world.leave()
    world.join()
    world.run(goes_on_in_a_new_group)
    assert world.run(heaps) == before and len(before[0]) == 4, "two groups of two ranks"


@on_ranks(2, ("it is for micro_batches=M", "without a ZeroOptimizer", "inside ringdp.leaf(3, 0)"))
def test_what_cannot_regroup_says_so():
    world = dist.group.WORLD
    plain = DistributedDataParallel(made("plain"))
    sharded = DistributedDataParallel(made("plain"), micro_batches=2, zero_stage=3)
    leafy_one = DistributedDataParallel(made("plain"), micro_batches=2)
    with ringdp.leaf(3, 0):
        inside = error_of(leafy_one.regroup, world)
    said = (
        error_of(plain.regroup, world, kind=ValueError).partition(": ")[2],
        error_of(sharded.regroup, world).partition("zero_stage=3 ")[2].partition(",")[0],
        inside.partition("change ")[2].partition(", which")[0],
    )
    return said


def without_a_leaf(stage: int) -> str:
    """Rank 2 has none; the first mean is dropped by a regroup()."""
    ddp = DistributedDataParallel(made("plain"), micro_batches=LEAVES, zero_stage=stage)
    ddp.reducer.keep_layout()
    optimizer, part = leafy.optimizer_of(ddp), ddp.reducer.leaf_steps
    for step in range(STEPS):
        run(ddp, step, [[0, 1, 2, 3], [4, 5, 6], []][HERE.rank])
        part.finish(keep=True)
        ddp.regroup(dist.group.WORLD)
        part.finish(keep=True)
        part.commit()
        optimizer.step()
        optimizer.zero_grad()
    return state_hash(ddp)


@pytest.mark.parametrize("stage", [1, 2])
def test_a_rank_without_a_leaf_drops_a_mean_as_the_others_do(world_of, stage):
    assert world_of(3).run(without_a_leaf, stage) == [in_one_process("plain", LEAVES)] * 3


@on_ranks(2, "a mean that no optimizer has used")
def test_a_mean_in_shards_is_not_dropped_unsaid():
    ddp = DistributedDataParallel(made("plain"), micro_batches=2, zero_stage=2)
    leafy.optimizer_of(ddp)
    run(ddp, 0, [HERE.rank])
    ddp.finish_step()
    return error_of(ddp.regroup, dist.group.WORLD).partition("with ")[2].partition(" in shards")[0]
