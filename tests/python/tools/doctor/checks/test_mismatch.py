"""The order of collectives, and parameters that have a gradient on some ranks only."""

from __future__ import annotations

import pytest
from ringdp.tools.doctor.checks.failure import HANGS
from ringdp.tools.doctor.checks.mismatch import check_calls, check_layers
from synthetic import evidence

A, B, C = ("all_reduce", "0,1,2,3"), ("all_to_all", "0,1"), ("all_to_all", "2,3")


def with_calls(*by_rank):
    def rows(rank):
        calls = [dict(zip(("op", "group", "name"), (*call, "0"), strict=False)) for call in by_rank[rank]]
        return {"call": [{**call, "count": 8, "step": step} for step, call in enumerate(calls)]}

    return evidence(len(by_rank), more=rows)


def test_two_groups_in_opposite_orders():
    (finding,) = check_calls(with_calls([A, A, B], [A, B, A], [A, A, C], [A, A, C]))
    assert (finding.check, finding.ranks, finding.numbers) == ("group order", (0, 1), {"place": 2, "step": 2})
    assert "all_reduce of 8 elements on group 0 (ranks 0,1,2,3) on rank 0 and all_to_all" in finding.seen


def test_different_calls_on_one_group():
    (finding,) = check_calls(with_calls([A, ("broadcast", "0,1,2,3")], [A, A]))
    assert finding.check == "different calls"


def test_groups_of_the_same_ranks_are_told_apart():
    one, two = (*A, "1"), (*A, "2")
    (finding,) = check_calls(with_calls([one, two], [two, one]))
    assert finding.check == "group order" and "group 2 (ranks 0,1,2,3) on rank 1" in finding.seen


IN_ORDER = {
    "whatever other groups do": with_calls([A, B, A], [A, B, A], [A, A, C], [A, A, C]),
    "a group of one rank": with_calls([(*C[:1], "0"), A], [A]),
    "a rank that was stopped earlier": with_calls([A, A, A], [A, A]),
}


@pytest.mark.parametrize("run", IN_ORDER.values(), ids=IN_ORDER)
def test_the_same_order_is_fine(run):
    assert list(check_calls(run)) == []


def with_unused(names, steps=3, world=3, **given):
    """names(rank, step): parameters without a gradient; None: the rank did not come so far."""

    def rows(rank):
        by_step = [(step, names(rank, step)) for step in range(steps)]
        return {"unused": [{"step": step, "names": missing} for step, missing in by_step if missing is not None]}

    return evidence(world, more=rows, **given)


def test_a_layer_of_two_ranks():
    (finding,) = check_layers(with_unused(lambda rank, step: ["extra.weight", "extra.bias"] if rank == 1 else []))
    assert finding.ranks == (1,)
    assert finding.numbers == {"parameters": ["extra.bias", "extra.weight"], "steps": 3}


def test_ranks_that_take_turns():
    (finding,) = check_layers(with_unused(lambda rank, step: [f"expert{rank}"] if step == 1 else []))
    assert finding.ranks == (0, 1, 2) and "in 1 of 3 steps" in finding.seen


def test_ranks_that_hang_waiting_for_it():
    (finding,) = check_layers(with_unused(lambda rank, step: ["extra"] if rank == 1 else None, steps=1))
    assert finding.ranks == (1,)


def last_rank_is_behind(rank, step):
    return None if (rank, step) == (2, 2) else ["frozen"]


def test_micro_batches_of_a_step_that_was_cut_short_say_nothing():
    def rows(rank):
        done = [{"step": 0, "names": []}]
        return {"unused": [*done, {"step": 1, "names": ["b"] if rank else ["a"]}], "step": [{"step": 0}]}

    assert list(check_layers(evidence(more=rows, stopped="every rank has made its steps"))) == []
    assert len(list(check_layers(evidence(more=rows)))) == 1


def test_many_parameters_are_counted_and_not_cut():
    (finding,) = check_layers(with_unused(lambda rank, step: [f"p{n}" for n in range(90 if rank else 50)]))
    assert finding.numbers["parameters"] == sorted(f"p{n}" for n in range(50, 90)) and finding.ranks == (1, 2)
    assert "... (40 parameters)" in finding.seen


def two_micro_batches(rank):
    return {"unused": [{"step": 0, "names": ["a"] if rank else []}, {"step": 0, "names": []}]}


USED = {
    "a layer that no rank uses": with_unused(lambda rank, step: ["frozen"]),
    "all layers": with_unused(lambda rank, step: []),
    "nothing that was written down": evidence(),
    "a last step that not all had finished": with_unused(last_rank_is_behind, stopped="every rank has made its steps"),
    "what no rank ever uses, while ranks wait": with_unused(last_rank_is_behind, stopped=HANGS),
    "the micro-batches of a step together": evidence(more=two_micro_batches),
}


@pytest.mark.parametrize("run", USED.values(), ids=USED)
def test_layers_that_all_ranks_use_alike_are_fine(run):
    assert list(check_layers(run)) == []
