"""A user's loop the wrong way round: what is wrong is named, where it happens and on all ranks; nothing hangs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import leafy
import pytest
import ringdp
import torch
import torch.distributed as dist
from local_runs import CELLS, begun, digests, trained
from ranks import BACKENDS, HERE, error_of, on_ranks
from ringdp.testing import parameters_hash
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")
CELL = {"workers": 4, "every": 2, "model": "plain"}
ERRORS = (RuntimeError, ValueError)
LEFT_OUT = ": every worker makes every step; one without samples opens its block and leaves it"


def one(local: Any, model: nn.Module, *workers: int) -> None:
    """The blocks of these workers (default: all) in the running step."""
    for worker in workers or local.workers():
        with local.worker(worker):
            leafy.loss_of(model, 0, local.steps, worker).backward()


def entered(local: Any, worker: int) -> None:
    with local.worker(worker):
        pass


def blocks() -> list[str]:
    """On a rank: errors that need nobody else."""
    model, local = begun(CELL)
    mine, other = local.workers(), (local.workers()[0] + 2) % 4
    found = [error_of(entered, local, other, kind=ERRORS), error_of(entered, local, 4, kind=ERRORS)]
    one(local, model, mine[0])
    found.append(error_of(entered, local, mine[0]))
    found.append(error_of(local.state_dict))
    with local.worker(mine[1]):
        found += [error_of(entered, local, mine[1]), error_of(local.step), error_of(local.state_dict)]
        found.append(error_of(lambda: local.outer().__enter__()))
        leafy.loss_of(model, 0, 0, mine[1]).backward()
    local.step()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    found.append(error_of(entered, local, mine[0]))
    model[0].weight.grad = None
    with local.outer():
        found.append(error_of(local.step))
    return found


def test_blocks_are_checked(pair):
    for rank, found in enumerate(pair.run(blocks)):
        mine, other = ((0, 1), 2) if rank == 0 else ((2, 3), 0)
        plays = f"on rank {rank}, which plays workers {mine[0]}, {mine[1]}"
        assert f"worker({other}) {plays}" in found[0] and f"worker(4) {plays}" in found[1]
        assert f"worker {mine[0]} has already made step 0" in found[2]
        assert f"state_dict() in the middle of step 0, which worker {mine[0]} made" in found[3]
        inside = f"inside the block of worker({mine[1]})"
        assert all(inside in text for text in found[4:8]) and "outer()" in found[7]
        assert f"worker({mine[0]}) begins, and there are gradients of a pass before" in found[8]
        assert "step() inside the block of outer()" in found[9]


def left_out(backend: str) -> tuple[list[str], bool]:
    """On a rank: rank 1 forgets a worker in step 0; both go on; they meet after step 1. Then a state is loaded."""
    model, local = begun(CELL, backend)
    states: list[Any] = [None] * HERE.size
    dist.all_gather_object(states, local.state_dict())
    one(local, model, *([2] if HERE.rank == 1 else []))
    found = [error_of(local.step)]
    one(local, model)
    found += [error_of(local.step), error_of(local.step), error_of(entered, local, 2 * HERE.rank)]
    local.load_state_dict(states)
    fresh_model, fresh = begun(CELL, backend)
    same = digests(trained(local, model, 3).state_dict()) == digests(trained(fresh, fresh_model, 3).state_dict())
    return found, same


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_worker_that_was_left_out_is_known_to_all_when_they_meet(pair, backend):
    for rank, (found, same) in enumerate(pair.run(left_out, backend)):
        at_once, met, after, block = found
        text = "worker 3 did not make step 0"
        assert (text in at_once) == (rank == 1)
        assert f"rank 1: {text}" in met and "rank 0: step 2" in met
        assert "step() after a step that has failed" in after and text in after
        assert "worker() after a step that has failed" in block
        assert same, "a state that is loaded does not mend it"


def left_out_under_way() -> list[str]:
    """On a rank: rank 1 forgets a worker while a fragment is on its way, which arrives at the end of that step."""
    model, local = begun({**CELL, "delay": 1})
    trained(local, model, 2)
    one(local, model, *([2] if HERE.rank == 1 else []))
    found = [error_of(local.step), error_of(local.state_dict)]
    one(local, model)
    found.append(error_of(local.step))  # the next one leaves
    one(local, model)
    return [*found, error_of(local.step)]


def test_what_goes_wrong_under_way_is_known_at_the_next_meeting(pair):
    """And not at the arrival of what left before, where one rank alone would stop."""
    for rank, (at_once, state, leaving, arriving) in enumerate(pair.run(left_out_under_way)):
        text = "worker 3 did not make step 2"
        assert (text in at_once) == (text in state) == (rank == 1) and leaving == ""
        assert f"rank 1: {text}" in arriving and "rank 0: step 4" in arriving


def test_a_process_that_plays_all_workers_is_held_to_the_same():
    model, local = begun(CELL, backend=None)
    one(local, model, 0, 1, 3)
    assert "worker 2 did not make step 0" in error_of(local.step)
    one(local, model)
    assert "worker 2 did not make step 0; load the latest" in error_of(local.step).replace(LEFT_OUT, "")


def left_out_together() -> list[str]:
    """On a rank: in a synchronous step, and where there are no gradients without a block."""
    model, local = begun({**CELL, "start": 1})
    one(local, model, local.workers()[0])
    together = error_of(local.step)
    model, local = begun({**CELL, "workers": 2})
    return [together, error_of(local.step)]


def test_a_synchronous_step_needs_all_workers(pair):
    for rank, (together, without) in enumerate(pair.run(left_out_together)):
        assert "worker 1 did not make step 0" in together and "worker 3 did not make step 0" in together
        assert f"worker {rank} did not make step 0" in without


class Trouble(Exception):
    """Of a program."""


def disturbed(name: str, breaks: bool) -> list[Any]:
    """On a rank: an exception in a block, after the passes of which it is repeated."""
    model, local = begun(CELLS[name])
    for step in range(3):
        for worker in local.workers():
            if breaks and (step + worker) % 2:
                with pytest.raises(Trouble), local.worker(worker):
                    leafy.loss_of(model, 0, step, worker).backward()
                    raise Trouble
            with local.worker(worker):
                leafy.loss_of(model, 0, step, worker).backward()
        local.step()
    return digests(local.state_dict())


@pytest.mark.parametrize("name", ["plain", "post-local"])
def test_a_block_that_failed_is_repeated_as_if_it_had_not_been(pair, name):
    assert pair.run(disturbed, name, True) == pair.run(disturbed, name, False)


@on_ranks(2, (True, True))
def test_accumulation_and_clipping_inside_a_block() -> tuple[bool, bool]:
    """Two halves of a batch are the batch; a clipped gradient is what the inner step is made with."""
    cell = {**CELL, "inner": "sgd", "every": 10}
    model, local = begun(cell)
    worker = local.workers()[0]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with local.worker(worker):
        for _ in range(2):
            (leafy.loss_of(model, 0, 0, worker) / 2).backward()
        summed = [parameter.grad.clone() for parameter in model.parameters()]
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        clipped = [parameter.grad.clone() for parameter in model.parameters()]
    moved = [b - 1e-2 * g for b, g in zip(before, clipped, strict=True)]
    other_model, _ = begun(cell)
    leafy.loss_of(other_model, 0, 0, worker).backward()
    whole = [parameter.grad for parameter in other_model.parameters()]
    alike = all(map(torch.allclose, summed, whole)) and float(norm) > 1e-3
    return alike, all(map(torch.allclose, moved, model.parameters()))


@on_ranks(2, True)
def test_a_scheduler_reaches_every_inner_optimizer() -> bool:
    model, local = begun({**CELL, "inner": "sgd", "every": 10})
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.0) for optimizer in local.optimizers()]
    one(local, model)
    local.step()
    for scheduler in schedulers:
        scheduler.step()
    before = digests(local.state_dict())[0]
    trained(local, model, 2)
    after = digests(local.state_dict())[0]
    return len(schedulers) == 2 and all(before[path] == after[path] for path in before if "/parameters/" in path)


@on_ranks(2, True)
def test_outer_parameters_are_shown_and_taken_away() -> bool:
    model, local = begun({**CELL, "every": 3})
    begin = parameters_hash(model)
    trained(local, model, 2)
    walked = parameters_hash(model)
    with local.outer() as shown:
        outer = parameters_hash(shown)
    return outer == begin != walked == parameters_hash(model)


@on_ranks(2, True)
def test_ranks_begin_with_the_values_of_rank_zero() -> bool:
    torch.manual_seed(HERE.rank)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].running_mean.fill_(HERE.rank)
    model[0].bias.requires_grad_(False)
    ringdp.DiLoCo(model, lambda ps: torch.optim.SGD(ps, lr=0.1), workers=2, every=2)
    torch.manual_seed(0)
    return parameters_hash(model) == parameters_hash(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))) and not bool(
        model[1].running_mean.any()
    )


@on_ranks(2, {3: [], 4: [False], 5: [False], 6: [True], 7: []})
def test_the_second_half_of_the_way_begins_halfway() -> dict[int, list[bool]]:
    """So that it is hidden, too. After each step, what is on the way: whether its means are."""
    model, local = begun({**CELL, "delay": 3, "every": 4, "workers": 2})
    trained(local, model, 2)
    found = {}
    for step in range(3, 8):
        trained(local, model, 1)
        on_the_way = local._meetings.on_the_way.values()
        found[step] = [arriving.exchange._means is not None for arriving in on_the_way]
    return found


RUNS: list[Any] = []


def begin() -> None:
    """On a rank: a run, one step before a meeting."""
    model, local = begun(CELL)
    trained(local, model, 1)
    RUNS.append((model, local))


def meet() -> list[str]:
    """On a rank: the errors of the meeting, and of a step after it."""
    model, local = RUNS.pop()
    return [error_of(trained, local, model, 1), error_of(local.step)]


def test_a_rank_that_dies_ends_the_meeting_of_the_others(run_on_fresh_ranks):
    world = run_on_fresh_ranks(2)
    world.join(timeout_s=30)
    world.run(begin)
    world.signal(1, signal.SIGKILL)
    (outcome,) = world.attempt(meet, ranks=[0])
    lost, after = outcome.value
    assert "rank 1" in lost and "step() after a step that has failed" in after and "rank 1" in after


def test_the_number_of_a_worker_is_a_number():
    _, local = begun(CELL, backend=None)
    wrong: Callable[[], object] = lambda: local.worker("0").__enter__()  # noqa: E731
    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
        wrong()


def test_what_is_written_to_the_outer_parameters_is_dropped():
    _, local = begun(CELL)
    before = [p.clone() for p in local._meetings.outer.rounded()]
    with local.outer() as outer, torch.no_grad():
        kept = {name: value for name, value in outer.state_dict().items()}
        for parameter in outer.parameters():
            parameter.add_(1.0)
    with local.outer() as outer:
        assert all(map(torch.equal, outer.parameters(), before))
    assert not torch.equal(kept["0.weight"], before[0])  # the tensors of the block itself


def test_a_backward_pass_of_the_outer_parameters_leaves_no_gradients():
    """They would be those of the next inner step, or be added to them."""
    ends = []
    for looks in (False, True):
        model, local = begun({**CELL, "workers": 1, "inner": "sgd", "every": 10}, backend=None)
        for step in range(3):
            with local.outer() if looks else nullcontext():
                leafy.loss_of(model, 0, 7, 0).backward() if looks else None
                assert not looks or all(parameter.grad is not None for parameter in model.parameters())
            assert all(parameter.grad is None for parameter in model.parameters())
            leafy.loss_of(model, 0, step, 0).backward()
            with local.outer() if looks else nullcontext():
                leafy.loss_of(model, 0, 8, 0).backward() if looks else None
            local.step()
        ends.append(parameters_hash(model))
    assert ends[0] == ends[1]


def test_casts_of_one_worker_are_not_those_of_the_next():
    """Autocast around the loop remembers what it has cast, by parameter."""
    ends = []
    for around in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        local = ringdp.DiLoCo(model, lambda ps: torch.optim.SGD(ps, lr=0.5), workers=2, every=3)
        with torch.autocast("cpu", torch.bfloat16) if around else nullcontext():
            for step in range(3):
                for worker in local.workers():
                    with local.worker(worker), torch.autocast("cpu", torch.bfloat16):
                        model(torch.full((1, 4), 1.0 + worker + step)).square().sum().backward()
                local.step()
        ends.append(parameters_hash(model))
    assert ends[0] == ends[1]


def test_an_inner_step_that_fails_is_not_made_again():
    _, local = begun(CELL)
    local.optimizers()[0].register_step_pre_hook(lambda *_: 1 / 0)
    assert "division" in error_of(entered, local, 0, kind=ZeroDivisionError)
    assert "after a step that has failed" in error_of(entered, local, 0)


def test_nor_is_one_without_a_block():
    """Where the optimizer has stepped some parameters only."""
    model, local = begun({**CELL, "workers": 1}, backend=None)
    (optimizer,) = local.optimizers()
    optimizer.register_step_post_hook(lambda *_: 1 / 0)
    leafy.loss_of(model, 0, 0, 0).backward()
    assert "division" in error_of(local.step, kind=ZeroDivisionError)
    torn = "after a step that has failed: load a checkpoint. It was: the inner step of worker 0: division by zero"
    assert torn in error_of(local.step) and torn in error_of(local.state_dict)
