"""Optimizers that step with other settings on some ranks, or not at all there, are named in the next pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import BACKENDS, HERE, error_of, group_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import batch, fresh, loss_of
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import SGD, AdamW, Optimizer


def optimizer_at(stage: int, ddp: DistributedDataParallel, kind: Any = SGD, **given: Any) -> Optimizer:
    return ZeroOptimizer(ddp.parameters(), kind, **given) if stage else kind(ddp.parameters(), **given)


def plateau(optimizer: Optimizer, step: int) -> None:
    """What ReduceLROnPlateau does to a loss that only this rank has seen."""
    if step == 1 and HERE.rank == 1:
        optimizer.param_groups[0]["lr"] = 0.05
    optimizer.step()


def not_on_rank_1(optimizer: Optimizer, step: int) -> None:
    if step != 1 or HERE.rank != 1:
        optimizer.step()


def with_a_tensor(optimizer: Optimizer, step: int) -> None:
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1 + 0.1 * (step == 1 and HERE.rank == 1))
    optimizer.step()


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (plateau, "lr of param group 0 of SGD by rank: 0.1, 0.05"),
        (not_on_rank_1, "lr of param group 0 of SGD by rank: 0.1, no step"),
        (with_a_tensor, "lr of param group 0 of SGD by rank: 0.1"),
    ],
)
@pytest.mark.parametrize("drift", [False, True])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@on_ranks(2, True)
def test_ranks_that_step_otherwise_are_named(
    stage: int, drift: bool, step: Callable[[Optimizer, int], None], told: str
) -> bool:
    """In the pass after the step; not before. With check_drift a parameter may be named first."""
    if drift and stage == 3:
        return True  # refused
    if stage and step.__name__ != plateau.__name__:  # here the module has another name
        return True  # a step of shards is collective, and a rate for shards is a number
    ddp = DistributedDataParallel(fresh(), zero_stage=stage, check_drift=drift, bucket_cap_mb=0.001)
    optimizer = optimizer_at(stage, ddp, lr=0.1)
    said = []
    for number in range(3):
        optimizer.zero_grad()
        said.append(error_of(loss_of(ddp, HERE.rank, number, 0).backward))
        if not said[-1]:
            step(optimizer, number)
    told = told.replace("SGD", type(optimizer).__name__)
    return said[:2] == ["", ""] and (told in said[2] or (drift and stage == 0 and "drifted apart" in said[2]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stage", [0, 2])
@on_ranks(2, "")
def test_what_all_ranks_do_is_no_difference(stage: int, backend: str) -> str:
    """A schedule that changes rate and betas, a step that all leave out, a second optimizer, no_sync, evaluation."""
    ddp = DistributedDataParallel(fresh(), zero_stage=stage, process_group=group_of(backend))
    optimizer = optimizer_at(stage, ddp, AdamW, lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8)
    own = torch.nn.Parameter(torch.zeros(3))
    other = SGD([own], lr=0.1 * (1 + HERE.rank))  # a parameter that the wrapper does not know
    for step in range(6):
        optimizer.zero_grad()
        with ddp.no_sync():
            loss_of(ddp, HERE.rank, step, 0).backward()
        if said := error_of(loss_of(ddp, HERE.rank, step, 1).backward):
            return said
        own.sum().backward()
        other.step()
        if step != 2:
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            ddp(batch(HERE.rank, step)[0])
    return ""


@on_ranks(2, [True, False])
def test_a_load_on_one_rank_is_named_at_stage_3() -> list[bool]:
    """There a rank takes its own part only, so the ranks' parts would be of two states."""
    named = []
    for loads in ([0], [0, 1]):
        ddp = DistributedDataParallel(fresh(), zero_stage=3)
        if HERE.rank in loads:
            ddp.module.load_state_dict(fresh().state_dict())
        said = error_of(lambda ddp=ddp: [loss_of(ddp, HERE.rank, 0, 0).backward(), ddp(batch(HERE.rank, 1)[0])])
        named.append("load_state_dict() of" in said)
    return named


@on_ranks(3, "")
def test_an_optimizer_inside_another_has_parts_that_differ() -> str:
    """Torch's own sharded optimizer steps other parameters on each rank."""
    ddp = DistributedDataParallel(torch.nn.Linear(2, 2, bias=False))  # one parameter, which one rank steps
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=AdamW, lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        if said := error_of(ddp(torch.ones(1, 2)).sum().backward):
            return said
        optimizer.step()
    return ""


@on_ranks(2, True)
def test_a_step_that_fails_hides_no_later_one() -> bool:
    """Of another optimizer."""
    ddp = DistributedDataParallel(fresh())
    other, optimizer = (
        SGD([torch.zeros(1, requires_grad=True)], lr=0.1),
        SGD(ddp.parameters(), lr=0.1 * (1 + HERE.rank)),
    )

    def fails() -> None:
        raise ValueError("no data")

    loss_of(ddp, HERE.rank, 0, 0).backward()
    failed = "no data" in error_of(other.step, fails, kind=ValueError)
    optimizer.step()
    optimizer.zero_grad()
    return failed and "lr of param group 0" in error_of(loss_of(ddp, HERE.rank, 1, 0).backward)


@on_ranks(2, "")
def test_an_optimizer_that_is_gone_on_one_rank_only() -> str:
    """A garbage collector comes by when it likes; what counts is who has stepped since the latest pass."""
    ddp = DistributedDataParallel(fresh())
    kept = []
    for step in range(4):
        optimizer = SGD(ddp.parameters(), lr=0.1 * (step + 1))
        if HERE.rank == 0:
            kept.append(optimizer)
        if said := error_of(loss_of(ddp, HERE.rank, step, 0).backward):
            return said
        optimizer.step()
        optimizer.zero_grad()
    return ""


def of_no_number() -> float:
    return 0.1


class Odd(SGD):
    """Its defaults hold what has no equal text on two ranks."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        for group in self.param_groups:
            group["schedule"] = lambda: of_no_number() + HERE.rank
        self.defaults["schedule"] = None


def with_a_head(ddp: DistributedDataParallel) -> Optimizer:
    """A group of this rank alone, with a rate of its own."""
    head = torch.nn.Parameter(torch.zeros(3), requires_grad=True)
    return SGD([{"params": [head], "lr": 0.3 + HERE.rank}, {"params": list(ddp.parameters())}], lr=0.1)


def with_numbers_of_two_kinds(ddp: DistributedDataParallel) -> Optimizer:
    given = {"lr": 1, "weight_decay": -0.0} if HERE.rank else {"lr": 1.0, "weight_decay": 0}
    return AdamW(ddp.parameters(), betas=[0.9, 0.99] if HERE.rank else (0.9, 0.99), **given)


def with_a_function(ddp: DistributedDataParallel) -> Optimizer:
    return Odd(ddp.parameters())


@pytest.mark.parametrize("make", [with_a_function, with_a_head, with_numbers_of_two_kinds])
@on_ranks(2, "")
def test_settings_that_are_equal_are_no_difference(make: Callable[[DistributedDataParallel], Optimizer]) -> str:
    ddp = DistributedDataParallel(fresh())
    optimizer = make(ddp)
    for step in range(3):
        if said := error_of(loss_of(ddp, HERE.rank, step, 0).backward):
            return said
        optimizer.step()
        optimizer.zero_grad()
    return ""


@pytest.mark.parametrize("drift", [False, True])
@on_ranks(3, "")
def test_ranks_that_run_out_of_inputs_have_other_rates(drift: bool) -> str:
    """Of an iteration that the others have not seen; twice, as the first pass of an epoch has all ranks again."""
    ddp = DistributedDataParallel(fresh(), check_drift=drift)
    optimizer = SGD(ddp.parameters(), lr=0.1)
    for _ in range(2):
        with ddp.join():
            for step in range(2 + HERE.rank):
                optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
                loss_of(ddp, HERE.rank, step, 0).backward()
                optimizer.step()
                optimizer.zero_grad()
    return ""


@on_ranks(2, "")
def test_an_abandoned_pass_is_forgotten() -> str:
    """Rank 0 has ended it, rank 1 has not."""
    ddp = DistributedDataParallel(fresh())
    optimizer = SGD(ddp.parameters(), lr=0.1)
    loss_of(ddp, HERE.rank, 0, 0).backward()
    optimizer.step()
    optimizer.zero_grad()
    loss_of(ddp, HERE.rank, 1, 0).backward()
    if HERE.rank == 0:
        optimizer.step()
    ddp.abandon_backward()
    with torch.no_grad():
        for parameter in ddp.parameters():
            parameter.zero_()
    return error_of(loss_of(ddp, HERE.rank, 2, 0).backward)
