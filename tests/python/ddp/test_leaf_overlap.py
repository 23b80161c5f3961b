"""micro_batches=M: sums that are sent during a rank's last leaf have the same bits, whatever happens instead."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import ringdp
import torch
import torch.distributed as dist
from leafy import MODELS, allotment, loss_of, made, optimizer_for, optimizer_of, state_hash
from ranks import BACKENDS, HERE, World, group_of
from ringdp import _native
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from ringdp.tools.observe.traces import read_folder
from torch import Tensor

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, LEAVES = 6, 5
RANKS = (2, 3)  # each of two has one sum, which add up as the ranks do; of three some have several
Loss = Callable[[Any, int, int, int], Tensor]
Weights = Callable[[int, int], float]


def reference(
    model: str = "branching", loss: Loss = loss_of, dtype: str = "float32", weights: Weights | None = None
) -> str:
    module = made(model, dtype)
    one_process(module, optimizer_for(module), loss, steps=STEPS, micro_batches=LEAVES, weights=weights)
    return state_hash(module)


class Run:
    """On a rank: steps of one wrapper, with the same leaves on the same ranks unless a test says otherwise."""

    def __init__(self, model: str = "branching", dtype: str = "float32", backend: str = "ringdp", **arguments: Any):
        arguments.setdefault("bucket_cap_mb", 0.001)
        self.ddp = DistributedDataParallel(
            made(model, dtype), process_group=group_of(backend), micro_batches=LEAVES, **arguments
        )
        self.optimizer = optimizer_of(self.ddp)
        self.sent_ahead: list[bool] = []  # by step: a bucket was sent inside a backward pass
        self._backward_ended = 0

    def leaves(self, step: int, kind: str = "buddy") -> list[int]:
        return allotment(kind, LEAVES, HERE.size)[HERE.rank]

    def one(self, step: int, leaf: int, loss: Loss = loss_of) -> None:
        with ringdp.leaf(step, leaf):
            loss(self.ddp, 0, step, leaf).backward()
            self._backward_ended = time.monotonic_ns()

    def end_of_step(self) -> None:
        self.ddp.finish_step()
        launched = [launched for _, launched, _ in self.ddp.reducer.timeline()["buckets"]]
        self.sent_ahead.append(any(0 < at < self._backward_ended for at in launched))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def hash(self) -> str:
        return state_hash(self.ddp)


def steady(arguments: dict[str, Any]) -> tuple[str, list[bool]]:
    run = Run(**arguments)
    for step in range(STEPS):
        for leaf in run.leaves(step):
            run.one(step, leaf)
        run.end_of_step()
    return run.hash(), run.sent_ahead


@pytest.fixture
def fresh(run_on_fresh_ranks):
    """Ranks in equally many groups: in others torch cannot make the group of the sums, and nothing is sent ahead."""

    def world_of(ranks: int, **settings: Any) -> World:
        world = run_on_fresh_ranks(ranks, **settings)
        world.join()
        return world

    return world_of


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ranks", RANKS)
def test_buckets_are_sent_while_gradients_are_computed(fresh, backend, ranks):
    """From the second step on."""
    want, world = reference("plain"), fresh(ranks)
    for stage in (0, 2):
        for bits, sent_ahead in world.run(steady, {"model": "plain", "backend": backend, "zero_stage": stage}):
            assert (bits, sent_ahead) == (want, [False] + [True] * (STEPS - 1))
    for bits, sent_ahead in world.run(steady, {"model": "plain", "backend": backend, "overlap": False}):
        assert (bits, sent_ahead) == (want, [False] * STEPS)


@pytest.mark.parametrize("settings", [{"algorithm": "ring"}, {"heap_bytes": 1 << 20}, {"transport": "tcp"}])
def test_no_setting_of_the_group_keeps_buckets_from_being_sent(fresh, settings):
    for bits, sent_ahead in fresh(2, **settings).run(steady, {"model": "plain"}):
        assert (bits, sent_ahead) == (reference("plain"), [False] + [True] * (STEPS - 1))


def collectives_of_sums(dtype: str, stage: int, micro_batches: int, weighted: bool, overlap: bool) -> dict[str, float]:
    """By kind, per bucket and step. AssertionError where the bits are not those of one process."""
    weights = (lambda leaf, step: 3 + 2 * leaf + step) if weighted else None
    module = made("plain", dtype)
    one_process(module, optimizer_for(module), loss_of, steps=STEPS, micro_batches=micro_batches, weights=weights)
    arguments = {"micro_batches": micro_batches, "zero_stage": stage, "overlap": overlap, "bucket_cap_mb": 0.001}
    ddp = DistributedDataParallel(made("plain", dtype), **arguments)
    optimizer = optimizer_of(ddp)
    for step in range(STEPS):
        for leaf in allotment("buddy", micro_batches, HERE.size)[HERE.rank]:
            with ringdp.leaf(step, leaf):
                ddp.backward(loss_of(ddp, 0, step, leaf), weight=weights(leaf, step) if weights else None)
        optimizer.step()
        optimizer.zero_grad()
    assert state_hash(ddp) == state_hash(module)
    name = ddp.reducer.leaf_steps._group.group_name
    with TemporaryDirectory() as folder:
        _native.load().write_trace(folder)
        (dump,) = read_folder(Path(folder))
    (number,) = [number for number, group in enumerate(dump.groups) if group.name == name]
    kinds = Counter(event.name for event in dump.events if event.group == number and event.kind == "enqueued")
    per_step = len(ddp.reducer.timeline()["buckets"]) * (STEPS - 1)
    return {kind: count / per_step for kind, count in kinds.items()}


def test_how_sums_that_add_up_as_the_ranks_do_are_reduced(fresh):
    """In the group of the sums; those of two types are exchanged there if they are sent ahead."""
    world = fresh(2)
    for dtype, stage, micro_batches, weighted, overlap, kinds in (
        ("float32", 0, 8, False, True, ["all_reduce"]),
        ("float32", 2, 8, False, True, ["reduce_scatter"]),
        ("float32", 0, 8, True, True, ["reduce_scatter", "all_gather"]),  # the divisor is known at the end
        ("float32", 2, 2, True, True, ["reduce_scatter"]),
        ("bfloat16", 0, 8, False, True, ["reduce_scatter", "all_gather"]),  # sums in float32
        ("bfloat16", 0, 4, True, True, ["reduce_scatter", "all_gather"]),
        ("bfloat16", 2, 4, True, True, ["reduce_scatter"]),
        ("bfloat16", 0, 2, False, True, ["all_reduce"]),
        ("bfloat16", 0, 2, True, True, ["all_to_all", "all_gather"]),  # a sum rounded to 16 bits cannot be divided
        ("bfloat16", 2, 2, True, True, ["all_to_all"]),
        ("float16", 0, 3, False, True, ["all_to_all", "all_gather"]),  # of one rank a sum, of the other a gradient
        ("float32", 0, 8, True, False, ["all_reduce"]),
        ("bfloat16", 2, 4, False, False, ["reduce_scatter"]),
        ("float16", 0, 3, False, False, []),
    ):
        found = world.run(collectives_of_sums, dtype, stage, micro_batches, weighted, overlap)
        assert found == [dict.fromkeys(kinds, 1.0)] * 2, (dtype, stage, micro_batches, weighted, overlap)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_several_sums_of_a_rank_are_one_reduction_if_all_have_one_type(fresh, transport):
    """Of 8 leaves two ranks of three have several, and of 3 leaves one rank of four has none."""
    worlds = {ranks: fresh(ranks, transport=transport) for ranks in (3, 4)}
    for ranks, dtype, stage, micro_batches, weighted, overlap, kinds in (
        (3, "float32", 0, 8, False, True, ["all_reduce"]),
        (3, "float32", 2, 8, False, True, ["reduce_scatter"]),
        (3, "float32", 0, 8, True, True, ["reduce_scatter", "all_gather"]),
        (3, "float32", 1, 8, False, False, ["all_reduce"]),
        (3, "float64", 2, 7, True, False, ["reduce_scatter"]),
        (3, "bfloat16", 0, 17, False, True, ["reduce_scatter", "all_gather"]),  # all of several gradients
        (3, "bfloat16", 2, 8, False, True, ["all_to_all"]),
        (4, "float32", 0, 3, False, True, ["all_reduce"]),
        (4, "bfloat16", 0, 3, False, True, ["all_reduce"]),  # all of one gradient
    ):
        found = worlds[ranks].run(collectives_of_sums, dtype, stage, micro_batches, weighted, overlap)
        assert found == [dict.fromkeys(kinds, 1.0)] * ranks, (ranks, dtype, stage, micro_batches, weighted, overlap)


def test_a_bucket_whose_layers_a_leaf_does_not_use_waits_for_the_end_of_that_leaf(fresh):
    """Rank 0 ends with leaf 4, which does not use a layer of the first bucket; the others use it."""
    want = reference()
    outcomes = fresh(3).run(steady, {"model": "branching"})
    assert [bits for bits, _ in outcomes] == [want] * 3
    assert [any(sent_ahead) for _, sent_ahead in outcomes] == [False, True, True]


def test_sums_of_16_bits_are_sent_ahead_in_both_forms(pair):
    for model in MODELS:
        want = reference(model, dtype="bfloat16")
        assert [bits for bits, _ in pair.run(steady, {"model": model, "dtype": "bfloat16"})] == [want] * 2


def moving() -> str:
    run = Run()
    for step in range(STEPS):
        for leaf in run.leaves(step, ("buddy", "buddy", "random", "last rank only", "last rank only", "other")[step]):
            run.one(step, leaf)
        run.end_of_step()
    return run.hash()


def in_any_order() -> str:
    run = Run()
    for step in range(STEPS):
        mine = run.leaves(step)
        for leaf in mine[::-1] if step % 2 else mine:
            run.one(step, leaf)
        run.end_of_step()
    return run.hash()


def failing_after_backward(model: str) -> str:
    """Every leaf fails once when its gradients are there."""
    run = Run(model)
    for step in range(STEPS):
        for leaf in run.leaves(step):
            with pytest.raises(ZeroDivisionError), ringdp.leaf(step, leaf):
                (3 * loss_of(run.ddp, 0, step, leaf)).backward()  # other gradients than the second time
                raise ZeroDivisionError
            run.one(step, leaf)
        run.end_of_step()
    return run.hash()


def failing_in_backward(model: str) -> str:
    """The leaves of one rank fail once; the last one, when some buckets have been sent."""
    run = Run(model)
    first = next(run.ddp.parameters())  # its gradient arrives last

    def fail(_: Tensor) -> None:
        raise ZeroDivisionError

    for step in range(STEPS):
        for leaf in run.leaves(step):
            if HERE.rank == 1:
                hook = first.register_hook(fail)
                with pytest.raises(ZeroDivisionError):
                    run.one(step, leaf, lambda *where: 3 * loss_of(*where))  # other gradients than the second time
                hook.remove()
            run.one(step, leaf)
        run.end_of_step()
    return run.hash()


def with_other_collectives() -> str:
    """Rank 0 has no leaf and calls a collective before it can send anything; the others have sent."""
    run = Run()
    for step in range(STEPS):
        for leaf in run.leaves(step, "last rank only"):
            run.one(step, leaf)
        count = torch.ones(())
        dist.all_reduce(count)
        assert count == HERE.size
        run.end_of_step()
    return run.hash()


def weighted(leaf: int, step: int) -> float:
    """All weights of steps 2 and 3, of which those of step 3 add up to the number of leaves."""
    return 1.0 if step != 2 else 0.5 + leaf


def sometimes_weighted() -> str:
    """Steps 2 and 3 have weights, the others have none."""
    run = Run()
    for step in range(STEPS):
        for leaf in run.leaves(step):
            with ringdp.leaf(step, leaf):
                loss = loss_of(run.ddp, 0, step, leaf)
                run.ddp.backward(loss, weight=weighted(leaf, step) if step in (2, 3) else None)
        run.end_of_step()
    return run.hash()


def halved(run: Run, step: int, leaf: int) -> None:
    with ringdp.leaf(step, leaf):
        (2 * loss_of(run.ddp, 0, step, leaf)).backward()
        for parameter in run.ddp.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


def changing_gradients_in_leaves() -> str:
    run = Run()
    for step in range(STEPS):
        for leaf in run.leaves(step):
            halved(run, step, leaf)
        run.end_of_step()
    assert not any(run.sent_ahead)
    return run.hash()


def changing_gradients_later(overlap: bool) -> str:
    """In one step only, in the last leaf of each rank."""
    run = Run("plain", overlap=overlap)
    for step in range(STEPS):
        mine = run.leaves(step)
        for leaf in mine:
            if step != 3 or leaf != mine[-1]:
                run.one(step, leaf)
            elif not overlap:
                halved(run, step, leaf)
            else:
                with pytest.raises(RuntimeError, match="inside ringdp.leaf, and did not so in the steps before"):
                    halved(run, step, leaf)
                run.one(step, leaf)
        run.end_of_step()
    return run.hash()


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    "program",
    [moving, in_any_order, with_other_collectives, changing_gradients_in_leaves, sometimes_weighted],
)
def test_what_does_not_go_as_expected_has_the_same_bits(world_of, ranks, program):
    loss = weighted if program is sometimes_weighted else None
    assert world_of(ranks).run(program) == [reference(weights=loss)] * ranks


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("program", [failing_after_backward, failing_in_backward])
@pytest.mark.parametrize("model", ["plain", "branching"])
def test_a_leaf_that_fails_when_some_buckets_are_sent_is_run_again(world_of, ranks, program, model):
    assert world_of(ranks).run(program, model) == [reference(model)] * ranks


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("overlap", [False, True])
def test_gradients_that_are_on_their_way_cannot_be_changed(world_of, ranks, overlap):
    assert world_of(ranks).run(changing_gradients_later, overlap) == [reference("plain")] * ranks


def in_two_passes(model: Any, rank: int, step: int, leaf: int) -> Tensor:
    """The first pass is run here; the caller runs the second one."""
    loss_of(model, rank, step, leaf).backward()
    return loss_of(model, rank, step, leaf + 1)


def several_passes() -> str:
    run = Run()
    for step in range(STEPS):
        for leaf in run.leaves(step):
            run.one(step, leaf, in_two_passes)
        run.end_of_step()
    assert not any(run.sent_ahead)
    return run.hash()


def test_leaves_of_several_backward_passes(trio):
    assert trio.run(several_passes) == [reference(loss=in_two_passes)] * 3


def said_after_two_steps(leaves: list[list[int]]) -> tuple[str, bool]:
    """What the third step says if these leaves are run in it, and whether a fourth one is right."""
    run = Run("plain")
    said = ""
    for step in range(STEPS):
        for leaf in leaves[HERE.rank] if step == 2 and not said else run.leaves(step):
            run.one(step, leaf)
        try:
            run.end_of_step()
        except RuntimeError as error:
            said = str(error)
            for leaf in run.leaves(step):
                run.one(step, leaf)
            run.end_of_step()
    return said, run.hash() == reference("plain")


@pytest.mark.parametrize(
    ("leaves", "says"),
    [
        ([[0, 1, 2, 2], [3, 4]], "micro-batch 2 was run by rank 0 twice"),
        ([[0, 1, 2], [3, 4, 0]], "micro-batch 0 was run by ranks 0, 1"),
        ([[0, 1, 2], [3]], "no rank has run micro-batch 4 of 5"),
        ([[], [3, 4]], "no rank has run micro-batches 0, 1, 2 of 5"),
        ([[0, 1, 2], [3, 4, 5]], "rank 1 ran micro-batch 5, must be one of 0 to 4"),
    ],
)
def test_a_wrong_allotment_after_sums_were_sent_is_the_same_error_on_all_ranks(pair, leaves, says):
    for said, goes_on in pair.run(said_after_two_steps, leaves):
        assert says in said
        assert goes_on


def abandoned() -> str:
    """All ranks give a step up, when some have sent sums and others have not begun; then it is run again."""
    run = Run()
    for step in range(STEPS):
        if step in (1, 3):
            for leaf in run.leaves(step) if HERE.rank != 1 else ():
                run.one(step, leaf)
            run.ddp.abandon_backward()
        for leaf in run.leaves(step):
            run.one(step, leaf)
        run.end_of_step()
    return run.hash()


@pytest.mark.parametrize("ranks", RANKS)
def test_a_step_that_is_given_up_leaves_nothing(world_of, ranks):
    assert world_of(ranks).run(abandoned) == [reference()] * ranks


def said_of_two_ideas(theirs: list[list[int]]) -> str:
    """Rank 1 has another idea of who runs what than the ranks have agreed on. With weights all send by all_to_all."""
    run = Run("plain")
    for step in range(STEPS):
        if step == 3 and HERE.rank == 1:
            run.ddp.reducer.leaf_steps._expect(theirs, weighted=True)
        for leaf in run.leaves(step):
            with ringdp.leaf(step, leaf):
                run.ddp.backward(loss_of(run.ddp, 0, step, leaf), weight=1)
        try:
            run.end_of_step()
        except RuntimeError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("theirs", [[[3, 4], [0, 1, 2]], [[3, 4, 0], [1, 2]], [[0], [1, 2, 3, 4]]])
def test_two_ideas_of_the_allotment_are_the_same_error_on_all_ranks(run_on_fresh_ranks, theirs):
    world = run_on_fresh_ranks(2)
    world.join()
    first, second = world.run(said_of_two_ideas, theirs)
    assert "the ranks have sent sums by different allotments of micro-batches (rank 0: 0x" in first
    assert first == second
