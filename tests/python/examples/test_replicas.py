"""Replicas have the bits of one machine, and drift where they must."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ringdp.examples import replicas
from ringdp.examples.replicas import Case
from torch.nn.utils import parameters_to_vector

ROUNDING = 1e-15


def by_numpy(steps: int) -> tuple[dict[str, np.ndarray], float]:
    """Descent with the derivatives written out: parameters by name and the loss."""
    x, y = (tensor.numpy() for tensor in replicas.samples())
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
    expected, loss = by_numpy(replicas.STEPS)
    flat = torch.cat([torch.from_numpy(np.ascontiguousarray(expected[n])).flatten() for n in expected])
    found = replicas.one_machine()
    assert replicas.distance(found, flat) <= 1e-13
    assert replicas.loss_of(found) == pytest.approx(loss, rel=1e-13)
    assert round(loss, 6) == 0.179049


def test_one_part_is_the_whole_batch():
    assert torch.equal(replicas.parts_in_one_process([replicas.SAMPLES], "weighted"), replicas.one_machine())


def test_parts_in_one_process_differ_by_rounding_only():
    found = replicas.parts_in_one_process([1000, 3000, 96], "weighted")
    assert 0 < replicas.distance(found, replicas.one_machine()) <= ROUNDING


def test_parts_lie_end_to_end():
    assert replicas.parts_of([3, 1, 4]) == [slice(0, 3), slice(3, 4), slice(4, 8)]


def test_seeds_make_networks():
    one, same, other = replicas.network(), replicas.network(0), replicas.network(1)
    assert torch.equal(parameters_to_vector(one.parameters()), parameters_to_vector(same.parameters()))
    assert not torch.equal(one[0].weight, other[0].weight)
    assert all(parameter.is_contiguous() for parameter in one.parameters())


def test_spread_is_between_any_two_rows():
    assert replicas.spread(torch.tensor([[0.0, 1.0], [2.0, 1.0], [-1.0, 1.5]])) == 3.0


def steps_of(sizes: list[int], how: str) -> replicas.Trained:
    return replicas.train(sizes, how)


@pytest.mark.parametrize("how", ["mean", "weighted"])
def test_ranks_have_the_bits_of_their_parts_in_one_process(world_of, how):
    sizes = [2000, 96, 2000]
    alone = replicas.parts_in_one_process(sizes, how)
    for trained in world_of(3).run(steps_of, sizes, how):
        assert torch.equal(trained.parameters, alone)
        assert trained.drift == trained.offset == trained.offset_change == 0.0
        assert trained.losses == [replicas.loss_of(alone)] * 3 and not trained.warning


LOSS = 0.179049


def on_a_rank() -> dict:
    return replicas.report_of(replicas.cases_of(8))


@pytest.fixture(scope="module")
def reports(world_of) -> dict:
    """The four cases, from rank 0; the other ranks report nothing."""
    first, *others = world_of(8).run(on_a_rank)
    assert others == [{}] * 7
    return first


@pytest.mark.parametrize("name", ["even", "weighted"])
def test_replicas_follow_one_machine(reports, name):
    report = reports[name]
    assert report["drift"] == report["gap_in_parts"] == 0.0
    assert report["gap"] <= ROUNDING
    assert round(report["loss_single"], 6) == LOSS
    assert {round(loss, 6) for loss in report["losses"]} == {LOSS}


def test_the_mean_of_unequal_means_is_another_gradient(reports):
    report = reports["mean"]
    assert report["sizes"] == [2048, 293, 293, 293, 293, 292, 292, 292]
    assert report["gap"] == pytest.approx(8.05e-3, abs=5e-6)
    assert round(report["loss_replica0"], 6) == 0.179311
    assert report["drift"] == report["gap_in_parts"] == 0.0


def test_averaging_never_repairs_different_starts(reports):
    report = reports["starts"]
    assert report["offset"] == pytest.approx(0.449, abs=5e-4)
    assert report["offset_change"] <= ROUNDING
    assert round(min(report["losses"]), 3) == 0.236 and round(max(report["losses"]), 3) == 0.280
    assert "averaging gradients never repairs that" in report["warning"]


def test_the_text_has_a_block_for_each_case(reports):
    text = replicas.render(reports)
    assert text.count("largest drift at any step") == 4 and text.count("to one machine, whole batch") == 3
    assert "8.05e-03" in text and "averaging gradients never repairs that." in text
    assert replicas.render(reports["even"]) == text.split("\n\n")[0]


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_sizes_deal_out_all_samples(ranks):
    even, lopsided = replicas.even_sizes(ranks), replicas.lopsided_sizes(ranks)
    assert sum(even) == sum(lopsided) == 4096 and len(even) == len(lopsided) == ranks
    assert max(even) - min(even) <= 1 and lopsided[0] == 2048


@pytest.mark.parametrize(
    ("arguments", "ranks", "said"),
    [
        (["--sizes", "2048,2048"], 3, "--sizes has 2 parts for 3 ranks"),
        (["--sizes", "2048,2047"], 2, "these sum up to 4095"),
        (["--sizes", "4096,0"], 2, "at least 1 each"),
        (["--all", "--how", "mean"], 8, "--all runs four cases of its own"),
        (["--all"], 1, "--all needs at least 2 ranks"),
    ],
)
def test_what_does_not_fit_is_named(arguments, ranks, said):
    assert said in replicas.problem_of(replicas.parser().parse_args(arguments), ranks)


def test_what_fits_is_no_problem():
    for arguments in ([], ["--all"], ["--sizes", "4000,96", "--how", "weighted"], ["--starts", "different"]):
        assert replicas.problem_of(replicas.parser().parse_args(arguments), 2) is None


def test_sizes_that_are_no_numbers_are_named(capsys):
    with pytest.raises(SystemExit):
        replicas.parser().parse_args(["--sizes", "half,half"])
    assert "'half,half' is no list of whole numbers" in capsys.readouterr().err


def test_a_case_is_an_even_mean_unless_told_otherwise():
    assert Case([1]) == Case([1], "mean", "same")
    assert list(replicas.cases_of(4)) == ["even", "mean", "weighted", "starts"]
