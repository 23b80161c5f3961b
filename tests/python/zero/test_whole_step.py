"""A step of all buckets: settings that a class changes, a step that fails on its way, what autograd may use later."""

from __future__ import annotations

import torch
from ranks import HERE
from ringdp.zero import native
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import loss_of
from zero_rig import ADAMW, differences, reference, steps, wrapped


class Slowing(torch.optim.Optimizer):
    """Its rate falls with the steps that it counts in its group."""

    element_wise = True

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "k": 0})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * (group["lr"] / (1 + group["k"])))
            group["k"] += 1


def counted(stage: int, overlap: bool) -> tuple[int, list[str]]:
    """On a rank: steps that the class has counted, and what differs from one process."""
    ddp = wrapped(stage, bucket_cap_mb=0.001)
    optimizer = ZeroOptimizer(ddp.parameters(), Slowing, overlap_with_ddp=overlap)
    steps(ddp, optimizer, 3)
    torch.optim.Slowing = Slowing  # where the reference looks for it
    try:
        return optimizer.param_groups[0]["k"], differences(ddp, optimizer, *reference("Slowing", 3, {}))
    finally:
        del torch.optim.Slowing


def test_a_class_that_counts_steps_counts_one_on_every_rank(trio):
    for stage, overlap in ((1, False), (2, False), (2, True), (3, True)):
        assert trio.run(counted, stage, overlap) == [(3, [])] * 3


def failing() -> tuple[list[str], list[str]]:
    """On a rank: what a failed step leaves, and after loading what differs."""
    ddp = wrapped(2)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
    steps(ddp, optimizer, 1)
    optimizer.consolidate_state_dict()
    saved = [None if HERE.rank else optimizer.state_dict()]
    torch.distributed.broadcast_object_list(saved)
    values = {name: value.clone() for name, value in ddp.module.state_dict().items()}
    right, said = native.run, []

    def wrong(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    native.run = wrong
    loss_of(ddp, HERE.rank, 1, 0).backward()
    for call in (optimizer.step, optimizer.step, optimizer.consolidate_state_dict):
        try:
            call()
            said.append("")
        except (RuntimeError, MemoryError) as error:
            said.append(str(error))
        native.run = right
    optimizer.zero_grad()
    ddp.module.load_state_dict(values)
    optimizer.load_state_dict(saved[0])
    steps(ddp, optimizer, 2, start=1)
    return said, differences(ddp, optimizer, *reference("AdamW", 3, ADAMW))


def test_a_step_that_fails_on_its_way_leaves_the_state_torn(pair):
    for said, wrong in pair.run(failing):
        assert "no room" in said[0] and "torn" in said[1] and "torn" in said[2]
        assert wrong == []


def old_graph(stage: int) -> str:
    """On a rank: what autograd says to a second backward pass over a graph from before the step."""
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
    loss = loss_of(ddp, HERE.rank, 0, 0)
    loss.backward(retain_graph=True)
    optimizer.step()
    try:
        with ddp.no_sync():
            loss.backward()
    except RuntimeError as error:
        return str(error)
    return ""


def test_graphs_from_before_a_step_are_refused_by_autograd(pair):
    for stage in (1, 2):
        assert all("modified by an inplace operation" in said for said in pair.run(old_graph, stage))


def zeroed(stage: int) -> list[bytes]:
    """On a rank: parameters after a step, and after another one of zeros with momentum."""
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    loss_of(ddp, HERE.rank, 0, 0).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    return [p.detach().numpy().tobytes() for p in ddp.parameters()]


def test_zeros_are_stepped_where_gradients_are_set_to_zero(pair):
    assert pair.run(zeroed, 1) == pair.run(zeroed, 2)
