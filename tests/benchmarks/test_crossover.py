"""Where an algorithm takes over: exact on straight lines, and nobody changes for a tie."""

from __future__ import annotations

from itertools import pairwise

import pytest
from scale.costs import Topology
from scale.crossover import MARGIN, fastest, grid, reigns
from scale.network import Network

AT, NET = Topology(4), Network(0, 1, 0, 0, 0, 0)


def line(start, slope):
    return lambda size, at, net: start + slope * size


LATE = {"quick start": line(0, 3), "middle": line(20_000, 2), "long run": line(420_000, 1)}


def test_reigns_change_where_lines_cross():
    found = reigns(256, 1 << 24, AT, NET, LATE)
    assert [reign.algorithm for reign in found] == ["quick start", "middle", "long run"]
    assert found[0].begin == 256
    assert found[-1].end == 1 << 24
    for (first, second), (left, right) in zip(pairwise(LATE), pairwise(found), strict=True):
        assert right.begin - left.end == 4
        times = [LATE[name](right.begin, AT, NET) for name in (first, second)]
        assert times[0] / times[1] == pytest.approx(1 + MARGIN, rel=1e-3)


def test_who_is_hardly_faster_does_not_take_over():
    same = {"first": line(100, 1), "second": line(0, 1 / (1 + 0.9 * MARGIN))}
    assert fastest(1 << 20, AT, NET, same) == "second"
    begun = {"first": line(0, 1), "second": line(100, 1 / (1 + 0.9 * MARGIN))}
    assert [reign.algorithm for reign in reigns(256, 1 << 20, AT, NET, begun)] == ["first"]


def test_steps_in_a_curve_do_not_make_reigns_change_to_and_fro():
    stairs = {"even": line(0, 1), "stairs": lambda size, at, net: size * (0.97 if size // 4096 % 2 else 1.03)}
    assert len(reigns(256, 1 << 24, AT, NET, stairs)) == 1


def test_the_grid_is_of_whole_elements_and_has_both_ends():
    sizes = grid(256, 10_000)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (256, 10_000)
    assert all(size % 4 == 0 for size in sizes)
    assert max(b / a for a, b in pairwise(sizes)) < 1.25
