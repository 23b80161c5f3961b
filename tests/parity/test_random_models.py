"""Random models, options and optimizers on 1 to 4 ranks: the bits of one process at every stage, or refused by name.

A failure prints its seed and case; RINGDP_TEST_SEEDS=17 (or 17-42) and `pytest -m long` with this file repeat
it. `make test-all` runs 2,000 seeds, or as many as RINGDP_TEST_MINUTES (30) are enough for.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice, product

import pytest
from random_cases import INSIDE, OPTIMIZERS, PLAIN, RARE, REFUSALS, Case, case_of
from random_training import at_first, in_one_process, on_this_rank
from ranks import World

CASES, MINUTES, PARTS, SLICE = 2000, 30.0, 8, 20
WITHIN_S = 150.0  # the ranks' own deadline is 60
FAILURES = 5  # then the rest is not run
WorldOf = Callable[..., World]
CHOSEN = os.environ.get("RINGDP_TEST_SEEDS")
EACH = CASES // PARTS
RANGES = [CHOSEN] if CHOSEN else [f"{first}-{first + EACH - 1}" for first in range(0, CASES, EACH)]


def verdict(world_of: WorldOf, case: Case) -> str:
    """'equal' or 'refused'; else what is wrong."""
    world = world_of(case.ranks, **({"transport": "tcp"} if case.path == "tcp" else {}))
    world.begin(on_this_rank, case.seed)
    try:
        expected = None if case.refusal else in_one_process(case)
    finally:
        outcomes = world.finish(within=WITHIN_S)
    if expected is None:
        says = REFUSALS[case.refusal].says
        told = all(re.search(says, outcome.error) for outcome in outcomes)
        return "refused" if told else f"{case.refusal} not refused: {[outcome.error for outcome in outcomes]}"
    failed = next((outcome for outcome in outcomes if outcome.error), None)
    if failed:
        return f"rank {failed.rank} failed: {failed.trace}"
    if all(expected[name] == digest for name, digest in at_first(case).items()):
        return "no parameter has changed in one process"
    differing = {n for o in outcomes for n in expected if o.value.get(n, expected[n]) != expected[n]}
    differing |= expected.keys() ^ outcomes[0].value.keys()
    return f"differs in {sorted(differing)}" if differing else "equal"


def tally(world_of: WorldOf, cases: Iterable[Case], minutes: float) -> Counter[str]:
    """How many were equal and refused; AssertionError with all that was wrong."""
    until = time.monotonic() + 60 * minutes
    counts: Counter[str] = Counter()
    wrong = []
    for case in cases:
        if time.monotonic() > until or len(wrong) == FAILURES:
            break
        try:
            said = verdict(world_of, case)
        except Exception as error:  # a rank has died or hangs, or the one process has failed
            said = f"{type(error).__name__}: {error}"
        counts[said if said in ("equal", "refused") else "wrong"] += 1
        if said not in ("equal", "refused"):
            wrong.append(f"seed {case.seed}: {said}\n  {case}")
            world_of.drop_used()  # the state of its ranks is unknown
    assert not wrong, "\n\n".join([f"{dict(counts)}", *wrong])
    return counts


def test_a_slice_ends_as_one_process_or_is_refused_by_name(world_of):
    """On three ranks, that are kept for other tests."""
    cases = (case for case in map(case_of, range(CASES)) if case.ranks == 3 and case.path != "tcp")
    counts = tally(world_of, islice(cases, SLICE), MINUTES)
    assert counts["equal"] + counts["refused"] == SLICE and 0 < counts["refused"] < SLICE / 4


@pytest.mark.long
@pytest.mark.parametrize("chosen", RANGES)
def test_random_models_end_as_one_process_or_are_refused_by_name(world_of, capsys, chosen):
    first, _, last = chosen.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    minutes = float(os.environ.get("RINGDP_TEST_MINUTES", MINUTES))
    counts = tally(world_of, map(case_of, seeds), minutes / len(RANGES))
    with capsys.disabled():
        print(f" seeds {chosen}: {counts['equal']} equal, {counts['refused']} refused by name ", end="")
    assert counts.total() < 100 or 0 < counts["refused"] < counts["equal"] / 4


def test_every_kind_is_drawn():
    cases = [case_of(seed) for seed in range(CASES)]
    assert {case.refusal for case in cases} == {"", *REFUSALS}
    legs = [leg for case in cases if not case.refusal for leg in case.legs]
    ways = {*product(range(4), ("no_sync", "weights")), *product((2, 3), ("each",)), *product(range(3), ("absent",))}
    assert {(leg.stage, leg.how) for leg in legs} == ways
    assert set().union(*(case.kinds() for case in cases)) == {*PLAIN, *RARE, *INSIDE, "sparse", "same memory"}
    assert {case.optimizer for case in cases} == {*OPTIMIZERS, "Adafactor"}
    assert [case_of(seed) for seed in range(9)] == cases[:9]
