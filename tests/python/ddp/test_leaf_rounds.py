"""shard_leaves=True: the same bits, with sums in shards after every round of leaves."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from math import ceil
from typing import Any

import pytest
import ringdp
import torch
from leafy import MODELS, allotment, in_one_process, loss_of, made, optimizer_of, state_hash, train
from ranks import BACKENDS, HERE, error_of
from ringdp import _native
from ringdp.ddp.leaf_table import Told
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.elastic import Leaves
from ringdp.tools.planner.elastic import KINDS
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")
(ELASTIC,) = KINDS
WIDTH = _native.load().shard_block()
reference = cache(in_one_process)


def trained(cell: dict[str, Any]) -> str:
    """On a rank."""
    return train(**cell, shard_leaves=True)


def different(world: Any, cells: list[dict[str, Any]]) -> list[str]:
    """The cells in which a rank does not end as one process."""
    wrong = []
    for cell in cells:
        names = ("dtype", "weighted", "clip")
        want = reference(cell["model"], cell["micro_batches"], **{n: cell[n] for n in names if n in cell})
        if world.run(trained, cell) != [want] * world.size:
            wrong.append(str(cell))
    return wrong


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(
    ("ranks", "transport"), [(1, "shm"), (2, "shm"), (3, "shm"), (4, "shm"), (2, "tcp"), (3, "tcp")]
)
def test_every_number_of_ranks_has_the_bits_of_one_process(world_of, ranks, transport, stage):
    chosen = [
        {"model": model, "micro_batches": micro_batches, "dtype": dtype, "kind": kind, "zero_stage": stage}
        for model in MODELS
        for micro_batches, kind in ((8, "buddy"), (7, "random"), (2, "last rank only"), (1, "buddy"))
        for dtype in ("float32", "bfloat16")
    ]
    assert different(world_of(ranks, transport=transport), chosen) == []


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_clipping_buckets_and_other_backends_have_the_same_bits(trio, backend, stage):
    chosen = [
        {"model": "branching", "backend": backend, "zero_stage": stage, "micro_batches": 6, **more}
        for more in (
            {"weighted": True},
            {"weighted": True, "dtype": "bfloat16", "micro_batches": 3},
            {"clip": 0.1, "kind": "other"},
            {"bucket_cap_mb": 25},
            {"find_unused_parameters": True, "overlap": False},
        )
    ]
    assert different(trio, chosen) == []


def roots(leaves: int, low: int, high: int) -> int:
    """How many subtrees the first leaves are: by the definition of the tree."""
    if leaves <= low:
        return 0
    if leaves >= high:
        return 1
    middle = low + ceil((high - low) / 2)
    return roots(leaves, low, middle) + roots(leaves, middle, high)


def counted(micro_batches: int, dtype: str) -> tuple[int, list[int], int]:
    """On a rank: bytes of one step that went to others, of the sums held after each round, and of the gradients."""
    model = nn.Linear(WIDTH, HERE.size, bias=False).to(getattr(torch, dtype))  # shards without padding
    ddp = DistributedDataParallel(model, micro_batches=micro_batches, zero_stage=2, shard_leaves=True)
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
    held: list[int] = []
    for step in range(2):
        before = sum(group["counters"]["wire_bytes_sent"] for group in ringdp.stats()["groups"])
        for leaf in Leaves(1 << 10, micro_batch=1, micro_batches=micro_batches, in_rounds=True).mine():
            with ringdp.leaf(step, leaf):
                ddp(torch.ones(1, WIDTH).to(model.weight.dtype)).sum().backward()
            held.append(ddp.reducer.leaf_bytes())
        ddp.finish_step()
        sent = sum(group["counters"]["wire_bytes_sent"] for group in ringdp.stats()["groups"]) - before
        optimizer.step()
        optimizer.zero_grad()
    return sent, held[: len(held) // 2], model.weight.nbytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_bytes_sent_and_held_are_those_of_the_formula(world_of, ranks, dtype):
    for micro_batches in (16, 24):
        found = world_of(ranks, transport="tcp").run(counted, micro_batches, dtype)
        rounds, size = ceil(micro_batches / ranks), found[0][2]
        told = 8 * len(Told(used=[True]).numbers(micro_batches)) + 48 * (rounds + 1)
        for rank, (sent, held, _) in enumerate(found):
            own = len(range(rank, micro_batches, ranks))
            assert sent == own * size * (ranks - 1) // ranks + told * (ranks - 1)
            assert len(held) == own
            for number, bytes_held in enumerate(held):
                after = min(micro_batches, (number + 1) * ranks)
                sums = roots(after, 0, micro_batches)
                wide = 1 if dtype == "float32" else 2
                single = roots(after, 0, micro_batches) - roots(after - 1, 0, micro_batches) == 1
                assert bytes_held * ranks == size * (wide * sums - (wide - 1) * single)
        check_planner(micro_batches, ranks, dtype, size)


def check_planner(micro_batches: int, ranks: int, dtype: str, size: int) -> None:
    """`ringdp plan elastic` predicts the same, on average over the ranks and without what ranks tell each other."""
    asked = {
        "micro_batches": str(micro_batches),
        "ranks": str(ranks),
        "wire": {"float32": "fp32", "bfloat16": "bf16"}[dtype],
        "params": str(WIDTH * ranks),
    }
    _, table = ELASTIC.ask(asked).tables
    _, sums, sent, _ = table.rows[0]
    most = max(roots(min(micro_batches, done), 0, micro_batches) for done in range(0, micro_batches + ranks, ranks))
    assert sums == 1 + most / ranks
    assert sent == pytest.approx(micro_batches / ranks * size * (ranks - 1) / ranks, rel=1e-12)


def train_on(ddp: DistributedDataParallel, optimizer: Any, micro_batches: int) -> str:
    """On a rank: as reference("plain", micro_batches), with this wrapper."""
    for step in range(3):
        for leaf in range(HERE.rank, micro_batches, HERE.size):
            with ringdp.leaf(step, leaf):
                loss_of(ddp, 0, step, leaf).backward()
        optimizer.step()
        optimizer.zero_grad()
    return state_hash(ddp)


def said_after(stage: int, leaves: list[list[tuple[int, int]]]) -> tuple[str, str]:
    """On a rank: the error of a step with these leaves, and the hash of a training with the same wrapper after it."""
    ddp = DistributedDataParallel(made("plain"), micro_batches=3, zero_stage=stage, shard_leaves=True)
    optimizer = optimizer_of(ddp)
    for step, leaf in leaves[HERE.rank]:
        with ringdp.leaf(step, leaf):
            loss_of(ddp, 0, step, leaf).backward()
    said = error_of(ddp.finish_step)
    return said, train_on(ddp, optimizer, 3)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(
    ("leaves", "says"),
    [
        ([[(0, 0), (0, 1)], [(0, 1), (0, 2)]], "micro-batch 1 was run by ranks 0, 1"),
        ([[(0, 1), (0, 0)], [(0, 1), (0, 2)]], "micro-batch 1 was run by ranks 0, 1"),
        ([[(0, 0), (0, 1), (0, 0)], [(0, 2)]], "micro-batch 0 was run by rank 0 twice"),
        ([[(0, 0)], []], "no rank has run micro-batches 1, 2 of 3"),
        ([[], []], "no rank has run micro-batches 0, 1, 2 of 3"),
        ([[(0, 0), (0, 1)], [(0, 2), (0, 3)]], "rank 1 ran micro-batch 3, must be one of 0 to 2"),
        ([[(0, 0), (0, 1)], [(0, -1)]], "rank 1 ran micro-batch -1, must be one of 0 to 2"),
        ([[(0, 0), (0, 1), (0, 0)], [(4, 2)]], "leaves of different steps (rank 0: step 0; rank 1: step 4)"),
        ([[(0, 0), (0, 1)], [(4, 2)]], "leaves of different steps (rank 0: step 0; rank 1: step 4)"),
    ],
)
def test_after_a_wrong_allotment_the_same_wrapper_goes_on(pair, stage, leaves, says):
    outcomes = pair.run(said_after, stage, leaves)
    assert [says in said for said, _ in outcomes] == [True] * 2, outcomes
    assert [goes_on for _, goes_on in outcomes] == [reference("plain", 3)] * 2


def failing(stage: int) -> str:
    """On a rank: each leaf of rank 0 fails once before its passes and once after them, and is run again."""
    ddp = DistributedDataParallel(made("branching"), micro_batches=5, zero_stage=stage, shard_leaves=True)
    optimizer = optimizer_of(ddp)
    for step in range(3):
        for leaf in range(HERE.rank, 5, HERE.size):
            for place in ("forward", "after", "") if HERE.rank == 0 else ("",):
                with pytest.raises(ZeroDivisionError) if place else nullcontext(), ringdp.leaf(step, leaf):
                    if place == "forward":
                        raise ZeroDivisionError
                    loss_of(ddp, 0, step, leaf).backward()
                    if place == "after":
                        raise ZeroDivisionError
        optimizer.step()
        optimizer.zero_grad()
    return state_hash(ddp)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_leaf_that_fails_is_run_again(world_of, ranks, stage):
    """Ranks whose leaf has ended wait for it, at stage 3 in the passes of the second time."""
    assert world_of(ranks).run(failing, stage) == [reference("branching", 5)] * ranks


def failing_at_its_end(stage: int) -> tuple[str, str, str]:
    """On a rank: rank 1's second leaf leaves a gradient that does not fit. Its error, the step's, and a hash later."""
    ddp = DistributedDataParallel(made("plain"), micro_batches=5, zero_stage=stage, shard_leaves=True)
    optimizer, said = optimizer_of(ddp), ""
    for leaf in range(HERE.rank, 5, HERE.size):
        bad = leaf == 3
        with pytest.raises(RuntimeError) if bad else nullcontext() as caught, ringdp.leaf(7, leaf):
            loss_of(ddp, 0, 7, leaf).backward()
            if bad:
                ddp.module[2].bias.grad = torch.zeros(3).to_sparse()
        said = str(caught.value) if bad else said
    ended = error_of(ddp.finish_step)
    return said, ended, train_on(ddp, optimizer, 5)


def test_a_leaf_that_fails_at_its_end_is_named_on_all_ranks_and_the_wrapper_goes_on(pair):
    outcomes = pair.run(failing_at_its_end, 2)
    assert [bool(own) for own, _, _ in outcomes] == [False, True]
    for _, ended, bits in outcomes:
        assert "missing after an error of rank 1, micro-batch 3" in ended
        assert bits == reference("plain", 5)


def dropping(stage: int) -> str:
    """On a rank: rank 0 drops the step after its first leaf, and runs that leaf again. The error of the step."""
    ddp = DistributedDataParallel(made("plain"), micro_batches=4, zero_stage=stage, shard_leaves=True)
    mine = [HERE.rank, HERE.rank + 2]
    for leaf in [mine[0], *mine] if HERE.rank == 0 else mine:
        with ringdp.leaf(0, leaf):
            loss_of(ddp, 0, 0, leaf).backward()
        if HERE.rank == 0 and leaf == mine[0] and not ddp.reducer.leaf_steps._wrong:
            ddp.reducer.leaf_steps.forget()
    return error_of(ddp.finish_step)


def test_a_rank_that_drops_the_step_and_runs_it_again_is_found_out(pair):
    """All leaves were run, and the sums of the others lack one."""
    for said in pair.run(dropping, 2):
        assert "missing after an error of a rank that has dropped the step" in said


def two_in_one_leaf() -> str:
    first, second = (
        DistributedDataParallel(made("plain"), micro_batches=2, zero_stage=2, shard_leaves=shards)
        for shards in (False, True)
    )
    with ringdp.leaf(0, HERE.rank):
        loss_of(first, 0, 0, 0).backward()
        return error_of(loss_of, second, 0, 0, 0, kind=NotImplementedError)


def test_a_leaf_of_several_wrappers_is_refused(pair):
    for said in pair.run(two_in_one_leaf):
        assert "shard_leaves=True with several wrappers in one leaf" in said


def given_up() -> str:
    """On a rank: a step that all ranks give up in its middle, and a training with the same wrapper."""
    ddp = DistributedDataParallel(made("plain"), micro_batches=4, zero_stage=2, shard_leaves=True)
    optimizer = optimizer_of(ddp)
    with ringdp.leaf(9, HERE.rank):
        loss_of(ddp, 0, 9, HERE.rank).backward()
    ddp.abandon_backward()
    return train_on(ddp, optimizer, 4)


def test_a_step_that_is_given_up_leaves_nothing(pair):
    assert pair.run(given_up) == [reference("plain", 4)] * 2


def refused() -> list[str]:
    """On a rank: what does not go with it."""
    said = [
        error_of(lambda more=more: DistributedDataParallel(made("plain"), shard_leaves=True, **more), kind=ValueError)
        for more in ({}, {"micro_batches": 4}, {"micro_batches": 4, "zero_stage": 1}, {"zero_stage": 2})
    ]
    ddp = DistributedDataParallel(made("plain"), micro_batches=4, zero_stage=2, shard_leaves=True)
    optimizer = optimizer_of(ddp)
    said.append(error_of(lambda: ringdp.elastic.survive(model=ddp, optimizer=optimizer), kind=NotImplementedError))
    with ringdp.leaf(0, HERE.rank):
        loss_of(ddp, 0, 0, HERE.rank).backward()
    said.append(error_of(ddp.regroup, ddp.process_group, kind=NotImplementedError))
    ddp.abandon_backward()
    unequal = {"micro_batches": 4, "zero_stage": 2, "shard_leaves": HERE.rank == 0}
    return [*said, error_of(lambda: DistributedDataParallel(made("plain"), **unequal))]


def test_what_does_not_go_with_it_is_named(pair):
    for said in pair.run(refused):
        assert all("shard_leaves=True" in one for one in said[:6]), said
        assert "rank 0: shard_leaves True; rank 1: shard_leaves False" in said[6], said


def test_leaves_are_dealt_out_in_turn():
    leaves = Leaves(100, micro_batch=2, micro_batches=7, in_rounds=True)
    assert [leaves.mine(rank, 3) for rank in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert allotment("buddy", 7, 3) != [leaves.mine(rank, 3) for rank in range(3)]
