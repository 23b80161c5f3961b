"""Gradients that nobody averaged are refused before a step, at every stage; programs that mean it so go on."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, error_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import parameters_hash
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import batch, fresh, loss_of, reference
from torch import nn

Program = Callable[[DistributedDataParallel, torch.optim.Optimizer], None]


def two_forwards_two_backwards(ddp: DistributedDataParallel, _: torch.optim.Optimizer) -> None:
    losses = [loss_of(ddp, HERE.rank, 0, micro) for micro in range(2)]
    for loss in losses:
        loss.backward()


def two_backwards_on_one_forward(ddp: DistributedDataParallel, _: torch.optim.Optimizer) -> None:
    loss = loss_of(ddp, HERE.rank, 0, 0)
    loss.backward(retain_graph=True)
    loss.backward()


def around_the_wrapper(ddp: DistributedDataParallel, _: torch.optim.Optimizer) -> None:
    loss_of(ddp.module, HERE.rank, 0, 0).backward()


def by_hand(ddp: DistributedDataParallel, _: torch.optim.Optimizer) -> None:
    parameters = list(ddp.parameters())
    found = torch.autograd.grad(loss_of(ddp, HERE.rank, 0, 0), parameters)
    for parameter, gradient in zip(parameters, found, strict=True):
        parameter.grad = gradient


def by_hand_in_the_second_step(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    loss_of(ddp, HERE.rank, 0, 0).backward()
    optimizer.step()
    optimizer.zero_grad()
    by_hand(ddp, optimizer)


PROGRAMS: dict[Program, str] = {
    two_forwards_two_backwards: "run all pairs of passes but the last under no_sync()",
    two_backwards_on_one_forward: "add the losses and call backward once",
    around_the_wrapper: "called as ddp.module(...)",
    by_hand: "put into .grad by hand",
    by_hand_in_the_second_step: "put into .grad by hand",
}


def optimizer_at(stage: int, parameters: Any) -> torch.optim.Optimizer:
    if stage == 0:
        return torch.optim.AdamW(parameters, lr=1e-2)
    return ZeroOptimizer(parameters, torch.optim.AdamW, lr=1e-2)


def said_by(stage: int, program: Program) -> tuple[str, bool]:
    """On a rank: the error of the program's step, and whether the parameters are as before it."""
    ddp = DistributedDataParallel(fresh(), zero_stage=stage)
    optimizer = optimizer_at(stage, ddp.parameters())
    before: list[torch.Tensor] = []
    try:
        program(ddp, optimizer)
        before = copy.deepcopy(list(ddp.parameters())) if stage < 3 else []
        optimizer.step()
    except (RuntimeError, ValueError) as error:
        return str(error), all(torch.equal(p, was) for p, was in zip(ddp.parameters(), before, strict=False))
    return "", True


# At stage 3 the module has no values to run with outside of the wrapper.
CASES = [(program, stage) for program in PROGRAMS for stage in range(3 if program is around_the_wrapper else 4)]


@pytest.mark.parametrize(("program", "stage"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_a_step_with_them_is_refused_by_name(pair, program, stage):
    for said, unchanged in pair.run(said_by, stage, program):
        if stage < 2:
            assert PROGRAMS[program] in said and "0.weight" in said and unchanged
        else:  # .grad itself refuses what is added to it
            named = r"gradient of [024]\.(weight|bias) (is averaged and in shards|has not been averaged)"
            assert re.search(named, said), said


@pytest.mark.parametrize("stage", [0, 1, 2])
@on_ranks(2)
def test_a_pass_that_is_still_open_names_what_it_waits_for(stage: int) -> None:
    """The error of a step after a pass in which most gradients have not come."""
    ddp = DistributedDataParallel(fresh(), zero_stage=stage)
    optimizer = optimizer_at(stage, ddp.parameters())
    loss_of(ddp, HERE.rank, 0, 0).backward(inputs=[ddp.module[4].bias])
    waits_for = "0.weight, 0.bias, 2.weight, 2.bias, 4.weight\n"
    with pytest.raises(RuntimeError, match=f"did not receive grad for rank {HERE.rank}: {waits_for}"):
        optimizer.step()


@pytest.mark.parametrize("stage", [0, 1, 2])
@on_ranks(2, error="0.weight was frozen when the model was wrapped")
def test_a_layer_that_is_unfrozen_later_is_named(stage: int) -> None:
    """The error of a forward pass after a layer was unfrozen."""
    model = fresh()
    model[0].requires_grad_(False)
    ddp = DistributedDataParallel(model, zero_stage=stage)
    loss_of(ddp, HERE.rank, 0, 0).backward()
    model[0].requires_grad_(True)
    with torch.no_grad():
        loss_of(ddp, HERE.rank, 0, 0)  # nobody asks for gradients
    loss_of(ddp, HERE.rank, 0, 0)


@on_ranks(2)
def test_a_loop_without_an_optimizer_hears_of_it_at_the_next_forward_pass() -> None:
    """What the next two forward passes say after a loop without an optimizer has stepped."""
    ddp = DistributedDataParallel(fresh())
    loss_of(ddp.module, HERE.rank, 0, 0).backward()
    with torch.no_grad():
        for parameter in ddp.parameters():
            parameter -= 0.1 * parameter.grad
    with pytest.raises(RuntimeError, match=r"ddp\.module\(\.\.\.\)"):
        loss_of(ddp, HERE.rank, 0, 0)
    loss_of(ddp, HERE.rank, 0, 0)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize(
    "before_each_step",
    ["a gradient that is thrown away", "one that is zeroed", "torch.autograd.grad", "scaled by hand"],
)
@on_ranks(2)
def test_what_is_not_stepped_with_is_nobodys_business(stage: int, before_each_step: str) -> None:
    """Three steps, with something harmless in each."""
    ddp = DistributedDataParallel(fresh(), zero_stage=stage)
    optimizer = optimizer_at(stage, ddp.parameters())
    for step in range(3):
        if before_each_step == "a gradient that is thrown away":
            loss_of(ddp.module, HERE.rank, 0, 0).backward()
        elif before_each_step == "one that is zeroed":
            loss_of(ddp.module, HERE.rank, 0, 0).backward()
            optimizer.zero_grad(set_to_none=False)
        elif before_each_step == "torch.autograd.grad":
            torch.autograd.grad(loss_of(ddp, HERE.rank, 9, 9), list(ddp.parameters()))
        optimizer.zero_grad()
        loss = loss_of(ddp, HERE.rank, step, 0)
        loss.backward()
        if before_each_step == "scaled by hand":
            for parameter in ddp.parameters():
                parameter.grad = parameter.grad * 1.0
        optimizer.step()
    assert parameters_hash(ddp) == reference()


def kept_to_itself(stage: int) -> str:
    """On a rank: a step with what a pass under no_sync() has left; the error, or "" where ranks may differ."""
    ddp = DistributedDataParallel(fresh(), zero_stage=stage)
    optimizer = optimizer_at(stage, ddp.parameters())
    with ddp.no_sync():
        loss_of(ddp.module, HERE.rank, 0, 0).backward()
        loss_of(ddp, HERE.rank, 0, 0).backward()
    return error_of(optimizer.step)


def test_no_sync_keeps_gradients_where_they_may_be_stepped_with(pair):
    assert pair.run(kept_to_itself, 0) == [""] * 2
    for stage in (1, 2):
        for said in pair.run(kept_to_itself, stage):
            assert "ran under no_sync()" in said and "0.weight" in said


def by_closure(stage: int, around: bool) -> str:
    """On a rank: the hash of three steps of two micro-batches, the last in a closure.

    around: the closure's pass goes around the wrapper.
    """
    ddp = DistributedDataParallel(fresh(), zero_stage=stage)
    optimizer = optimizer_at(stage, ddp.parameters())
    for step in range(3):
        optimizer.zero_grad()
        if not around:
            with ddp.no_sync():
                loss_of(ddp, HERE.rank, step, 0).backward()

        def closure(step: int = step) -> torch.Tensor:
            loss = loss_of(ddp.module if around else ddp, HERE.rank, step, 1)
            loss.backward()
            return loss

        optimizer.step(closure=closure)
    return parameters_hash(ddp)


def in_one_process() -> str:
    return reference(accumulate=2)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_step_by_closure_is_judged_after_its_pass(pair, stage):
    assert pair.run(by_closure, stage, False) == pair.run(in_one_process)
    if stage == 0:
        assert all("called as ddp.module(...)" in outcome.error for outcome in pair.attempt(by_closure, stage, True))


@on_ranks(2, True)
def test_two_steps_with_one_pass() -> bool:
    """Two steps with the gradients of one pass, as of a plain model with the same means."""
    ddp, plain = DistributedDataParallel(fresh()), fresh()
    loss_of(ddp, HERE.rank, 0, 0).backward()
    for ours, theirs in zip(ddp.parameters(), plain.parameters(), strict=True):
        theirs.grad = ours.grad.clone()
    for model in (ddp, plain):
        optimizer = optimizer_at(0, model.parameters())
        optimizer.step()
        optimizer.step()
    return parameters_hash(ddp) == parameters_hash(plain)


@on_ranks(2, True)
def test_an_optimizer_in_a_hook_of_the_pass_goes_on() -> bool:
    """A communication hook that steps each bucket as its mean comes."""
    ddp, expected = DistributedDataParallel(fresh()), reference(2)
    optimizer = optimizer_at(0, ddp.parameters())

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        def step(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            mean = future.value()[0].div_(HERE.size)
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                parameter.grad = gradient
            optimizer.step()
            optimizer.zero_grad()
            return mean

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(step)

    hook.__annotations__.clear()  # torch wants types there, and these are text
    ddp.register_comm_hook(None, hook)
    for number in range(2):
        ddp.zero_grad()
        loss_of(ddp, HERE.rank, number, 0).backward()
    return parameters_hash(ddp) == expected


def alone() -> None:
    """On the only rank: nobody else's gradient is missing."""
    ddp = DistributedDataParallel(nn.Linear(12, 3))
    ddp.module(batch(0, 0)[0]).sum().backward()
    torch.optim.SGD(ddp.parameters(), lr=0.1).step()


def test_a_world_of_one_has_nobody_to_average_with(world_of):
    world_of(1).run(alone)


@pytest.mark.parametrize("averages", [True, False])
@on_ranks(2, True)
def test_lbfgs_needs_one_loss_of_all_ranks(averages: bool) -> bool:
    """It decides by the loss. With the mean replicas stay equal; without, the ranks' losses are named."""
    ddp = DistributedDataParallel(fresh())
    optimizer = torch.optim.LBFGS(ddp.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(ddp, HERE.rank, 0, 0)
        loss.backward()
        loss = loss.detach()
        if averages:
            dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        return loss

    said = error_of(optimizer.step, closure)
    hashes: list[str] = [""] * HERE.size
    dist.all_gather_object(hashes, parameters_hash(ddp))
    return (
        (said == "") is averages
        and ("return from the closure the mean" in said) is not averages
        and (len(set(hashes)) == 1)
    )


@on_ranks(2, 1)
def test_a_last_window_that_no_pass_has_averaged_is_told_once() -> int:
    """Accumulation over two micro-batches where the data ends after an odd one."""
    ddp = DistributedDataParallel(fresh())
    optimizer = optimizer_at(0, ddp.parameters())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for epoch in range(2):
            for number in range(5):
                ddp.require_backward_grad_sync = number % 2 == 1
                loss_of(ddp, HERE.rank, epoch, number).backward()
                if number % 2 == 1 or number == 4:
                    optimizer.step()
                    optimizer.zero_grad()
    return sum("uses gradients that no_sync() has kept on this rank" in str(one.message) for one in told)


def assigned(ddp: DistributedDataParallel) -> None:
    ddp.module.load_state_dict({k: v.clone() for k, v in ddp.module.state_dict().items()}, assign=True)


def added(ddp: DistributedDataParallel) -> None:
    ddp.module.append(nn.Linear(3, 3))


def replaced(ddp: DistributedDataParallel) -> None:
    ddp.module[0].bias = nn.Parameter(ddp.module[0].bias.detach().clone())


@pytest.mark.parametrize("change", [assigned, added, replaced])
@pytest.mark.parametrize("stage", [0, 1, 2])
@on_ranks(2, [True, True, ""])
def test_parameters_that_came_after_the_wrapper_are_not_stepped(stage: int, change: Any) -> list[Any]:
    """Twice, as an error that was caught must not let the next step through; without gradients they do no harm."""
    ddp = DistributedDataParallel(fresh(), zero_stage=stage)
    change(ddp)
    known = {id(parameter) for parameter in ddp.reducer.parameters}
    new = [parameter for parameter in ddp.module.parameters() if id(parameter) not in known]
    optimizer = torch.optim.SGD(new, lr=0.1)
    said = [error_of(optimizer.step)]
    for _ in range(2):
        ddp.module(batch(HERE.rank, 0)[0]).sum().backward()
        said.append("came after the model was wrapped" in error_of(optimizer.step))
    return [*said[1:], said[0]]


class WithTeacher(nn.Module):
    """A network, and one that comes later and is never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.net = fresh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


@on_ranks(2, "")
def test_a_teacher_that_comes_later_does_no_harm() -> str:
    ddp = DistributedDataParallel(WithTeacher())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    ddp.module.teacher = copy.deepcopy(ddp.module.net)
    ddp.module.metric = nn.Linear(2, 2)
    loss_of(ddp, HERE.rank, 0, 0).backward()
    return error_of(optimizer.step)
