"""Formulas against the plans that ringdp records: latency chains, bytes through ports, folds on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scale.costs import ALGORITHMS, IN_RANK_ORDER, SEGMENT, SLOT, Topology, candidates, cut
from scale.dag import DELAY, WIRE, Graph
from scale.network import Network
from scale.recorded import plans, port_bytes, rounds, steps

NOTHING = Network(alpha=0, beta=0, gap=0, gamma=0, local_alpha=0, local_beta=0)
FLAT = [Topology(n) for n in (2, 3, 4, 5, 8)]
LAYERED = [Topology(2, 2), Topology(3, 2), Topology(4, 2), Topology(2, 4)]
SMALL, LARGE = 4096, 6 << 20


def longest_chain(graph, weight):
    """The weight of the heaviest path, of `weight(node)` each."""
    waits = [node.waits for node in graph.nodes]
    ready = [number for number, left in enumerate(waits) if not left]
    arrival = [0.0] * len(waits)
    done = 0
    for number in ready:
        done += 1
        arrival[number] += weight(graph.nodes[number])
        for after in graph.nodes[number].next:
            arrival[after] = max(arrival[after], arrival[number])
            waits[after] -= 1
            if not waits[after]:
                ready.append(after)
    assert done == len(waits), "steps wait for each other"
    return max(arrival)


def between_hosts(at):
    return lambda node: float(node.kind == DELAY and node.rank // at.local != node.peer // at.local)


def names(at):
    return list(candidates(at))


@pytest.mark.parametrize("at", FLAT + LAYERED, ids=str)
def test_latency_is_the_longest_chain_of_messages_between_hosts(at):
    for name in names(at):
        chain = longest_chain(Graph(plans(name, SMALL, at), at.local), between_hosts(at))
        formula = ALGORITHMS[name](SMALL, at, replace(NOTHING, alpha=1.0))
        if at.local == 1 or "ring" not in name:
            assert formula == pytest.approx(chain), name
        else:  # the formula takes the average over hops between and within hosts
            assert chain * 0.6 <= formula <= chain * 1.4, name


@pytest.mark.parametrize("at", FLAT + LAYERED, ids=str)
def test_no_formula_is_faster_than_its_busiest_port(at):
    for name in names(at):
        least = port_bytes(plans(name, LARGE, at), at)
        formula = ALGORITHMS[name](LARGE, at, replace(NOTHING, beta=1.0))
        assert least * 0.999 <= formula <= least * 2.1, name


@pytest.mark.parametrize("at", FLAT, ids=str)
def test_where_every_port_is_always_busy_the_formula_is_its_bytes(at):
    for name in ("direct", "ring/rotated"):
        size = at.ranks * (SEGMENT // 2)
        least = port_bytes(plans(name, size, at), at)
        assert ALGORITHMS[name](size, at, replace(NOTHING, beta=1.0)) == pytest.approx(least), name


@pytest.mark.parametrize("at", FLAT, ids=str)
def test_gap_counts_the_messages_of_a_port(at):
    recorded = plans("direct", LARGE, at)
    messages = sum(node.kind == WIRE and node.rank == 0 for node in Graph(recorded, 1).nodes)
    assert ALGORITHMS["direct"](LARGE, at, replace(NOTHING, gap=1.0)) == messages


def test_textbook_limits_of_the_ring():
    at, net = Topology(16), Network(1e-5, 1e-9, 0, 0, 0, 0)
    small = ALGORITHMS["ring/rotated"](1024, at, net)
    assert small == pytest.approx(2 * 15 * (1e-5 + 1024 / 16 * 1e-9))
    large = 1 << 30
    assert ALGORITHMS["ring/rotated"](large, at, net) == pytest.approx(2 * 15 / 16 * large * 1e-9, rel=0.01)
    assert ALGORITHMS["ring"](large, at, net) == pytest.approx(2 * large * 1e-9, rel=0.02)


@pytest.mark.parametrize("at", FLAT, ids=str)
def test_rounds_recorded_are_those_of_the_textbook(at):
    assert rounds(plans("direct", SMALL, at)) == 2
    assert rounds(plans("ring", SMALL, at)) == 2 * (at.ranks - 1)
    assert rounds(plans("ring/rotated", SMALL, at)) == 2 * (at.ranks - 1)
    assert rounds(plans("tree", SMALL, at)) == 2 * (at.ranks - 1).bit_length()


def test_times_grow_with_size_and_stay_finite_up_to_16384_ranks():
    net = Network(1e-4, 8e-9, 4e-6, 3e-11, 1e-5, 1e-10)
    for at in (Topology(16384), Topology(2048, 8)):
        for name in names(at):
            times = [ALGORITHMS[name](size, at, net) for size in (256, SLOT, 1 << 30)]
            assert 0 < times[0] < times[1] < times[2] < 1e6, name


def test_cut_is_that_of_the_plans():
    assert cut(SEGMENT) == (1, SEGMENT)
    assert cut(SEGMENT + 4) == (2, SEGMENT)
    assert cut(SEGMENT * 4096 * 2)[0] == 4096
    assert cut(100) == (1, 100)
    recorded = plans("direct", 2 * 3 * SEGMENT, Topology(2))
    assert sum(len(lane["steps"]) for lane in recorded[0]["lanes"] if lane["name"] == "send>1") == 2 * 3
    assert steps(recorded) == sum(len(lane["steps"]) for plan in recorded for lane in plan["lanes"])


def test_hierarchy_differs_only_where_hosts_have_several_ranks():
    assert "hierarchy" not in candidates(Topology(8))
    assert "hierarchy" in candidates(Topology(4, 2), in_order=True)
    assert set(candidates(Topology(4, 2), in_order=True)) == set(IN_RANK_ORDER)
