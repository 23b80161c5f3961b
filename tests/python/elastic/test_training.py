"""survive() without faults: the bits of one process, what it refuses, and shares by speed."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import HERE, error_of
from ringdp.elastic import world_loop
from ringdp.elastic.training import survive
from ringdp.testing import one_process, parameters_hash
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, MICRO_BATCHES = 25, 8


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))


def loss_of(model: nn.Module, step: int, leaf: int) -> torch.Tensor:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + leaf))
    return model(x).square().mean()


def wrapped(**arguments: Any) -> tuple[Any, torch.optim.Optimizer]:
    ddp = ringdp.DistributedDataParallel(network(), **arguments)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.1)


@pytest.fixture(scope="module")
def alone() -> str:
    """The hash of one process, whose rate falls and whose gradients are clipped."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def before(step: int) -> None:
        if step:
            scheduler.step()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    def loss(model: nn.Module, rank: int, step: int, leaf: int) -> torch.Tensor:
        return loss_of(model, step, leaf)

    one_process(model, optimizer, loss, steps=STEPS, micro_batches=MICRO_BATCHES, on_gradients=before)
    return parameters_hash(model)


def train(speed: str, slow: int) -> tuple[str, list[int], list[str]]:
    """On a rank, in two calls: the hash, how many leaves it ran in each step, and warnings. Rank `slow` is slow."""
    ddp, optimizer = wrapped(micro_batches=MICRO_BATCHES)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    counts: list[int] = []
    world_loop.warn_once.cache_clear()

    def apply() -> None:
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

    @survive(model=ddp, optimizer=optimizer, apply=apply, state=[scheduler], speed=speed)
    def run(step: int, leaves: tuple[int, ...]) -> None:
        counts.append(len(leaves))
        for leaf in leaves:
            with ringdp.leaf(step, leaf):
                loss_of(ddp, step, leaf).backward()
            time.sleep(0.009 if HERE.rank == slow else 0.003)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run(15)
        run(STEPS, first=15)
    assert run.__name__ == "run" and run.recoveries == []
    return parameters_hash(ddp), counts, [str(warning.message) for warning in said]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_without_a_launcher_it_trains_and_says_that_nothing_is_survived(world_of, alone, ranks):
    for found, counts, said in world_of(ranks).run(train, "even", -1):
        assert found == alone
        assert len(counts) == STEPS
        assert len(said) == 1 and "was not started by `ringdp run --min-ranks`" in said[0]


def test_a_slow_rank_gets_fewer_micro_batches_and_no_bit_differs(world_of, alone):
    (fast, counts, _), (slow, slow_counts, _) = world_of(2).run(train, "auto", 1)
    assert fast == slow == alone
    assert counts[:10] == slow_counts[:10] == [4] * 10
    assert all(one + other == MICRO_BATCHES for one, other in zip(counts, slow_counts, strict=True))
    assert counts[10] > 4  # of 8: 6 where the pauses are exact


def refusals() -> list[str]:
    """On each of two ranks."""
    ddp, optimizer = wrapped(micro_batches=2)
    other = dist.new_group([0, 1])

    def of(kind: Any, **arguments: Any) -> str:
        given = {"model": ddp, "optimizer": optimizer, **arguments}
        return error_of(lambda: survive(**given), kind=kind)

    train = survive(model=ddp, optimizer=optimizer)(lambda step, leaves: None)
    return [
        of(ValueError, model=network()),
        of(ValueError, model=wrapped()[0]),
        of(ValueError, model=wrapped(micro_batches=2, zero_stage=1)[0]),
        of(ValueError, model=wrapped(micro_batches=2, process_group=other)[0]),
        of(ValueError, min_ranks=0),
        of(ValueError, min_ranks=True),
        of(ValueError, patience=float("inf")),
        of(ValueError, patience=-1),
        of(ValueError, speed="fast"),
        of(ValueError, clip=0.0),
        of(ValueError, clip=float("nan")),
        of(ValueError, state=[optimizer, 3]),
        of(ValueError, state=torch.optim.lr_scheduler.StepLR(optimizer, 1)),
        of(ValueError, optimizer="adam"),
        of(ValueError, patience="30"),
        of(ValueError, patience=True),
        of(ValueError, clip="1"),
        of(ValueError, clip=True),
        of(ValueError, after=3),
        of(ValueError, save="folder"),
        of(ValueError, apply=3),
        error_of(lambda: train(-1), kind=ValueError),
        error_of(lambda: train(3, first=1.5), kind=ValueError),
        error_of(lambda: train(1)),
    ]


REFUSED = [
    "model must be a ringdp.DistributedDataParallel with micro_batches=M",
    "model must be a ringdp.DistributedDataParallel with micro_batches=M",
    "optimizer must be a ringdp.ZeroOptimizer with zero_stage=1",
    "the model's process group must be the default one",
    "min_ranks=0, must be a whole number of at least 1",
    "min_ranks=True, must be a whole number of at least 1",
    "patience=inf, must be a number of seconds above 0",
    "patience=-1, must be a number of seconds above 0",
    "speed='fast', must be 'even' or 'auto'",
    "clip=0.0, must be a number above 0",
    "clip=nan, must be a number above 0",
    "state[1] is a int, which has no state_dict()",
    "state is a StepLR, must be a list of objects with state_dict()",
    "optimizer is a str, must be one of torch, or a ZeroOptimizer",
    "patience='30', must be a number of seconds above 0",
    "patience=True, must be a number of seconds above 0",
    "clip='1', must be a number above 0",
    "clip=True, must be a number above 0",
    "after=3, must be a function",
    "save='folder', must be a function",
    "apply=3, must be a function",
    "train: steps=-1, must be a whole number of at least 0",
    "train: first=1.5, must be a whole number of at least 0",
    "has returned without micro-batch",
]


def test_what_does_not_fit_is_refused_by_name(world_of):
    for said in world_of(2).run(refusals):
        for found, wanted in zip(said, REFUSED, strict=True):
            assert wanted in found


def body_of(ddp: Any) -> Any:
    def run(step: int, leaves: tuple[int, ...]) -> None:
        for leaf in leaves:
            with ringdp.leaf(step, leaf):
                loss_of(ddp, step, leaf).backward()

    return run


def communicates() -> str:
    ddp, optimizer = wrapped(micro_batches=2)

    def apply() -> None:
        raise dist.DistBackendError("PeerLost: rank 1 is gone")

    return error_of(lambda: survive(model=ddp, optimizer=optimizer, apply=apply)(body_of(ddp))(1))


def test_a_fault_in_apply_is_no_fault_to_survive(world_of):
    for said in world_of(2).run(communicates):
        assert "apply() must not communicate" in said


def given_otherwise() -> list[str]:
    """On a rank: what it says without a supervisor of arguments that rank 1 has otherwise."""
    odd, (ddp, optimizer) = HERE.rank == 1, wrapped(micro_batches=2)
    calls: list[tuple[dict[str, Any], tuple[int, int]]] = [
        ({}, (3 + odd, 0)),
        ({}, (3, int(odd))),
        ({"save": print} if odd else {}, (3, 0)),
        ({"save": print, "save_every": 2 + odd}, (3, 0)),
        ({"patience": 5.0 + odd}, (3, 0)),
        ({"clip": 1.0 if odd else None}, (3, 0)),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train = lambda given: survive(model=ddp, optimizer=optimizer, **given)(body_of(ddp))  # noqa: E731
        said = [error_of(lambda g=given, c=call: train(g)(c[0], first=c[1])) for given, call in calls]
        train({})(2)  # nothing has changed
    return said


def test_ranks_that_were_not_given_the_same_say_in_what(world_of):
    wanted = [
        "rank 0: steps=3; rank 1: steps=4",
        "rank 0: 0 steps made; rank 1: 1 step made",
        "rank 0: save= is not given; rank 1: save= is given",
        "rank 0: save_every=2; rank 1: save_every=3",
        "rank 0: patience=5.0; rank 1: patience=6.0",
        "rank 0: clip=None; rank 1: clip=1.0",
    ]
    for said in world_of(2).run(given_otherwise):
        for found, words in zip(said, wanted, strict=True):
            assert f"survive: the ranks were not given the same. First difference: {words}" in found


def writes(how: str) -> str:
    """What survive() says of an after() that does what it must not, with shards."""
    ddp = ringdp.DistributedDataParallel(network(), micro_batches=2, zero_stage=1)
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)

    @torch.no_grad()
    def after(step: int) -> None:
        if how == "communicates":
            raise dist.DistBackendError("PeerLost: rank 1 is gone")
        next(ddp.module.parameters()).clamp_(-0.1, 0.1)

    return error_of(lambda: survive(model=ddp, optimizer=optimizer, after=after)(body_of(ddp))(1))


@pytest.mark.parametrize(
    ("how", "said"),
    [("communicates", "after() must not communicate"), ("writes", "after() has changed parameter 0.weight")],
)
def test_what_after_must_not_do_is_named(world_of, how, said):
    for error in world_of(2).run(writes, how):
        assert said in error


@pytest.mark.parametrize("text", ["3", "x@127.0.0.1:5", "3@127.0.0.1", "3@127.0.0.1:x", ""])
def test_what_no_supervisor_has_written_is_refused(text, monkeypatch):
    from ringdp.elastic import member

    monkeypatch.setenv(member.VARIABLE, text)
    member.this_member.cache_clear()
    with pytest.raises(ValueError, match=f"invalid value '{text}' for RINGDP_MEMBER"):
        member.this_member()
    member.this_member.cache_clear()
