"""Gradients in .grad and in shards, and the stand-ins that .grad has from stage 2 on."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, error_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from ringdp.zero.clip import clip_grad_norm_
from ringdp.zero.flat import FlatParameters, bucketed
from ringdp.zero.gradients import ShardedGradients, StandIns, WholeGradients
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import loss_of
from torch import nn
from zero_rig import ADAMW, differences, model, same, wrapped


def of_pieces(gradient: str) -> list[bool]:
    """On a rank: gradients of its pieces of one parameter."""
    own = [torch.nn.Parameter(torch.zeros(4, 900).t()), torch.nn.Parameter(torch.zeros(3))]
    flat = FlatParameters(own, bucketed(own, 1 << 20, HERE.size), dist.group.WORLD)
    values = torch.arange(3600.0).view(900, 4)
    if gradient == "sparse":
        own[0].grad = values.to_sparse()
    elif gradient == "other strides":
        own[0].grad = values
    WholeGradients().check(flat)
    found = WholeGradients().by_bucket(flat)(0)
    order = values.t().flatten()
    return [same(g, order[flat.pieces[number].part]) for number, g in found.items()]


def test_gradients_lie_as_parameters_do(trio):
    said = trio.run(of_pieces, "other strides")
    assert all(map(all, said)) and sum(map(len, said)) == 2  # two ranks hold parts of it
    assert trio.run(of_pieces, "none") == [[]] * 3


def test_sparse_gradients_are_refused(pair):
    outcomes = pair.attempt(of_pieces, "sparse")
    assert "is sparse, and a sparse gradient has no shards" in outcomes[0].error


@on_ranks(3)
def test_zero_grad_drops_shards() -> None:
    """How many gradients there are before, and after either way to drop them."""
    ddp = wrapped(2)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
    counts = []
    for drop in (optimizer.zero_grad, ddp.zero_grad):
        loss_of(ddp, HERE.rank, 0, 0).backward()
        counts.append(len(optimizer.shard_grads()))
        drop()
        counts.append(len(optimizer.shard_grads()))
    assert isinstance(optimizer._sources[0], ShardedGradients)
    before, *after = counts[0], counts[1], counts[3]
    assert before > 0 and after == [0, 0]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_shard_grads_are_parts_of_the_mean(trio, stage):
    totals = trio.run(squares, stage)
    expected = trio.run(squares, 0)[0]
    assert sum(totals) == pytest.approx(expected, rel=1e-6)


def squares(stage: int) -> float:
    """On a rank: the sum of squares of the gradients that it has."""
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW) if stage else None
    loss_of(ddp, HERE.rank, 0, 0).backward()
    gradients = optimizer.shard_grads() if optimizer else [p.grad for p in ddp.parameters()]
    return sum(float(g.double().square().sum()) for g in gradients)


def optimizer_for(ddp: DistributedDataParallel, **given: Any) -> ZeroOptimizer:
    return ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **given, **ADAMW)


@pytest.mark.parametrize("stage", [2, 3])
@on_ranks(2)
def test_who_reads_or_writes_is_told(stage: int) -> None:
    """What those are told who read, change or add to gradients that are in shards."""
    ddp = wrapped(stage)
    optimizer = optimizer_for(ddp)
    loss = loss_of(ddp, HERE.rank, 0, 0)
    loss.backward(retain_graph=True)
    first = ddp.module[0].bias
    assert all(p.grad.shape == p.shape and p.grad.dtype == p.dtype for p in ddp.parameters())
    for call in (
        lambda: first.grad.mul_(0.5),
        lambda: first.grad + 1,
        lambda: nn.utils.clip_grad_norm_([first], 1.0),
        lambda: nn.utils.clip_grad_value_([first], 1.0),
        lambda: ddp.module.zero_grad(set_to_none=False),
        loss.backward if stage == 2 else lambda: first.grad.add_(1),
    ):
        said = error_of(call)
        assert "the gradient of " in said and f"in shards (zero_stage={stage})" in said
    assert clip_grad_norm_(ddp.parameters(), 1.0) > 0
    if stage == 2:
        copy.deepcopy(ddp.module)
    optimizer.zero_grad()
    assert all(p.grad is None for p in ddp.parameters())
    loss_of(ddp, HERE.rank, 1, 0).backward()
    first.grad.data = torch.zeros(first.shape)
    said = [error_of(optimizer.step), error_of(loss_of, ddp, HERE.rank, 1, 0)]
    first.grad = torch.zeros(first.shape)
    said += [error_of(optimizer.step), error_of(loss_of, ddp, HERE.rank, 1, 0)]
    assert all("0.bias has not been averaged" in text and "assigned by hand" in text for text in said)


LAYER = slice(2, 4)  # the weight and the bias of the middle one: several buckets, and some of others' in theirs
KINDS = {
    "skipped": {1: LAYER},  # at the second step
    "nothing": {1: slice(None)},
    "kept": {},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", [1, 2, 3])
@on_ranks(3, [])
def test_gradients_set_to_none_are_not_stepped(stage: int, kind: str) -> list[str]:
    """Before a step, against one process that does the same."""
    ddp = wrapped(stage)
    optimizer = optimizer_for(ddp)

    def drop(step: int, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters[KINDS[kind][step]] if step in KINDS[kind] else ():
            parameter.grad = None

    for step in range(3):
        optimizer.zero_grad()
        loss_of(ddp, HERE.rank, step, 0).backward()
        drop(step, list(ddp.parameters()))
        with torch.no_grad():  # no pass that gradients add up in
            loss_of(ddp, HERE.rank, step, 0)
        clip_grad_norm_(ddp.parameters(), 0.05)
        optimizer.step()
    plain = model()
    alone = torch.optim.AdamW(plain.parameters(), **ADAMW)

    def on_gradients(step: int) -> None:
        drop(step, list(plain.parameters()))
        clip_grad_norm_(plain.parameters(), 0.05)

    one_process(plain, alone, loss_of, ranks=HERE.size, steps=3, on_gradients=on_gradients)
    return differences(ddp, optimizer, plain, alone)


def mean_of(step: int) -> list[torch.Tensor]:
    net = model()

    def of_step(module: nn.Module, rank: int, _: int, micro: int) -> torch.Tensor:
        return loss_of(module, rank, step, micro)

    one_process(net, torch.optim.SGD(net.parameters(), lr=0.0), of_step, ranks=HERE.size, steps=1)
    return [p.grad for p in net.parameters()]


@pytest.mark.parametrize("which", ["some", "all", "within"])
@pytest.mark.parametrize("stage", [2, 3])
@on_ranks(3, [])
def test_what_was_set_to_none_begins_anew(stage: int, which: str) -> list[str]:
    """Two passes, between which some gradients or all are set to None, or dropped within the second one."""
    ddp = wrapped(stage)
    optimizer = optimizer_for(ddp)
    plain = model()
    alone = torch.optim.AdamW(plain.parameters(), **ADAMW)
    chosen = LAYER if which == "some" else slice(None)
    for step in range(2):
        loss = loss_of(ddp, HERE.rank, step, 0)
        if step == 1 and which == "within":
            optimizer.zero_grad()
        loss.backward()
        if step == 0 and which != "within":
            for parameter in list(ddp.parameters())[chosen]:
                parameter.grad = None
    optimizer.step()
    means = [mean_of(step) for step in range(2)]
    for number, parameter in enumerate(plain.parameters()):
        gone = number in range(*chosen.indices(len(means[0])))
        parameter.grad = means[1][number] if gone else means[0][number] + means[1][number]
    alone.step()
    return differences(ddp, optimizer, plain, alone)


@on_ranks(2)
def test_what_cannot_be_told_apart_is_refused() -> None:
    """Where nobody can tell whether the next pass has a gradient for what was dropped."""
    ddp = wrapped(2, static_graph=True)
    optimizer = optimizer_for(ddp)
    for _ in range(2):
        loss_of(ddp, HERE.rank, 0, 0).backward()
        ddp.module[2].bias.grad = None
        said = error_of(loss_of, ddp, HERE.rank, 1, 0)
        assert ".grad of 2.bias was set to None" in said and "zero_grad()" in said
        optimizer.zero_grad()


@on_ranks(2, [True] * 3)
def test_stand_ins_go_with_their_wrapper() -> list[bool]:
    """A model without its wrapper has no stand-ins; a second wrapper serves."""
    ddp = wrapped(2)
    module = ddp.module
    loss_of(ddp, HERE.rank, 0, 0).backward()
    there = module[0].bias.grad is not None
    del ddp
    gone = all(p.grad is None for p in module.parameters())
    again = DistributedDataParallel(module, zero_stage=2)
    loss_of(again, HERE.rank, 0, 0).backward()
    return [there, gone, module[0].bias.grad is not None]


def test_they_are_put_aside_and_come_back():
    own = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    stand_ins = StandIns(own, "abc", 2)
    stand_ins.show([True, True, False])
    assert stand_ins.kept([True, True, False]) == [True, True, False] and len(stand_ins.shown()) == 2
    with stand_ins.hidden():
        assert all(p.grad is None for p in own)
    own[0].grad = None
    assert stand_ins.kept([True, True, False]) == [False, True, False]
    assert stand_ins.begin_pass([True, True, False]) == {0} and own[1].grad is None
    assert stand_ins.begin_pass([True, True, False]) == set()
    assert stand_ins.kept([True, True, False]) == [False, True, False]
    stand_ins.show([True] * 3)
    assert stand_ins.kept([True] * 3) == [True] * 3
    stand_ins.drop()
    assert all(p.grad is None for p in own)
