"""ringdp/doctor/checks/layers.py: parameters that have a gradient on some ranks only."""

from __future__ import annotations

from ringdp.doctor.checks.layers import check
from synthetic import evidence


def with_unused(names, steps=3, world=3):
    """names(rank, step): parameters without a gradient; None: the rank did not come so far."""

    def rows(rank):
        by_step = [(step, names(rank, step)) for step in range(steps)]
        return {"unused": [{"step": step, "names": missing} for step, missing in by_step if missing is not None]}

    return evidence(world, more=rows)


def test_a_layer_of_two_ranks():
    (finding,) = check(with_unused(lambda rank, step: ["extra.weight", "extra.bias"] if rank == 1 else []))
    assert finding.ranks == (1,)
    assert finding.numbers == {"parameters": ["extra.bias", "extra.weight"], "steps": 3}


def test_ranks_that_take_turns():
    (finding,) = check(with_unused(lambda rank, step: [f"expert{rank}"] if step == 1 else []))
    assert finding.ranks == (0, 1, 2) and "in 1 of 3 steps" in finding.seen


def test_a_layer_that_nobody_uses_is_fine():
    assert list(check(with_unused(lambda rank, step: ["frozen"]))) == []


def test_all_used_is_fine():
    assert list(check(with_unused(lambda rank, step: []))) == [] == list(check(evidence()))


def test_ranks_that_hang_waiting_for_it():
    (finding,) = check(with_unused(lambda rank, step: ["extra"] if rank == 1 else None, steps=1))
    assert finding.ranks == (1,)


def test_micro_batches_of_a_step_count_together():
    def rows(rank):
        return {"unused": [{"step": 0, "names": ["a"] if rank else []}, {"step": 0, "names": []}]}

    assert list(check(evidence(more=rows))) == []
