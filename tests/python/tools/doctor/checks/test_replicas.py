"""Replicas that differ, gradients that nothing averages, the same work: from records whose values are known."""

from __future__ import annotations

from typing import Any

import pytest
from ringdp.tools.doctor.checks.replicas import check_replicas, check_same_work, not_judged
from synthetic import evidence

NAMES = ["weight", "bias"]
TURNS = 8
ALL = {2: "0,1", 3: "0,1,2"}


def recorded(rank: int, group: str, change: Any = lambda rank, turn, row: None, **facts: Any) -> dict[str, list[Any]]:
    """A rank's records: parameters that are equal on all ranks; change(rank, turn, row) alters the row of a step."""
    rows = []
    for turn in range(TURNS):
        row = {"before": [turn, turn], "after": [turn + 1, turn + 1], "grads": [7 * turn, 7 * turn + 1]}
        row |= {"optimizer": 0, "turn": turn, "step": turn, "forwards": 1, "unsynced": 0}
        change(rank, turn, row)
        rows.append(row)
    made = {"names": NAMES, "group": [group] * 2, "made": [0 if group else None] * 2}
    made |= {"optimizer": 0, "plain": True, "shapes": [[2, 2], [2]], "varied": [True, False], **facts}
    return {"parameters": [made], "replicas": rows}


def found(
    change: Any = lambda rank, turn, row: None, world: int = 2, group: str | None = None, more: Any = None, **facts
):
    group = ALL[world] if group is None else group

    def records(rank):
        own = {name: of(rank) for name, of in facts.items()}
        return {**recorded(rank, group, change, **own), **(more(rank) if more else {})}

    return list(check_replicas(evidence(world, more=records)))


def add(row, value, *what):
    for name in what:
        row[name] = [x + value for x in row[name]]


def drifts_from(turn_of_change):
    """Rank 1's values are others from this turn on, before its step."""

    def change(rank, turn, row):
        if rank == 1 and turn >= turn_of_change:
            add(row, 100, "before", "after")

    return change


def steps_with_own_gradients(rank, turn, row):
    add(row, 1000 * rank, "grads")
    add(row, 100 * rank, *(("before", "after") if turn else ("after",)))


def steps_otherwise(rank, turn, row):
    add(row, 100 * rank, *(("before", "after") if turn else ("after",)))


@pytest.mark.parametrize("group", ["0,1", ""])
def test_equal_replicas_are_fine(group):
    assert found(group=group) == []


@pytest.mark.parametrize(("turn", "when"), [(0, "when the wrapper was made"), (1, "after step 1"), (5, "after step 5")])
def test_the_rank_that_changed_its_parameters_is_named(turn, when):
    (finding,) = found(drifts_from(turn), world=3)
    assert (finding.check, finding.ranks) == ("drifted replicas", (1,))
    assert (
        f"different values of weight, bias before step {turn + 1}; {when} they were equal, and rank 1" in finding.seen
    )


def test_where_every_rank_changed_its_own_none_is_named():
    def change(rank, turn, row):
        if turn >= 2:
            add(row, 100 + rank, "before", "after")

    (finding,) = found(change)
    assert finding.ranks == () and "every rank has changed its own" in finding.seen


def test_different_starts_of_a_wrapper_and_by_hand():
    (finding,) = found(drifts_from(0), made=lambda rank: [rank, 0])
    assert finding.check == "drifted replicas" and "the first that was looked at" in finding.seen
    (finding,) = found(drifts_from(0), group="")  # their gradients are equal: something averages them
    assert finding.check == "drifted replicas" and "dist.broadcast" in finding.fix


def test_an_optimizer_that_steps_differently_is_told_from_gradients_that_differ():
    (finding,) = found(steps_otherwise)
    assert finding.check == "drifted replicas" and "after step 1, though parameters and gradients were" in finding.seen
    (finding,) = found(steps_with_own_gradients)
    assert finding.check == "unsynchronised" and finding.numbers["step"] == 1


@pytest.mark.parametrize(
    ("forwards", "unsynced", "said"),
    [(0, 0, "no forward pass went through the wrapper"), (2, 2, "inside no_sync()"), (2, 1, "did not go through it")],
)
def test_why_a_wrapper_did_not_average(forwards, unsynced, said):
    def change(rank, turn, row):
        steps_with_own_gradients(rank, turn, row)
        row |= {"forwards": forwards, "unsynced": unsynced}

    (finding,) = found(change)
    assert said in finding.seen


def test_without_a_wrapper_collectives_of_the_script_are_told_from_none():
    (finding,) = found(steps_with_own_gradients, group="")
    assert "no collective and no DistributedDataParallel" in finding.seen
    calls = {"call": [{"group": "0,1", "number": 0}]}
    (finding,) = found(steps_with_own_gradients, group="", more=lambda rank: calls)
    assert "own collectives did not make them equal" in finding.seen


PARTS = {
    "other values from the start": (lambda rank, turn, row: add(row, 9 * rank, "before", "after", "grads"), {}, None),
    "other shapes": (steps_with_own_gradients, {"shapes": lambda rank: [[2 + rank], [2]]}, None),
    "constants only": (steps_with_own_gradients, {"varied": lambda rank: [False, False]}, None),
    "no plain tensors": (steps_with_own_gradients, {"plain": lambda rank: False}, None),
    "smaller groups": (steps_with_own_gradients, {}, lambda rank: {"call": [{"group": "0", "number": 0}]}),
}


@pytest.mark.parametrize("parts", PARTS)
def test_without_a_wrapper_parts_of_a_model_are_no_replicas(parts):
    change, facts, more = PARTS[parts]
    assert found(change, group="", more=more, **facts) == []


def test_shards_of_gradients_whose_parameters_stay_equal_are_fine():
    assert found(lambda rank, turn, row: add(row, rank, "grads")) == []


def test_parameters_that_the_wrapper_ignores_are_not_judged():
    assert found(steps_with_own_gradients, group="ignored") == []


def works(world, sums):
    def records(rank):
        share = [{"step": step, "sums": sums(rank, step)} for step in range(1, 5)]
        return {**recorded(rank, ALL[world]), "share": share}

    return list(check_same_work(evidence(world, more=records)))


def test_ranks_that_compute_the_same_gradients_are_named():
    assert works(2, lambda rank, step: [rank + step]) == []
    (finding,) = works(3, lambda rank, step: [step + (rank == 1)])
    assert finding.ranks == (0, 2) and "in all of 4 early steps" in finding.seen
    assert works(2, lambda rank, step: [step + (rank if step == 3 else 0)]) == []  # once is an accident


def test_what_is_not_judged_is_said():
    shards = list(not_judged(evidence(more=lambda rank: recorded(rank, "", plain=False))))
    assert shards == ["replicas: parameters are shards, which ranks do not have in common"]
    change = PARTS["other values from the start"][0]
    (said,) = not_judged(evidence(more=lambda rank: recorded(rank, "", change)))
    assert "do not hold the same parameters" in said
    assert list(not_judged(evidence(more=lambda rank: recorded(rank, "0,1")))) == []
