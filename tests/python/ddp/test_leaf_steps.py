"""micro_batches=M: the bits of one process at every number of ranks and for every allotment."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import ringdp
import torch
from leafy import MODELS, in_one_process, loss_of, made, optimizer_for, state_hash, train
from ranks import BACKENDS, HERE
from ringdp.ddp.wrapper import DistributedDataParallel

pytestmark = pytest.mark.usefixtures("one_thread")
reference = cache(in_one_process)


def trained(cell: dict[str, Any]) -> str:
    """On a rank."""
    return train(**cell)


def different(world: Any, wanted: list[tuple[dict[str, Any], str]]) -> list[str]:
    """The cells in which a rank does not end with the hash that is wanted; each has the whole time limit."""
    return [str(cell) for cell, want in wanted if world.run(trained, cell) != [want] * world.size]


@pytest.mark.parametrize(
    ("ranks", "transport"), [(1, "shm"), (2, "shm"), (3, "shm"), (4, "shm"), (2, "tcp"), (3, "tcp")]
)
def test_every_number_of_ranks_has_the_bits_of_one_process(world_of, ranks, transport):
    chosen = [
        {"model": model, "micro_batches": micro_batches, "dtype": dtype, "kind": kind}
        for model in MODELS
        for micro_batches, kind in ((8, "buddy"), (7, "random"), (2, "last rank only"))
        for dtype in ("float32", "bfloat16")
    ]
    want = [(cell, reference(cell["model"], cell["micro_batches"], cell["dtype"])) for cell in chosen]
    assert different(world_of(ranks, transport=transport), want) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_buckets_and_other_backends_have_the_same_bits(trio, backend):
    chosen = [
        {"model": "branching", "micro_batches": 6, "backend": backend, **more}
        for more in (
            {"weighted": True},
            {"bucket_cap_mb": 25, "kind": "other"},
            {"gradient_as_bucket_view": True, "kind": "random"},
            {"find_unused_parameters": True, "overlap": False},
        )
    ]
    want = [(cell, reference("branching", 6, weighted=cell.get("weighted", False))) for cell in chosen]
    assert different(trio, want) == []


def in_rank_order(micro_batches: int) -> str:
    """On a rank: the default contract with the same micro-batches in blocks."""
    ddp = DistributedDataParallel(made("plain"))
    optimizer, share = optimizer_for(ddp), micro_batches // HERE.size
    for step in range(3):
        for micro in range(share):
            ddp.require_backward_grad_sync = micro == share - 1
            (loss_of(ddp, 0, step, HERE.rank * share + micro) / share).backward()
        optimizer.step()
        optimizer.zero_grad()
    return state_hash(ddp)


def test_the_rank_order_depends_on_the_number_of_ranks(world_of):
    hashes = [world_of(ranks).run(in_rank_order, 12)[0] for ranks in (2, 3)]
    assert len({*hashes, reference("plain", 12)}) == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_stages_and_clipping_have_the_same_bits(trio, backend):
    chosen = [
        {"model": model, "micro_batches": 5, "dtype": dtype, "zero_stage": stage, "clip": 0.1, "backend": backend}
        for model, dtype in (("branching", "float32"), ("tied", "bfloat16"))
        for stage in (0, 1, 2, 3)
    ] + [
        {"model": "branching", "micro_batches": 2, "zero_stage": stage, "kind": "last rank only", "backend": backend}
        for stage in (2, 3)
    ]
    want = [
        (c, reference(c["model"], c["micro_batches"], c.get("dtype", "float32"), clip=c.get("clip", 0))) for c in chosen
    ]
    assert different(trio, want) == []


def part_of_a_run(folder: str, stage: int, step: int) -> str:
    ddp = DistributedDataParallel(made("branching"), micro_batches=5, zero_stage=stage)
    optimizer = optimizer_for(ddp)
    if stage:
        optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1e-2)
    if step > 0:
        ringdp.checkpoint.load(folder, ddp, optimizer)
    for leaf in range(HERE.rank, 5, HERE.size):
        with ringdp.leaf(step, leaf):
            loss_of(ddp, 0, step, leaf).backward()
    optimizer.step()
    ringdp.checkpoint.save(folder, ddp, optimizer)
    return state_hash(ddp)


def test_a_run_may_change_its_number_of_ranks(world_of, tmp_path):
    for step, (ranks, stage) in enumerate(((3, 3), (1, 2), (2, 1))):
        hashes = world_of(ranks).run(part_of_a_run, str(tmp_path / "run"), stage, step)
    assert hashes == [reference("branching", 5)] * 2


def unreadable(stage: int) -> list[str]:
    ddp = DistributedDataParallel(made("plain"), micro_batches=2, zero_stage=stage)
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=1e-2) if stage else optimizer_for(ddp)
    said = []
    for leaf in range(2):
        with ringdp.leaf(0, leaf):
            loss_of(ddp, 0, 0, leaf).backward()
    for clip in (torch.nn.utils.clip_grad_norm_, ringdp.clip_grad_norm_):
        with pytest.raises(RuntimeError, match="call ddp.finish_step") as caught:
            clip(ddp.parameters(), 0.1)
        said.append(str(caught.value))
    scaler = ringdp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(RuntimeError, match="call ddp.finish_step"):
        scaler.unscale_(optimizer)
    optimizer.step()
    return said


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_that_are_not_averaged_yet_cannot_be_read(world_of, stage):
    ((torchs, own),) = world_of(1).run(unreadable, stage)
    assert "the gradient of 0.weight is not averaged yet (micro_batches=2)" in torchs
    assert ("clip_grad_norm_ needs averaged gradients" if stage >= 2 else "the gradient of 0.weight") in own


def with_two_optimizers(failing: bool) -> str:
    """Rank 1 has no leaf. `failing`: an exception ends the first try of every leaf."""
    ddp = DistributedDataParallel(made("branching"), micro_batches=3)
    named = dict(ddp.module.named_parameters())
    first = torch.optim.AdamW([p for n, p in named.items() if n.startswith("first")], lr=1e-2)
    others = torch.optim.AdamW([p for n, p in named.items() if not n.startswith("first")], lr=1e-2)
    for step in range(3):
        for leaf in range(3) if HERE.rank == 0 else ():
            if failing:
                with pytest.raises(ZeroDivisionError), ringdp.leaf(step, leaf):
                    loss_of(ddp, 0, step, leaf).backward()
                    raise ZeroDivisionError
            with ringdp.leaf(step, leaf):
                loss_of(ddp, 0, step, leaf).backward()
        first.step()
        others.step()
    return state_hash(ddp)


@pytest.mark.parametrize("failing", [False, True])
def test_several_optimizers_and_leaves_that_are_run_again(pair, failing):
    assert pair.run(with_two_optimizers, failing) == [reference("branching", 3)] * 2


def said_after(leaves: list[list[tuple[int, int]]], weights: dict[int, float]) -> tuple[str, bool]:
    """On a rank: what the end of a step says after these (step, leaf) of each rank, and whether its wrapper goes on."""
    ddp = DistributedDataParallel(made("plain"), micro_batches=3)
    optimizer = optimizer_for(ddp)
    for step, leaf in leaves[HERE.rank]:
        with ringdp.leaf(step, leaf):
            ddp.backward(loss_of(ddp, 0, 0, leaf), weight=weights.get(leaf))
    said = ""
    try:
        optimizer.step()
    except RuntimeError as error:
        said = str(error)
    for leaf in range(HERE.rank, 3, HERE.size):
        with ringdp.leaf(9, leaf):
            loss_of(ddp, 0, 9, leaf).backward()
    optimizer.step()
    return said, all(p.grad.isfinite().all() for p in ddp.parameters())


@pytest.mark.parametrize(
    ("leaves", "weights", "says"),
    [
        ([[(0, 0), (0, 1)], [(0, 1), (0, 2)]], {}, "micro-batch 1 was run by ranks 0, 1"),
        ([[(0, 0), (0, 1), (0, 0)], [(0, 2)]], {}, "micro-batch 0 was run by rank 0 twice"),
        ([[(0, 0)], []], {}, "no rank has run micro-batches 1, 2 of 3"),
        ([[(0, 0), (0, 1)], [(0, 2), (0, 3)]], {}, "rank 1 ran micro-batch 3, must be one of 0 to 2"),
        ([[(0, 0), (0, 1)], [(4, 2)]], {}, "leaves of different steps (rank 0: step 0; rank 1: step 4)"),
        ([[(0, 0), (0, 1)], [(0, 2)]], {1: 2.0}, "micro-batch 1 had a weight and micro-batches 0, 2 had none"),
        ([[(0, 0), (0, 1)], [(0, 2)]], {0: 0.0, 1: 0.0, 2: 0.0}, "weights of all micro-batches add up to 0.0"),
    ],
)
def test_after_a_wrong_allotment_the_same_wrapper_goes_on(pair, leaves, weights, says):
    outcomes = pair.run(said_after, leaves, weights)
    assert [says in said and goes_on for said, goes_on in outcomes] == [True] * 2, outcomes


def failing_while_others_follow() -> str:
    """Rank 1 has no leaf; each leaf of rank 0 fails once in forward and once after backward."""
    ddp = DistributedDataParallel(made("branching"), micro_batches=3, zero_stage=3)
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1e-2)
    for step in range(3):
        for leaf in range(3) if HERE.rank == 0 else ():
            for place in ("forward", "after", ""):
                with pytest.raises(ZeroDivisionError) if place else nullcontext(), ringdp.leaf(step, leaf):
                    hook = ddp.module.last.register_forward_pre_hook(fail if place == "forward" else nothing)
                    try:
                        loss_of(ddp, 0, step, leaf).backward()
                    finally:
                        hook.remove()
                    if place == "after":
                        raise ZeroDivisionError
        optimizer.step()
        optimizer.zero_grad()
    return state_hash(ddp)


def fail(*_: object) -> None:
    raise ZeroDivisionError


def nothing(*_: object) -> None:
    pass


def test_a_pass_that_fails_while_other_ranks_follow_it_is_run_again(pair):
    assert pair.run(failing_while_others_follow) == [reference("branching", 3)] * 2


def out_of_turn() -> str:
    """Two optimizers take turns, and rank 1, which has no leaf, cannot know."""
    ddp = DistributedDataParallel(made("plain"), micro_batches=1)
    optimizers = [torch.optim.SGD([parameter], lr=1e-2) for parameter in list(ddp.parameters())[:2]]
    try:
        for step in range(4):
            if HERE.rank == 0:
                with ringdp.leaf(step, 0):
                    loss_of(ddp, 0, step, 0).backward()
            optimizers[step % 2].step()
    except RuntimeError as error:
        return str(error)
    return ""


def test_optimizers_that_take_turns_are_found_out(pair):
    for said in pair.run(out_of_turn):
        assert "optimizers have stepped 1, 2 times" in said


def held() -> list[int]:
    """The numbers of sums that are held after each leaf, in gradients of the model."""
    ddp = DistributedDataParallel(made("plain"), micro_batches=8)
    whole, counts = sum(p.nbytes for p in ddp.parameters()), []
    for leaf in range(8):
        with ringdp.leaf(0, leaf):
            loss_of(ddp, 0, 0, leaf).backward()
        counts.append(ddp.reducer.leaf_bytes() // whole)
    ddp.finish_step()
    return [*counts, ddp.reducer.leaf_bytes()]


def test_sums_are_held_as_a_binary_counter_counts(world_of):
    assert world_of(1).run(held) == [[1, 1, 2, 1, 2, 2, 3, 1, 0]]
