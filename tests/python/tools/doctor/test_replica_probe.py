"""What is written down of parameters and gradients, under each wrapper and under none."""

from __future__ import annotations

from itertools import pairwise

import pytest
import ringdp
import torch
from ringdp.tools.doctor.probes import replicas, steps
from ringdp.tools.doctor.probes.replicas import checksum
from torch.nn.parallel import DistributedDataParallel

WRAPPERS = [DistributedDataParallel, ringdp.DistributedDataParallel]


def trained(context, wrap, count=6, through=None):
    """A model after so many steps."""
    replicas.install(context, count)
    steps.install(context)
    torch.manual_seed(0)
    model = wrap(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(count):
        optimizer.zero_grad()
        (through or (lambda model: model))(model)(torch.full((1, 2), 1.0 + step)).sum().backward()
        optimizer.step()
    return model


def of(rows, kind):
    return [row for row in rows if row["kind"] == kind]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_replicas_of_a_wrapper_are_its_ranks(context, rows, alone, wrap):
    model = trained(context, wrap)
    (facts,) = of(rows, "parameters")
    assert (facts["names"], facts["group"], facts["plain"]) == (["weight", "bias"], ["0", "0"], True)
    looked = of(rows, "replicas")
    assert [row["turn"] for row in looked] == list(range(6)) and facts["made"] == looked[0]["before"]
    assert all(one["after"] == other["before"] for one, other in pairwise(looked))
    assert looked[-1]["after"] == [checksum(p) for p in model.parameters()]
    assert looked[-1]["grads"] == [checksum(p.grad) for p in model.parameters()]
    assert {(row["forwards"], row["unsynced"]) for row in looked} == {(1, 0)}


def test_passes_around_the_wrapper_and_within_no_sync_are_told_apart(context, rows, alone):
    def in_no_sync(model):
        def forward(x):
            with model.no_sync():
                return model(x)

        return forward

    trained(context, DistributedDataParallel, through=lambda model: model.module)
    assert {row["forwards"] for row in of(rows, "replicas")} == {0}
    context.patches.undo()
    rows.clear()
    trained(context, DistributedDataParallel, through=in_no_sync)
    assert {(row["forwards"], row["unsynced"]) for row in of(rows, "replicas")} == {(1, 1)}


def test_large_models_are_looked_at_when_the_count_of_steps_has_doubled(context, rows, monkeypatch):
    monkeypatch.setattr(replicas, "_EVERY_STEP", 0)
    trained(context, lambda model: model, count=7)
    assert [row["step"] for row in of(rows, "replicas")] == [0, 1, 3, 6]  # and at the last one


def test_shares_are_what_a_pass_gave_before_anything_changed_it(context, rows):
    trained(context, lambda model: model)
    shares = of(rows, "share")
    assert [row["step"] for row in shares] == [1, 2, 3, 4]
    grads = {row["step"]: row["grads"] for row in of(rows, "replicas")}
    assert all(row["sums"] == sorted(grads[row["step"]]) for row in shares)  # of single passes, not of their sum


def test_parts_of_an_optimizer_are_no_optimizers_of_their_own(context, rows, alone):
    replicas.install(context, 3)
    steps.install(context)
    ddp = ringdp.DistributedDataParallel(torch.nn.Linear(2, 1), zero_stage=1)
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.1)
    for _ in range(3):
        ddp(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert {row["optimizer"] for row in of(rows, "parameters")} == {0}


def test_freed_parameters_of_stage_3_are_left_alone(context, rows, alone):
    replicas.install(context, 3)
    steps.install(context)
    ddp = ringdp.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 1)), zero_stage=3)
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.1)
    ddp(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not any(row["plain"] for row in of(rows, "parameters")) and of(rows, "replicas") == []
