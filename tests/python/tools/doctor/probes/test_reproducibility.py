"""Equal generator states are equal masks; the same bits twice, or the parameter's name; looking changes nothing."""

from __future__ import annotations

import os
import random

import pytest
import torch
from ringdp.tools.doctor.probes import reproducibility
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


def masks_and_states(context, rows, seeds):
    reproducibility.install_dropout(context)
    masks = []
    for seed in seeds:
        torch.manual_seed(seed)
        masks.append(torch.nn.Dropout(0.5)(torch.ones(64)) == 0)
    return masks, [row["state"] for row in rows]


def test_states_stand_for_masks(context, rows):
    masks, states = masks_and_states(context, rows, [1, 1, 2])
    for one in range(3):
        for other in range(3):
            assert (states[one] == states[other]) == torch.equal(masks[one], masks[other])


def test_calls_are_numbered_within_a_step(context, rows):
    reproducibility.install_dropout(context)
    for _ in range(2):
        functional.dropout(torch.ones(2, 3))
        functional.alpha_dropout(torch.ones(4), 0.1, training=True)
        context.next_step()
    assert [(row["step"], row["call"], row["name"], row["shape"]) for row in rows] == [
        (0, 0, "dropout", [2, 3]),
        (0, 1, "alpha_dropout", [4]),
        (1, 0, "dropout", [2, 3]),
        (1, 1, "alpha_dropout", [4]),
    ]


def test_what_drops_nothing_is_left_out(context, rows):
    reproducibility.install_dropout(context)
    functional.dropout(torch.ones(2), training=False)
    functional.dropout(torch.ones(2), p=0.0)
    torch.nn.Dropout(0.5).eval()(torch.ones(2))
    q = torch.ones(1, 1, 2, 4)
    functional.scaled_dot_product_attention(q, q, q)
    assert rows == []
    functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1)
    assert [row["name"] for row in rows] == ["attention"]


@pytest.mark.parametrize("name", reproducibility._FUNCTIONS)
def test_every_function_keeps_its_defaults(context, rows, name):
    x = {"dropout1d": torch.ones(2, 4, 4), "dropout2d": torch.ones(2, 4, 4, 4)}.get(name, torch.ones(2, 3, 4, 4, 4))

    def twice():
        torch.manual_seed(0)
        return [getattr(functional, name)(x), getattr(functional, name)(input=x, p=0.9, training=True)]

    before = twice()
    reproducibility.install_dropout(context)
    assert all(torch.equal(one, other) for one, other in zip(before, twice(), strict=True))
    drops_by_default = not torch.equal(before[0], x)
    assert len(rows) == 1 + drops_by_default


def test_a_compiled_model_stays_one_graph(context):
    reproducibility.install_dropout(context)
    compiled = torch.compile(lambda x: functional.dropout(x, 0.5), backend="eager", fullgraph=True)
    assert compiled(torch.ones(8)).shape == (8,)


def test_only_the_first_steps_are_looked_at(context, rows):
    reproducibility.install_dropout(context)
    for _ in range(10):
        functional.dropout(torch.ones(2))
        context.next_step()
    assert len(rows) == 4


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
    assert reproducibility.differing(Noisy(NOISES[noise]), (torch.ones(4, 3),), {}) == []


def test_other_noise_is_found():
    noisy = Noisy(lambda: int.from_bytes(os.urandom(4), "big") / 2**32)
    assert reproducibility.differing(noisy, (), {"x": torch.ones(4, 3)}) == ["layer.weight", "layer.bias"]


def test_nan_repeats_and_modules_without_gradients_do_too():
    assert reproducibility.differing(Noisy(lambda: float("nan")), (torch.ones(4, 3),), {}) == []
    assert reproducibility.differing(torch.nn.Identity(), (torch.ones(4, 3),), {}) == []


def test_looking_changes_nothing():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    before = torch.get_rng_state(), random.getstate()
    reproducibility.differing(model, (torch.randn(4, 3, generator=torch.Generator().manual_seed(0)),), {})
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_cannot_be_run_on_the_side_trains_on(context, rows, alone):
    reproducibility.install_kernels(context)
    layer = torch.nn.Linear(3, 3)
    model = DistributedDataParallel(Reentrant(layer))
    for _ in range(4):
        model(torch.ones(2, 3)).sum().backward()
        context.next_step()
    (row,) = rows
    assert "differing" not in row and "checkpoint" in row["unable"].lower()
    assert layer.weight.grad is not None


def test_one_early_step_of_a_wrapper_is_looked_at(context, rows, alone):
    reproducibility.install_kernels(context)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    for _ in range(5):
        model(torch.ones(2, 3)).sum().backward()
        context.next_step()
    assert rows == [{"kind": "kernels", "differing": []}]
