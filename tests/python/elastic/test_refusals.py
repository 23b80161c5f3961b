"""micro_batches=M: everything that does not go with it is one sentence that names it, on all ranks, and nothing hangs.

The table is run on ranks that are kept: after each refusal they take a step together, which must have the mean of all
leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import ringdp
import torch
from ranks import BACKENDS, HERE, error_of, group_of
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.elastic import Leaves
from torch import nn
from torch.distributed.algorithms.join import Join

pytestmark = pytest.mark.usefixtures("one_thread")
RANKS, MICRO_BATCHES = 3, 4
Leaf = tuple[int, int]  # step, number


def model(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), *layers)


def wrapped(backend: str, module: nn.Module | None = None, **arguments: Any) -> DistributedDataParallel:
    arguments = {"micro_batches": MICRO_BATCHES, **arguments}
    return DistributedDataParallel(module or model(), process_group=group_of(backend), **arguments)


def sgd(ddp: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(ddp.parameters(), lr=0.1)


def run(ddp: DistributedDataParallel, leaves: Sequence[Leaf], weight: Callable[[int], Any] = lambda leaf: None) -> None:
    for step, leaf in leaves:
        with ringdp.leaf(step, leaf):
            ddp.backward(ddp(torch.full((2, 4), 1.0 + leaf)).sum(), weight=weight(leaf))


def dealt(step: int = 0) -> list[Leaf]:
    """Right: each leaf on one rank."""
    return [(step, leaf) for leaf in range(HERE.rank, MICRO_BATCHES, HERE.size)]


def healthy(backend: str) -> bool:
    """Whether a step of all ranks has the mean of its leaves: 1, 2, 3, 4 times the weight's ones."""
    ddp = wrapped(backend)
    run(ddp, dealt())
    ddp.finish_step()
    return ddp.module[0].weight.grad.tolist() == [[2 * 2.5] * 4] * 3


@dataclass(frozen=True)
class Construction:
    """Arguments that the wrapper refuses, by rank if they are a function of it."""

    arguments: Any
    says: str
    module: Callable[[], nn.Module] = model

    def __call__(self, backend: str) -> None:
        given = self.arguments(HERE.rank) if callable(self.arguments) else self.arguments
        wrapped(backend, self.module(), **given)


@dataclass(frozen=True)
class Allotment:
    """Leaves that ranks run, by rank; the end of the step refuses them."""

    leaves: Callable[[int], list[Leaf]]
    says: str
    weight: Callable[[int], Any] = lambda leaf: None

    def __call__(self, backend: str) -> None:
        ddp = wrapped(backend)
        optimizer = sgd(ddp)
        run(ddp, self.leaves(HERE.rank), self.weight)
        optimizer.step()


@dataclass(frozen=True)
class Use:
    """What is done with a wrapper."""

    what: Callable[[DistributedDataParallel], object]
    says: str
    arguments: Any = None

    def __call__(self, backend: str) -> None:
        self.what(wrapped(backend, **(self.arguments or {})))


def in_a_leaf(call: Callable[[DistributedDataParallel], object]) -> Callable[[DistributedDataParallel], object]:
    def inside(ddp: DistributedDataParallel) -> None:
        with ringdp.leaf(0, 0):
            ddp(torch.ones(2, 4))
            call(ddp)

    return inside


def next_step_too_early(ddp: DistributedDataParallel) -> None:
    run(ddp, [(0, HERE.rank), (1, HERE.rank)])


def clipped_too_early(ddp: DistributedDataParallel) -> None:
    run(ddp, dealt())
    ringdp.clip_grad_norm_(ddp.parameters(), 1.0)


def beside_the_leaves(ddp: DistributedDataParallel) -> None:
    run(ddp, dealt())
    ddp.finish_step()
    ddp.module(torch.ones(2, 4)).sum().backward()
    sgd(ddp).step()


def ahead_of_the_leaves(ddp: DistributedDataParallel) -> None:
    ddp.module(torch.ones(2, 4)).sum().backward()
    run(ddp, dealt())


def out_of_step(ddp: DistributedDataParallel) -> None:
    """Rank 0 begins a backward pass while the others begin a forward pass."""
    with ringdp.leaf(0, HERE.rank):
        loss = ddp(torch.ones(2, 4)).sum()
        loss.backward() if HERE.rank == 0 else ddp(torch.ones(2, 4))


def zero(**arguments: Any) -> Callable[[DistributedDataParallel], object]:
    return lambda ddp: ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1, **arguments)


def without(*missing: int) -> Callable[[int], list[Leaf]]:
    return lambda rank: [leaf for leaf in dealt() if leaf[1] not in missing]


def more(rank: int, leaf: Leaf) -> Callable[[int], list[Leaf]]:
    return lambda here: [*dealt(), leaf] if here == rank else dealt()


CASES: dict[str, Construction | Allotment | Use] = {
    # What needs whole gradients of every pass, or another order of the sum.
    "no_sync": Use(lambda ddp: ddp.no_sync().__enter__(), "no_sync() with micro_batches=4"),
    "a hook": Use(lambda ddp: ddp.register_comm_hook(None, print), "a communication hook with micro_batches=4"),
    "torch's hook": Use(lambda ddp: ddp._register_builtin_comm_hook(None), "a communication hook with micro_batches=4"),
    "join": Use(lambda ddp: ddp.join(), "join() with micro_batches=4"),
    "torch's join": Use(lambda ddp: Join([ddp]), "join() with micro_batches=4"),
    "static later": Use(lambda ddp: ddp._set_static_graph(), "a static graph with micro_batches=4"),
    "rotated": Construction({"order": "rotated"}, "order='rotated' with micro_batches=4"),
    "drift": Construction({"check_drift": True}, "check_drift=True with micro_batches=4"),
    "static": Construction({"static_graph": True}, "static_graph=True with micro_batches=4"),
    "skipped": Construction(
        {"skip_all_reduce_unused_params": True}, "skip_all_reduce_unused_params=True with micro_batches=4"
    ),
    "delayed": Construction(
        {"delay_all_reduce_named_params": [("x", None)]}, "delay_all_reduce_named_params=[('x', None)] with"
    ),
    "buffers": Construction({"broadcast_buffers": False}, "broadcast_buffers=False with micro_batches=4"),
    "buffers later": Construction({"forward_sync_buffers": False}, "forward_sync_buffers=False with micro_batches=4"),
    "sparse": Construction(
        {}, "layer 1 is a Embedding, whose gradients are sparse", lambda: model(nn.Embedding(3, 2, sparse=True))
    ),
    "SyncBatchNorm": Construction(
        {}, "layer 1 is a SyncBatchNorm, whose statistics", lambda: model(nn.SyncBatchNorm(3))
    ),
    "steps in passes": Use(zero(overlap_with_ddp=True), "micro_batches=4", {"zero_stage": 2}),
    "late gathers": Use(zero(gather="forward"), "micro_batches=4", {"zero_stage": 2}),
    # Numbers.
    "none": Construction({"micro_batches": 0}, "micro_batches=0, must be a whole number of at least 1"),
    "yes": Construction({"micro_batches": True}, "micro_batches=True, must be a whole number of at least 1"),
    "below": Construction({"micro_batches": -3}, "micro_batches=-3, must be"),
    "a fraction": Construction({"micro_batches": 2.5}, "micro_batches=2.5, must be"),
    "text": Construction({"micro_batches": "4"}, "micro_batches='4', must be"),
    "two ideas of M": Construction(lambda rank: {"micro_batches": 4 + (rank == 1)}, "micro_batches"),
    "only some": Construction(lambda rank: {"micro_batches": 4 if rank else None}, "micro_batches"),
    # Allotments.
    "twice": Allotment(more(1, (0, 0)), "micro-batch 0 was run by ranks 0, 1"),
    "twice on a rank": Allotment(more(2, (0, 2)), "micro-batch 2 was run by rank 2 twice"),
    "by all": Allotment(lambda rank: [(0, leaf) for leaf in range(4)], "micro-batch 0 was run by ranks 0, 1, 2"),
    "missing": Allotment(without(2), "no rank has run micro-batch 2 of 4"),
    "several missing": Allotment(without(1, 3), "no rank has run micro-batches 1, 3 of 4"),
    "nothing run": Allotment(lambda rank: [(0, 0)] if rank == 0 else [], "no rank has run micro-batches 1, 2, 3 of 4"),
    "too high": Allotment(more(2, (0, 4)), "rank 2 ran micro-batch 4, must be one of 0 to 3"),
    "below zero": Allotment(more(0, (0, -1)), "rank 0 ran micro-batch -1, must be one of 0 to 3"),
    "another step": Allotment(
        lambda rank: dealt(int(rank == 2)), "different steps (ranks 0, 1: step 0; rank 2: step 1)"
    ),
    "some weights": Allotment(
        lambda rank: dealt(),
        "micro-batches 0, 1, 2 had a weight and micro-batch 3 had none",
        (5, 5, 5, None).__getitem__,
    ),
    "no weight at all": Allotment(lambda rank: dealt(), "weights of all micro-batches add up to 0.0", lambda n: 0.0),
    # Passes and steps at the wrong place.
    "outside": Use(lambda ddp: ddp(torch.ones(2, 4)), "a pass outside of ringdp.leaf"),
    "a leaf in a leaf": Use(
        in_a_leaf(lambda ddp: ringdp.leaf(0, 1).__enter__()), "ringdp.leaf(0, 1) inside ringdp.leaf"
    ),
    "an end in a leaf": Use(in_a_leaf(lambda ddp: ddp.finish_step()), "the step is to end inside ringdp.leaf(0, 0)"),
    "a step in a leaf": Use(in_a_leaf(lambda ddp: sgd(ddp).step()), "the step is to end inside ringdp.leaf(0, 0)"),
    "a step in a leaf after the end": Use(
        lambda ddp: (run(ddp, dealt()), ddp.finish_step(), in_a_leaf(lambda ddp: sgd(ddp).step())(ddp)),
        "the step is to end inside ringdp.leaf(0, 0)",
    ),
    "a pass beside them": Use(beside_the_leaves, "0.weight comes from a backward pass outside of ringdp.leaf"),
    "a pass ahead of them": Use(ahead_of_the_leaves, "0.weight comes from a backward pass outside of ringdp.leaf"),
    "whole in a leaf": Use(
        in_a_leaf(lambda ddp: ddp.gathered().__enter__()), "gathered() inside ringdp.leaf(0, 0)", {"zero_stage": 3}
    ),
    "saved in a leaf": Use(
        in_a_leaf(lambda ddp: ddp.full_state_dict()), "full_state_dict() inside ringdp.leaf(0, 0)", {"zero_stage": 3}
    ),
    "a forward pass only": Use(
        in_a_leaf(lambda ddp: ddp.backward(None, weight=0)), "no loss after a forward pass", {"zero_stage": 3}
    ),
    "out of step": Use(out_of_step, "1 begin a backward pass and the others a forward pass", {"zero_stage": 3}),
    "a weight below 0": Use(in_a_leaf(lambda ddp: ddp.backward(None, weight=-1)), "weight=-1"),
    "a weight of nothing": Use(in_a_leaf(lambda ddp: ddp.backward(None, weight=3)), "weight=3 without a loss"),
    "too early": Use(next_step_too_early, "those of step 0 are not averaged"),
    "clipped": Use(clipped_too_early, "the gradient of 0.weight is not averaged yet (micro_batches=4)"),
    "finish": Use(lambda ddp: ddp.finish_step(), "finish_step: it is for micro_batches=M", {"micro_batches": None}),
    # Samples.
    "no length": Use(lambda ddp: Leaves(None, micro_batch=1, micro_batches=4), "dataset_len=None, must be"),
    "too few": Use(lambda ddp: Leaves(7, micro_batch=2, micro_batches=4), "dataset_len=7 is less than one step"),
    "no leaf": Use(lambda ddp: Leaves(8, micro_batch=2, micro_batches=4).indices(0, 0, 4), "step 0, leaf 4"),
    "no such rank": Use(lambda ddp: Leaves(8, micro_batch=2, micro_batches=4).mine(3, 3), "rank=3, ranks=3"),
    "a leaf that is text": Use(lambda ddp: ringdp.leaf(0, "1").__enter__(), "ringdp.leaf(0, '1', seed=0)"),
    "a step that is none": Use(lambda ddp: ringdp.leaf(1.5, 0).__enter__(), "ringdp.leaf(1.5, 0, seed=0)"),
}


def refused(name: str, backend: str) -> tuple[str, bool]:
    """On a rank: what was said, and whether the ranks go on together."""
    return error_of(CASES[name], backend, kind=Exception), healthy(backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_everything_is_refused_by_name_on_all_ranks(world_of, backend):
    wrong = []
    for name, case in CASES.items():
        outcomes = world_of(RANKS).run(refused, name, backend)
        said = [text for text, _ in outcomes]
        told = [case.says in text and "\n" not in text and len(text) < 400 for text in said]
        if not all(told) or not all(goes_on for _, goes_on in outcomes):
            wrong.append(f"{name}: {outcomes}")
    assert wrong == []


def of_group(arguments: dict[str, Any]) -> str:
    return error_of(lambda: wrapped("ringdp", **arguments), kind=Exception)


def of_a_new_group() -> str:
    """The group of ranks is given to a wrapper that was made over gloo."""
    ddp = wrapped("gloo")
    return error_of(lambda: ddp._update_process_group(group_of("ringdp")), kind=Exception)


@pytest.mark.parametrize(
    ("setting", "value"), [("wire", "bf16"), ("wire", "fp16"), ("wire", "int8"), ("order", "rotated")]
)
def test_groups_that_change_bits_are_refused(world_of, setting, value):
    world = world_of(2, **{setting: value})
    for said in [*world.run(of_group, {}), *world.run(of_group, {"zero_stage": 3}), *world.run(of_a_new_group)]:
        assert f"the process group was made with {setting}={value!r}, and micro_batches=4 promises" in said
