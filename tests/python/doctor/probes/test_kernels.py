"""ringdp/doctor/probes/kernels.py: the same bits twice, or the parameter's name; and nothing changed by looking."""

from __future__ import annotations

import os
import random

import pytest
import torch
from ringdp.doctor.probes import kernels
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Noisy(torch.nn.Module):
    def __init__(self, noise):
        super().__init__()
        self.layer, self.noise = torch.nn.Linear(3, 2), noise

    def forward(self, x):
        return {"scores": [self.layer(x) * (1 + self.noise())], "extra": 1}


class Reentrant(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.layer = torch.nn.Linear(3, 3), layer

    def forward(self, x):
        return checkpoint(self.layer, self.first(x), use_reentrant=True)


NOISES = {"none": lambda: 0.0, "torch": lambda: torch.rand(()), "python": random.random}


@pytest.mark.parametrize("noise", list(NOISES))
def test_generators_that_are_put_back_repeat(noise):
    assert kernels.differing(Noisy(NOISES[noise]), (torch.ones(4, 3),), {}) == []


def test_other_noise_is_found():
    noisy = Noisy(lambda: int.from_bytes(os.urandom(4), "big") / 2**32)
    assert kernels.differing(noisy, (), {"x": torch.ones(4, 3)}) == ["layer.weight", "layer.bias"]


def test_nan_repeats_and_modules_without_gradients_do_too():
    assert kernels.differing(Noisy(lambda: float("nan")), (torch.ones(4, 3),), {}) == []
    assert kernels.differing(torch.nn.Identity(), (torch.ones(4, 3),), {}) == []


def test_looking_changes_nothing():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    before = torch.get_rng_state(), random.getstate()
    kernels.differing(model, (torch.randn(4, 3, generator=torch.Generator().manual_seed(0)),), {})
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_cannot_be_run_on_the_side_trains_on(rig, rows, alone):
    kernels.install(rig)
    layer = torch.nn.Linear(3, 3)
    model = DistributedDataParallel(Reentrant(layer))
    for _ in range(4):
        model(torch.ones(2, 3)).sum().backward()
        rig.next_step()
    (row,) = rows
    assert "differing" not in row and "checkpoint" in row["unable"].lower()
    assert layer.weight.grad is not None


def test_one_early_step_of_a_wrapper_is_looked_at(rig, rows, alone):
    kernels.install(rig)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    for _ in range(5):
        model(torch.ones(2, 3)).sum().backward()
        rig.next_step()
    assert rows == [{"kind": "kernels", "differing": []}]
