"""The scaling rule."""

from __future__ import annotations

import pytest
from ringdp.tools.doctor.checks.learning_rate import check, not_judged
from ringdp.tools.doctor.evidence import Baseline
from synthetic import evidence

ADAM = {"optimizer": "AdamW"}


def with_rate(rate, world=4, **row):
    return evidence(world, step=lambda rank, step: {"lr": rate, **row}, baseline=Baseline(0.1, 32))


@pytest.mark.parametrize("rate", [0.4, 0.38, 0.42])
def test_n_ranks_with_n_times_the_rate_are_right(rate):
    assert list(check(with_rate(rate))) == []


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.6])
def test_another_rate_is_found(rate):
    (finding,) = check(with_rate(rate))
    assert finding.numbers == {"lr": rate, "batch": 128, "linear": 0.4}
    assert "scales to 0.4" in finding.seen and "lr=0.4" in finding.fix


@pytest.mark.parametrize(("rate", "found"), [(0.2, 0), (0.4, 0), (0.3, 0), (0.1, 1), (0.8, 1)])
def test_adam_may_be_anywhere_between_root_and_linear(rate, found):
    assert len(list(check(with_rate(rate, **ADAM)))) == found


def test_a_warm_up_is_not_judged_and_said():
    rising = evidence(4, step=lambda rank, step: {"lr": 0.01 * (step + 1)}, baseline=Baseline(0.1, 32))
    assert list(check(rising)) == []
    assert "still rises, from 0.01 to 0.2" in next(not_judged(rising))


def test_without_a_baseline_it_is_said_what_to_give():
    assert list(check(evidence())) == []
    (said,) = not_judged(evidence())
    assert "lr 0.1 at a global batch of 64" in said and "--base-lr" in said


def test_steps_without_samples_or_rate():
    assert "no optimizer step" in next(not_judged(with_rate(0.1, samples=0)))
    assert "no optimizer step" in next(not_judged(with_rate(None)))
    assert list(check(with_rate(None))) == []
