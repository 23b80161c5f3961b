"""Numbers that textbooks print, on eight real ranks: drift, gap, losses; unequal parts; different starts."""

from __future__ import annotations

import pytest
from ringdp.examples import replicas
from ringdp.examples.replicas import Case

ROUNDING = 1e-15
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
