"""Error messages name parameters, and keep the words that users and tests look for."""

from __future__ import annotations

import pytest
import torch
from rig import backward, reducer_of


def unfinished(find_unused: bool, static: bool, count: int) -> str:
    """On a rank: what the next forward pass says when the first of `count` parameters got no gradient."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(count)]
    reducer = reducer_of(parameters, find_unused=find_unused)
    if static:
        reducer.set_static_graph()
        reducer.prepare_for_forward()
        reducer.prepare_for_backward([])
        sum((p * 1.0).sum() for p in parameters).backward()
        reducer.delay_all_reduce()
    reducer.prepare_for_forward()
    used = (parameters[-1] * 1.0).sum()
    reducer.prepare_for_backward([used + sum((p * 0.0).sum() for p in parameters)])
    used.backward()
    try:
        reducer.rebuild_buckets()
    except RuntimeError as error:
        return str(error)
    return ""


KEY = "Expected to have finished reduction in the prior iteration"
OUTPUTS = "`forward` function outputs participate in calculating loss"


@pytest.mark.parametrize(
    ("find_unused", "static", "wanted", "unwanted"),
    [
        (False, False, ["passing the keyword argument `find_unused_parameters=True`", OUTPUTS], ["is enabled"]),
        (True, False, ["Since `find_unused_parameters=True` is enabled", OUTPUTS], ["passing the keyword"]),
        (False, True, ["not compatible with static_graph"], ["passing the keyword"]),
    ],
)
def test_unfinished_steps_name_parameters_and_the_way_out(world_of, find_unused, static, wanted, unwanted):
    said = world_of(1).run(unfinished, find_unused, static, 2)[0]
    assert KEY in said and "did not receive grad for rank 0: p0" in said
    assert all(words in said for words in wanted) and not any(words in said for words in unwanted)


def test_long_lists_are_cut(world_of):
    said = world_of(1).run(unfinished, False, False, 80)[0]
    assert "p0, p1" in said and "and 29 more" in said


def test_nothing_is_said_when_nothing_is_open(world_of):
    assert world_of(1).run(quiet) == [True]


def quiet() -> bool:
    parameters = [torch.zeros(2, requires_grad=True)]
    reducer = reducer_of(parameters)
    for _ in range(3):
        backward(reducer, parameters, [torch.ones(2)])
    reducer.check_finished()
    return True
