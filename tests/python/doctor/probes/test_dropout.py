"""ringdp/doctor/probes/dropout.py: equal states are equal masks, different states are different masks."""

from __future__ import annotations

import pytest
import torch
from ringdp.doctor.probes import dropout
from torch.nn import functional


def masks_and_states(rig, rows, seeds):
    dropout.install(rig)
    masks = []
    for seed in seeds:
        torch.manual_seed(seed)
        masks.append(torch.nn.Dropout(0.5)(torch.ones(64)) == 0)
    return masks, [row["state"] for row in rows]


def test_states_stand_for_masks(rig, rows):
    masks, states = masks_and_states(rig, rows, [1, 1, 2])
    for one in range(3):
        for other in range(3):
            assert (states[one] == states[other]) == torch.equal(masks[one], masks[other])


def test_calls_are_numbered_within_a_step(rig, rows):
    dropout.install(rig)
    for _ in range(2):
        functional.dropout(torch.ones(2, 3))
        functional.alpha_dropout(torch.ones(4), 0.1, training=True)
        rig.next_step()
    assert [(row["step"], row["call"], row["name"], row["shape"]) for row in rows] == [
        (0, 0, "dropout", [2, 3]),
        (0, 1, "alpha_dropout", [4]),
        (1, 0, "dropout", [2, 3]),
        (1, 1, "alpha_dropout", [4]),
    ]


def test_what_drops_nothing_is_left_out(rig, rows):
    dropout.install(rig)
    functional.dropout(torch.ones(2), training=False)
    functional.dropout(torch.ones(2), p=0.0)
    torch.nn.Dropout(0.5).eval()(torch.ones(2))
    q = torch.ones(1, 1, 2, 4)
    functional.scaled_dot_product_attention(q, q, q)
    assert rows == []
    functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1)
    assert [row["name"] for row in rows] == ["attention"]


@pytest.mark.parametrize("name", dropout._FUNCTIONS)
def test_every_function_keeps_its_defaults(rig, rows, name):
    x = {"dropout1d": torch.ones(2, 4, 4), "dropout2d": torch.ones(2, 4, 4, 4)}.get(name, torch.ones(2, 3, 4, 4, 4))

    def twice():
        torch.manual_seed(0)
        return [getattr(functional, name)(x), getattr(functional, name)(input=x, p=0.9, training=True)]

    before = twice()
    dropout.install(rig)
    assert all(torch.equal(one, other) for one, other in zip(before, twice(), strict=True))
    drops_by_default = not torch.equal(before[0], x)
    assert len(rows) == 1 + drops_by_default


def test_a_compiled_model_stays_one_graph(rig):
    dropout.install(rig)
    compiled = torch.compile(lambda x: functional.dropout(x, 0.5), backend="eager", fullgraph=True)
    assert compiled(torch.ones(8)).shape == (8,)


def test_only_the_first_steps_are_looked_at(rig, rows):
    dropout.install(rig)
    for _ in range(10):
        functional.dropout(torch.ones(2))
        rig.next_step()
    assert len(rows) == 4
