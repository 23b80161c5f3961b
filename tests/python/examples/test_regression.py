"""What replicas train: the problem by numpy's own arithmetic, and the two references in one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ringdp.examples import regression
from torch.nn.utils import parameters_to_vector

ROUNDING = 1e-15


def by_numpy(steps: int) -> tuple[dict[str, np.ndarray], float]:
    """Descent with the derivatives written out: parameters by name and the loss."""
    x, y = (tensor.numpy() for tensor in regression.samples())
    source = np.random.default_rng(0)
    first, second = 0.1 * source.standard_normal((16, 32)), 0.1 * source.standard_normal((32, 1))
    first_bias, second_bias = np.zeros(32), np.zeros(1)
    for _ in range(steps):
        hidden = np.tanh(x @ first + first_bias)
        error = 2 * (hidden @ second + second_bias - y) / len(x)
        behind = (error @ second.T) * (1 - hidden**2)
        first, first_bias = first - 0.02 * x.T @ behind, first_bias - 0.02 * behind.sum(0)
        second, second_bias = second - 0.02 * hidden.T @ error, second_bias - 0.02 * error.sum(0)
    loss = np.mean((np.tanh(x @ first + first_bias) @ second + second_bias - y) ** 2)
    return {"0.weight": first.T, "0.bias": first_bias, "2.weight": second.T, "2.bias": second_bias}, float(loss)


def test_one_machine_ends_where_numpy_ends():
    expected, loss = by_numpy(regression.STEPS)
    flat = torch.cat([torch.from_numpy(np.ascontiguousarray(expected[n])).flatten() for n in expected])
    found = regression.one_machine()
    assert regression.distance(found, flat) <= 1e-13
    assert regression.loss_of(found) == pytest.approx(loss, rel=1e-13)
    assert round(loss, 6) == 0.179049


def test_one_part_is_the_whole_batch():
    assert torch.equal(regression.parts_in_one_process([regression.SAMPLES], "weighted"), regression.one_machine())


def test_parts_in_one_process_differ_by_rounding_only():
    found = regression.parts_in_one_process([1000, 3000, 96], "weighted")
    assert 0 < regression.distance(found, regression.one_machine()) <= ROUNDING


def test_parts_lie_end_to_end():
    assert regression.parts_of([3, 1, 4]) == [slice(0, 3), slice(3, 4), slice(4, 8)]


def test_seeds_make_networks():
    one, same, other = regression.network(), regression.network(0), regression.network(1)
    assert torch.equal(parameters_to_vector(one.parameters()), parameters_to_vector(same.parameters()))
    assert not torch.equal(one[0].weight, other[0].weight)
    assert all(parameter.is_contiguous() for parameter in one.parameters())


def test_spread_is_between_any_two_rows():
    assert regression.spread(torch.tensor([[0.0, 1.0], [2.0, 1.0], [-1.0, 1.5]])) == 3.0


def steps_of(sizes: list[int], how: str) -> regression.Trained:
    return regression.train(sizes, how)


@pytest.mark.parametrize("how", ["mean", "weighted"])
def test_ranks_have_the_bits_of_their_parts_in_one_process(world_of, how):
    sizes = [2000, 96, 2000]
    alone = regression.parts_in_one_process(sizes, how)
    for trained in world_of(3).run(steps_of, sizes, how):
        assert torch.equal(trained.parameters, alone)
        assert trained.drift == trained.offset == trained.offset_change == 0.0
        assert trained.losses == [regression.loss_of(alone)] * 3 and not trained.warning
