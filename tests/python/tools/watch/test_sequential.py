"""The rules of decision, over steps that are made up: how soon a fault is named, and how long nothing is."""

from __future__ import annotations

import random
from math import log

import pytest
from ringdp.tools.watch.sequential import ENOUGH, FAIR_PART, Exposure, Lateness, Score, delayed

STEP = 0.020
HEALTHY = 2000


def heavy(choose, scale):
    """Seconds with a tail whose variance is infinite, and now and then a hiccup of several steps' length."""
    return scale * (choose.paretovariate(1.5) - 1) + (choose.random() < 0.01) * choose.uniform(0.01, 0.2)


def lateness_of(waits, state=None):
    """The steps (from 1) after which a rank was found, and which; like the judge's, it begins anew then."""
    state, found = state or Lateness(), []
    for number, step in enumerate(waits, 1):
        late, lost = delayed(step)
        state = state.after(late, lost / STEP)
        if state.found is not None:
            found.append((number, state.found))
            state = Lateness()
    return found, state


def jitter(seed, ranks, scale, steps=HEALTHY):
    """What every rank waits in every step, where each is held up by chance."""
    choose = random.Random(seed)
    for _ in range(steps):
        came = [heavy(choose, scale) for _ in range(ranks)]
        yield {rank: max(came) - at for rank, at in enumerate(came)}


@pytest.mark.parametrize("scale", [0.0001, 0.001, 0.005, 0.020])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_heavy_tailed_jitter_is_nobodys_fault(ranks, scale):
    assert [found for seed in range(3) for found in lateness_of(jitter(seed, ranks, scale))[0]] == []


def test_nor_is_a_rank_that_is_late_by_a_coin_in_every_step():
    choose = random.Random(1)
    assert (
        lateness_of([{0: 0.01, 1: 0.0} if choose.random() < 0.5 else {0: 0.0, 1: 0.01} for _ in range(4 * HEALTHY)])[0]
        == []
    )


@pytest.mark.parametrize("scale", [0.0001, 0.001, 0.005])
@pytest.mark.parametrize("healthy", [0, 20, HEALTHY])
def test_a_straggler_is_found_within_36_steps_of_jitter(healthy, scale):
    for seed in range(4):
        _, state = lateness_of(jitter(seed, 2, scale, healthy))
        waits = [{0: step[0] + 0.010, 1: step[1]} for step in jitter(seed + 100, 2, scale / 5, 50)]
        found, _ = lateness_of(
            [{rank: wait - min(step.values()) for rank, wait in step.items()} for step in waits], state
        )
        assert found and found[0][0] <= 36 and found[0][1] == 1


def test_what_costs_less_than_is_fair_is_not_said():
    state = Lateness()
    for _ in range(HEALTHY):
        state = state.after(1, 0.99 * FAIR_PART)
    assert state.found is None and state.scores == {}


def test_the_rarer_it_was_the_fewer_steps_are_enough():
    usual, quiet = Score(), Score()
    for _ in range(200):
        quiet = quiet.after(False)
    steps = []
    for score in (usual, quiet):
        number = 0
        while score.value < ENOUGH:
            score, number = score.after(True), number + 1
        steps.append(number)
    assert steps == [24, 14]


@pytest.mark.parametrize("chance", [0.0, 0.2, 1 / 3, 0.5])
def test_a_step_by_chance_is_no_evidence_on_average(chance):
    """Where something is so with this probability, the likelihood ratio of one step has at most the expectation 1."""
    score = Score(value=10.0, usual=chance)
    ratios = [2.718281828459045 ** (score.after(so).value - score.value) for so in (True, False)]
    assert chance * ratios[0] + (1 - chance) * ratios[1] <= 1 + 1e-12
    assert log(ratios[0]) > 0 > log(ratios[1])


def exposure_of(shares):
    state, found = Exposure(), []
    for number, share in enumerate(shares, 1):
        state = state.after(share)
        if state.found:
            found.append(number)
            state = Exposure(usual=state.usual)
    return found


def exposed(seed, usual, steps=HEALTHY):
    """Of the rank that waits least: the smaller one of two."""
    choose = random.Random(seed)
    return [min(usual + heavy(choose, usual), usual + heavy(choose, usual)) / STEP for _ in range(steps)]


@pytest.mark.parametrize("usual", [0.0, 0.0002, 0.002, 0.010])
def test_heavy_tailed_exposure_is_not_lost_overlap(usual):
    assert [found for seed in range(5) for found in exposure_of(exposed(seed, usual))] == []


@pytest.mark.parametrize("usual", [0.0, 0.0002, 0.002])
@pytest.mark.parametrize("healthy", [10, 50, HEALTHY])
def test_lost_overlap_is_found_within_30_steps(healthy, usual):
    for seed in range(4):
        found = exposure_of([*exposed(seed, usual, healthy), *exposed(seed, usual + 0.006, 100)])
        assert found and found[0] - healthy <= 30


def test_what_never_was_hidden_and_what_grows_slowly_is_not_lost():
    assert exposure_of([0.4] * HEALTHY) == []
    assert exposure_of([0.1 + 0.0001 * step for step in range(HEALTHY)]) == []


def test_a_rank_that_comes_last_delays_the_next_one():
    assert delayed({0: 0.5, 1: 0.125, 2: 0.25}) == (1, 0.125)
