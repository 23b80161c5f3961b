"""Torch's wrapper and ringdp's, looked at in the same way."""

from __future__ import annotations

import time

import pytest
import ringdp
import torch
from ringdp.tools.doctor.probes import steps, wrapper
from torch.nn.parallel import DistributedDataParallel


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

    def forward(self, x, both):
        return self.used(x) + (self.spare(x) if both else 0)


@pytest.mark.parametrize("kind", [DistributedDataParallel, ringdp.DistributedDataParallel])
def test_the_model_its_times_and_unused_parameters(context, rows, alone, kind):
    wrapper.install(context)
    steps.install(context)
    model = kind(Two(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for both in (True, False, True):
        model(torch.ones(1, 2), both).sum().backward()
        optimizer.step()
    (facts,) = [row for row in rows if row["kind"] == "model"]
    assert facts == {"kind": "model", "bytes": 24, "buckets": 1}
    unused = [row["names"] for row in rows if row["kind"] == "unused"]
    assert [sorted(names) for names in unused] == [[], ["spare.bias", "spare.weight"], []]
    times = [row for row in rows if row["kind"] == "ddp"]
    assert {row["step"] for row in times} <= {-1, 0, 1}
    assert times and all(row["forward"] > 0 and row["communication"] >= row["overlap"] >= 0 for row in times)


class Many(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = torch.nn.Linear(2, 1), torch.nn.ModuleList(torch.nn.Linear(2, 1) for _ in range(60))

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize("kind", [DistributedDataParallel, ringdp.DistributedDataParallel])
def test_broadcasts_of_buffers_are_timed_by_step(context, rows, alone, kind, monkeypatch):
    wrapper.install(context)
    model = kind(torch.nn.BatchNorm1d(2))
    monkeypatch.setattr(model, "_sync_module_buffers", lambda rank: time.sleep(0.02))
    model(torch.ones(3, 2))
    assert context.buffers >= 0.02


def test_all_names_are_written_down(context, rows, alone):
    wrapper.install(context)
    steps.install(context)
    DistributedDataParallel(Many(), find_unused_parameters=True)(torch.ones(1, 2)).sum().backward()
    (row,) = [row for row in rows if row["kind"] == "unused"]
    assert len(row["names"]) == 120


def test_a_backward_pass_of_something_else_says_nothing(context, rows, alone):
    wrapper.install(context)
    steps.install(context)
    DistributedDataParallel(Two())
    torch.ones(1, requires_grad=True).sum().backward()
    assert [row for row in rows if row["kind"] == "unused"] == []
