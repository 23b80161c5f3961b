"""micro_batches=M: programs that do more around the leaves than usual have the bits of one process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest
import ringdp
import torch
from leafy import allotment, loss_of, made, optimizer_for, state_hash
from ranks import BACKENDS, HERE, group_of
from ringdp.ddp import unaveraged
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from torch import Tensor

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, LEAVES = 3, 5


def reference(loss: Callable[..., Tensor] = loss_of, model: str = "branching") -> str:
    module = made(model)
    one_process(module, optimizer_for(module), loss, steps=STEPS, micro_batches=LEAVES)
    return state_hash(module)


def wrapped(model: str = "branching", backend: str = "ringdp", **arguments: Any) -> DistributedDataParallel:
    return DistributedDataParallel(
        made(model), process_group=group_of(backend), micro_batches=LEAVES, bucket_cap_mb=0.001, **arguments
    )


def self_taught(training: bool, model: Any, rank: int, step: int, leaf: int) -> Tensor:
    """A pass without gradients, which reads BatchNorm's buffers and, if training, changes them, comes first."""
    model.train(training)
    with torch.no_grad():
        target = loss_of(model, rank, step, leaf)
    model.train()
    return (loss_of(model, rank, step, leaf) - 0.5 * target).square()


def taught_by_itself(model: Any, rank: int, step: int, leaf: int) -> Tensor:
    return self_taught(False, model, rank, step, leaf)


def taught_in_training(model: Any, rank: int, step: int, leaf: int) -> Tensor:
    return self_taught(True, model, rank, step, leaf)


def run(loss: Callable[..., Tensor], kind: str) -> str:
    ddp = wrapped()
    optimizer = optimizer_for(ddp)
    for step in range(STEPS):
        for leaf in reversed(allotment(kind, LEAVES, HERE.size)[HERE.rank]):
            with ringdp.leaf(step, leaf):
                loss(ddp, HERE.rank, step, leaf).backward()
        optimizer.step()
        optimizer.zero_grad()
    return state_hash(ddp)


@pytest.mark.parametrize("kind", ["buddy", "random"])
@pytest.mark.parametrize("loss", [taught_by_itself, taught_in_training])
def test_passes_without_gradients_see_the_buffers_of_the_step(world_of, loss, kind):
    for ranks in (1, 3):
        assert set(world_of(ranks).run(run, loss, kind)) == {reference(loss)}


def with_a_cache(model: Any, rank: int, step: int, leaf: int) -> Tensor:
    """A module in front of BatchNorm registers a buffer of its buffers' shape in its first pass."""
    inner = getattr(model, "module", model)
    if "cache" not in inner._buffers:
        inner.register_buffer("cache", torch.full_like(inner.norm.running_mean, 7.0))
    return loss_of(model, rank, step, leaf) * inner.cache.mean()


def test_a_buffer_that_is_registered_in_a_leaf_takes_no_other_one_s_place(world_of):
    for ranks in (1, 3):
        assert set(world_of(ranks).run(run, with_a_cache, "random")) == {reference(with_a_cache)}


def only_looks() -> list[bool]:
    """A wrapper that has no pass with gradients in any leaf keeps the buffers that it has outside of leaves."""
    ddp = wrapped()
    seen = []
    for step in range(2):
        with torch.no_grad():
            ddp(torch.ones(4, 6) * step, 0)
        before = ddp.module.norm.running_mean.clone()
        with ringdp.leaf(step, 0), torch.no_grad():
            ddp(torch.ones(4, 6) * HERE.rank, 0)
        seen.append(torch.equal(before, ddp.module.norm.running_mean))
    return seen


def test_a_wrapper_without_gradients_keeps_its_buffers(pair):
    assert pair.run(only_looks) == [[True, True]] * 2


def twins() -> str:
    """Four wrappers of equal size under one optimizer."""
    wrappers = [wrapped("plain") for _ in range(4)]
    assert list(unaveraged._reducers.values())[-4:] == [ddp.reducer for ddp in wrappers]
    optimizer = torch.optim.AdamW([p for ddp in wrappers for p in ddp.parameters()], lr=1e-2)
    for step in range(STEPS):
        for leaf in allotment("buddy", LEAVES, HERE.size)[HERE.rank]:
            with ringdp.leaf(step, leaf):
                sum((n + 1) * loss_of(ddp, HERE.rank, step, leaf) for n, ddp in enumerate(wrappers)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return " ".join(map(state_hash, wrappers))


def twins_in_one_process() -> str:
    models = torch.nn.ModuleList(made("plain") for _ in range(4))

    def loss(model: Any, rank: int, step: int, leaf: int) -> Tensor:
        return sum((n + 1) * loss_of(one, rank, step, leaf) for n, one in enumerate(model))

    one_process(models, optimizer_for(models), loss, steps=STEPS, micro_batches=LEAVES)
    return " ".join(map(state_hash, models))


def test_several_wrappers_of_one_optimizer_are_averaged_in_one_order(world_of):
    for ranks in (1, 3):
        assert set(world_of(ranks).run(twins)) == {twins_in_one_process()}


def moved(backend: str) -> str:
    """In every step rank 0's first leaf fails behind its backward pass, and rank 1 runs it."""
    ddp = wrapped(backend=backend, find_unused_parameters=True)
    optimizer = optimizer_for(ddp)
    for step in range(STEPS):
        mine = allotment("buddy", LEAVES, HERE.size)
        first, *others = mine[0]
        if HERE.rank == 0:
            run_leaves(ddp, step, others)
            with suppress(ZeroDivisionError), ringdp.leaf(step, first):
                loss_of(ddp, 0, step, first).backward()
                raise ZeroDivisionError
        else:
            run_leaves(ddp, step, [*mine[HERE.rank], *([first] if HERE.rank == 1 else [])])
        optimizer.step()
        optimizer.zero_grad()
    return state_hash(ddp)


def run_leaves(ddp: Any, step: int, leaves: Iterable[int]) -> None:
    for leaf in leaves:
        with ringdp.leaf(step, leaf):
            loss_of(ddp, HERE.rank, step, leaf).backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_leaf_that_fails_in_the_first_step_may_move(trio, backend):
    assert trio.run(moved, backend) == [reference()] * 3


def by_two_optimizers() -> str:
    """Rank 2 has no leaf, and a second optimizer goes on where the first has ended."""
    ddp = wrapped("plain")
    for step in range(STEPS):
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1 / (step + 1))
        run_leaves(ddp, step, [[0, 1, 2], [3, 4], []][HERE.rank])
        optimizer.step()
    return state_hash(ddp)


def test_a_new_optimizer_steps_with_new_means(trio):
    assert len(set(trio.run(by_two_optimizers))) == 1


def joins(first_steps: int) -> str:
    """A rank whose wrapper has stepped less often gets the group of the others."""
    ddp = wrapped("plain", backend="gloo")
    ddp.reducer.leaf_steps._optimizer_steps = first_steps * HERE.rank
    ddp._update_process_group(group_of("ringdp"))
    run_leaves(ddp, 0, allotment("buddy", LEAVES, HERE.size)[HERE.rank])
    torch.optim.SGD(ddp.parameters(), lr=0.1).step()
    return state_hash(ddp)


def test_wrappers_that_meet_in_a_group_count_steps_anew(pair):
    assert len(set(pair.run(joins, 7))) == 1


def one_of_two_fails() -> str:
    """Two wrappers share a leaf, and the end of the first one's part fails once."""
    wrappers = [wrapped("plain"), wrapped("plain")]
    optimizer = torch.optim.AdamW([p for ddp in wrappers for p in ddp.parameters()], lr=1e-2)
    for step in range(STEPS):
        for leaf in allotment("buddy", LEAVES, HERE.size)[HERE.rank]:
            for tries in range(2 if leaf == 0 else 1):
                part = wrappers[0].reducer.leaf_steps
                if leaf == 0 and tries == 0:
                    part.end = fails
                with suppress(ZeroDivisionError), ringdp.leaf(step, leaf):
                    sum(loss_of(ddp, HERE.rank, step, leaf) for ddp in wrappers).backward()
                if leaf == 0 and tries == 0:
                    del part.end
                    part.abandon()
        optimizer.step()
        optimizer.zero_grad()
    return state_hash(wrappers[0]) + " " + state_hash(wrappers[1])


def fails(*_: object) -> None:
    raise ZeroDivisionError


def test_wrappers_behind_one_that_fails_forget_the_leaf(pair):
    expected = reference(model="plain")
    assert pair.run(one_of_two_fails) == [f"{expected} {expected}"] * 2


def numbered() -> list[int]:
    """The number of each step in the times of a wrapper that sends nothing ahead."""
    ddp = wrapped("plain", overlap=False)
    optimizer, numbers = optimizer_for(ddp), []
    for step in range(STEPS):
        run_leaves(ddp, step, allotment("buddy", LEAVES, HERE.size)[HERE.rank])
        optimizer.step()
        numbers.append(ddp.reducer.timeline()["step"])
    return numbers


def test_steps_are_counted_once(pair):
    assert pair.run(numbered) == [[1, 2, 3]] * 2


def described() -> tuple[str, list[int], bool]:
    """What explain() says, what memory() counts after each leaf in models, and whether .grad outlives the wrapper."""
    ddp = wrapped("plain")
    whole, counted = sum(p.nbytes for p in ddp.parameters()), []
    for leaf in (0, 3, 4):
        run_leaves(ddp, 0, [leaf])
        counted.append(ddp.memory().gradients // whole)
    said, module = str(ddp.explain()), ddp.module
    del ddp
    gc.collect()
    module(torch.ones(2, 6), 0).sum().backward()
    return said, counted, all(p.grad.isfinite().all() for p in module.parameters())


def test_what_is_said_of_leaves(world_of):
    ((said, counted, is_free),) = world_of(1).run(described)
    assert "summed along the tree of micro-batches" in said and counted == [1, 2, 2] and is_free
