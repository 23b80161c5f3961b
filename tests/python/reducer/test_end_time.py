"""When collectives ended, on every kind of backend: after they were launched, before the step was over."""

from __future__ import annotations

import pytest
import torch
from rig import backward, reducer_of


def ordered(backend: str, overlap: bool, rank_order: bool) -> bool:
    """On a rank: launched <= done <= finished for each of several buckets."""
    parameters = [torch.zeros(20000, requires_grad=True) for _ in range(4)]
    reducer = reducer_of(parameters, backend, bucket_limits=[1], overlap=overlap, rank_order=rank_order)
    backward(reducer, parameters, [torch.ones(20000)] * 4)
    times = reducer.timeline()
    assert len(times["buckets"]) == 4
    in_order = all(r <= launched <= done <= times["finished"] for r, launched, done in times["buckets"])
    return in_order and times["forward"] <= times["backward"] <= times["computed"] <= times["finished"]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("backend", "rank_order"), [("ringdp", True), ("gloo", True), ("gloo", False)])
def test_times_are_in_order(trio, backend, overlap, rank_order):
    assert trio.run(ordered, backend, overlap, rank_order) == [True] * 3
