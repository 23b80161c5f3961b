"""Plans as a graph: every byte is there once, sends meet receives, and nothing waits for itself."""

from __future__ import annotations

import copy

import pytest
from scale.costs import ALGORITHMS, Topology
from scale.dag import COMPUTE, DELAY, WIRE, Graph
from scale.recorded import plans

PLACES = [(name, at) for name in ALGORITHMS for at in (Topology(5), Topology(3, 2))]


@pytest.mark.parametrize(("name", "at"), PLACES, ids=str)
def test_bytes_and_messages_are_those_of_the_recorder(name, at):
    recorded = plans(name, 3 << 20, at)
    nodes = Graph(recorded, at.local).nodes
    for rank, plan in enumerate(recorded):
        mine = [node for node in nodes if node.rank == rank]
        assert sum(node.amount for node in mine if node.kind == WIRE) == plan["totals"]["bytes_sent"]
        assert sum(node.amount for node in mine if node.kind == COMPUTE) == plan["totals"]["memory_read"]
        assert sum(node.kind == WIRE for node in mine) == plan["totals"]["sends"]
    assert sum(node.kind == DELAY for node in nodes) == sum(node.kind == WIRE for node in nodes)


@pytest.mark.parametrize(("name", "at"), PLACES, ids=str)
def test_every_node_can_run(name, at):
    nodes = Graph(plans(name, 3 << 20, at), at.local).nodes
    ready = [number for number, node in enumerate(nodes) if not node.waits]
    for number in ready:
        for after in nodes[number].next:
            nodes[after].waits -= 1
            if not nodes[after].waits:
                ready.append(after)
    assert len(ready) == len(nodes)


def test_plans_that_do_not_fit_are_refused():
    recorded = copy.deepcopy(plans("direct", 4096, Topology(3)))
    lane = next(lane for lane in recorded[1]["lanes"] if lane["name"] == "recv<0")
    lane["steps"].pop()
    with pytest.raises(ValueError, match="from rank 0 to rank 1"):
        Graph(recorded, 1)
