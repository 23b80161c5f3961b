"""What an optimizer step is, what belongs to it, and that sums of one step start anew with the next."""

from __future__ import annotations

import time

import torch
from ringdp.tools.doctor.probes import steps
from ringdp.tools.doctor.probes.context import ProbeContext
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset


def test_a_step_takes_its_sums_with_it():
    context = ProbeContext(lambda row: None)
    context.data, context.called, context.buffers, context.samples, context.backwards = 1.0, 2.0, 2.5, 3, 4
    began = context.began
    context.next_step()
    assert context.step == 1
    assert (context.data, context.called, context.buffers) == (0.0, 0.0, 0.0)
    assert (context.samples, context.backwards) == (0, 0)
    assert context.began > began


class Slow(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(2)


def of(rows, kind="step"):
    return [row for row in rows if row["kind"] == kind]


def model_and(optimizer=torch.optim.SGD, **options):
    model = torch.nn.Linear(2, 1)
    return model, optimizer(model.parameters(), **options)


def test_rate_samples_and_loader_time_of_each_step(context, rows):
    steps.install(context)
    model, optimizer = model_and(lr=0.5)
    for x in DataLoader(Slow(), batch_size=2):
        model(x).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.25
    first, second = of(rows)
    assert [(row["step"], row["optimizer"], row["lr"], row["samples"]) for row in (first, second)] == [
        (0, "SGD", 0.5, 2),
        (1, "SGD", 0.25, 2),
    ]
    assert all(row["seconds"] >= row["data"] >= 0.02 for row in (first, second))
    assert len(of(rows, "batch")) == 2


def test_accumulated_micro_batches_are_one_step(context, rows):
    steps.install(context)
    model, optimizer = model_and(lr=0.5)
    for number, (x,) in enumerate(DataLoader(TensorDataset(torch.ones(12, 2)), batch_size=3)):
        model(x).sum().backward()
        if number % 2:
            optimizer.step()
    assert [row["samples"] for row in of(rows)] == [6, 6]


def test_a_step_without_gradients_and_steps_within_a_step_do_not_count(context, rows):
    steps.install(context)
    model, inner = model_and(lr=0.5)

    class Outer(torch.optim.Optimizer):
        def step(self, closure=None):
            inner.step()
            inner.step()

    outer = Outer(model.parameters(), {"lr": 0.1})
    outer.step()
    assert of(rows) == []
    model(torch.ones(1, 2)).sum().backward()
    outer.step()
    assert [row["optimizer"] for row in of(rows)] == ["Outer"]


def test_backward_passes_within_one_count_once(context):
    steps.install(context)
    called = []
    context.after_backward.append(lambda: called.append(context.backwards))
    x = torch.ones(2, requires_grad=True)
    checkpoint(lambda t: t * 2, x, use_reentrant=True).sum().backward()
    assert called == [1]


def test_what_a_sampler_is_told_is_written_down(context, rows):
    steps.install(context)
    sampler = DistributedSampler(range(4), 2, 0)
    sampler.set_epoch(3)
    assert (of(rows, "set_epoch"), sampler.epoch) == ([{"kind": "set_epoch", "epoch": 3}], 3)


def test_everything_comes_back(context, rows):
    before = torch.autograd.backward
    steps.install(context)
    assert torch.autograd.backward is not before
    context.patches.undo()
    assert torch.autograd.backward is before
    model, optimizer = model_and(lr=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert rows == []
