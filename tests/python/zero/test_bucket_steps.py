"""One bucket at a time: pieces with gradients are stepped, others are not; settings come first, or before each."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.zero.bucket_steps import BucketSteps
from ringdp.zero.flat import FlatParameters, bucketed


def stepped(fuses: bool, foreseen: bool) -> tuple[list[bool], int, list[bool]]:
    """On a rank: which parameters have moved as SGD moves them, how often settings were asked for, which have sinks."""
    own = [torch.nn.Parameter(torch.ones(1500)) for _ in range(3)]
    flat = FlatParameters(own, bucketed(own, 1500 * 4, HERE.size), dist.group.WORLD)
    optimizer = torch.optim.SGD(flat.tensors, lr=0.5)
    asked = []
    steps = BucketSteps(flat, optimizer, lambda: asked.append(1), fuses=fuses)
    sinks = steps.sinks()
    if not fuses:
        if foreseen:
            steps.foresee([*flat.in_bucket(0), *flat.in_bucket(2)])
        for bucket in (0, 2):
            steps.step_bucket(bucket, {n: torch.ones(flat.pieces[n].length) for n in flat.in_bucket(bucket)})
            flat.publish(bucket).wait()
    moved = [bool((p == value).all()) for p, value in zip(own, (0.5, 1.0, 0.5), strict=True)]
    return moved, len(asked), [sink is not None for sink in sinks]


@pytest.mark.parametrize("foreseen", [False, True])
def test_buckets_are_stepped_one_by_one(pair, foreseen):
    assert pair.run(stepped, False, foreseen) == [([True] * 3, 2 if foreseen else 3, [False] * 3)] * 2


def with_a_setting_that_has_changed(fuses: bool) -> bool:
    """On a rank: whether the first step with a learning rate in a tensor rounds as torch's does."""
    own = [torch.nn.Parameter(torch.zeros(1500)) for _ in range(2)]  # which hide no bit of a step
    for parameter in own:
        parameter.grad = torch.linspace(-1, 1, 1500)
    flat = FlatParameters(own[:1], bucketed(own[:1], 1500 * 4, HERE.size), dist.group.WORLD)
    optimizer = torch.optim.Adam(flat.tensors, lr=0.5)

    def begin() -> None:
        optimizer.param_groups[0]["lr"] = torch.tensor(0.005)

    steps = BucketSteps(flat, optimizer, begin, fuses=fuses)
    if fuses:
        assert steps.sinks() == [None]
    else:
        steps.foresee(flat.in_bucket(0))
    parts = {n: own[0].grad[flat.pieces[n].part] for n in flat.in_bucket(0)}
    steps.step_bucket(0, parts)
    flat.publish(0).wait()
    torch.optim.Adam(own[1:], lr=torch.tensor(0.005)).step()
    return torch.equal(*own)


@pytest.mark.parametrize("fuses", [False, True])
def test_settings_are_looked_at_before_it_is_decided_who_steps(pair, fuses):
    assert pair.run(with_a_setting_that_has_changed, fuses) == [True] * 2


def described(fuses: bool, kind: str) -> str:
    """On a rank: how buckets are stepped."""
    own = [torch.nn.Parameter(torch.ones(1500))]
    flat = FlatParameters(own, bucketed(own, 1500 * 4, HERE.size), dist.group.WORLD)
    optimizer = getattr(torch.optim, kind)(flat.tensors, lr=0.5)
    return BucketSteps(flat, optimizer, lambda: None, fuses=fuses).describe()


def test_how_buckets_are_stepped_is_said(pair):
    one_sweep = "a bucket is reduced and stepped by ringdp's kernel while it is in the cache"
    assert pair.run(described, True, "SGD") == [one_sweep] * 2
    for fuses, kind in ((False, "SGD"), (True, "Adagrad")):
        for said in pair.run(described, fuses, kind):
            assert "then stepped by torch, then gathered: kernels are of SGD" in said


def test_sinks_stand_for_one_step_of_all_buckets(pair):
    assert [(asked, sinks) for _, asked, sinks in pair.run(stepped, True, False)] == [(1, [True] * 3)] * 2
