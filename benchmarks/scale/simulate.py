"""Plays recorded plans on a SimGrid platform: every host has one full-duplex port, flows share it fairly.

    python -m scale.simulate JOB.json     prints seconds; runs in an interpreter that has simgrid, and needs no torch

JOB.json: {"plans": [...], "local": ranks per host, "network": {...}}. SimGrid's CM02 model without its corrections: a
lone message of b bytes takes gap + b beta + alpha. gap travels as bytes; alpha is an activity of its own, because a
sender is free again when its bytes are out.

The plans are joined to a graph of activities. A send holds the port for its bytes; the message arrives `alpha` later,
and its receive waits for that and for its own channel. Sends to the same rank keep their order. Bytes that wait for a
late receiver are buffered without a bound.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from scale.costs import Network

WIRE, DELAY, COMPUTE, NOTHING = "wire", "delay", "compute", "nothing"


@dataclass
class Node:
    """`rank` acts, `peer` is where a wire ends, `amount` is bytes. `waits` counts what has to be over before."""

    kind: str
    rank: int
    amount: int = 0
    peer: int = -1
    waits: int = 0
    next: list[int] = field(default_factory=list)


class Graph:
    """All ranks' plans, joined: sends with receives, barriers among the ranks of a host."""

    def __init__(self, plans: list[dict[str, Any]], local: int) -> None:
        self.nodes: list[Node] = []
        self._local = local
        self._sent: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._received: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._arrivals: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._waits: dict[tuple[int, int], list[int]] = defaultdict(list)
        for plan in plans:
            self._add_plan(plan)
        self._join(self._sent, self._received)
        for key, waits in self._waits.items():
            for arrival in self._arrivals[key]:
                for wait in waits:
                    self._edge(arrival, wait)

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _edge(self, before: int, after: int) -> None:
        self.nodes[before].next.append(after)
        self.nodes[after].waits += 1

    def _join(self, sent: dict[tuple[int, int], list[int]], received: dict[tuple[int, int], list[int]]) -> None:
        for pair in set(sent) | set(received):
            if len(sent[pair]) != len(received[pair]):
                text = f"{len(sent[pair])} sends and {len(received[pair])} receives"
                raise ValueError(f"plans disagree: {text} from rank {pair[0]} to rank {pair[1]}")
            for wire, receive in zip(sent[pair], received[pair], strict=True):
                delay = self._add(Node(DELAY, pair[0], peer=pair[1]))
                self._edge(wire, delay)
                self._edge(delay, receive)

    def _add_plan(self, plan: dict[str, Any]) -> None:
        rank = plan["rank"]
        nodes: list[list[int]] = []
        barrier = [0, 0]  # arrivals and waits so far: the k-th wait is for the k-th arrival of every rank
        for channel in plan["channels"]:
            nodes.append([self._add_step(rank, step, barrier) for step in channel["steps"]])
        for channel, own in zip(plan["channels"], nodes, strict=True):
            for before, after in pairwise(own):
                self._edge(before, after)
            for step, node in zip(channel["steps"], own, strict=True):
                for after in step["after"]:
                    if after["steps"]:
                        self._edge(nodes[after["channel"]][after["steps"] - 1], node)

    def _add_step(self, rank: int, step: dict[str, Any], barrier: list[int]) -> int:
        verb, host = step["verb"], rank // self._local
        if verb == "send":
            node = self._add(Node(WIRE, rank, step["bytes"], step["peer"]))
            self._sent[rank, step["peer"]].append(node)
        elif verb == "recv":
            node = self._add(Node(NOTHING, rank))
            self._received[step["peer"], rank].append(node)
        elif verb in ("arrive", "wait"):
            node = self._add(Node(NOTHING, rank))
            which = ("arrive", "wait").index(verb)
            (self._arrivals, self._waits)[which][host, barrier[which]].append(node)
            barrier[which] += 1
        else:
            node = self._add(Node(COMPUTE, rank, sum(ref["bytes"] for ref in step["srcs"])))
        return node


SETTINGS = ("network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0", "network/weight-S:0")
INSTANT = 1e-12  # seconds; stands for no latency at all
MANY = 1 << 20  # cores of the host on which delays pass: all at once


def load_simgrid() -> Any:
    """The module. Built by pip, it does not find the library that lies next to it, so that is loaded first."""
    for folder in sys.path:
        for library in Path(folder).glob("libsimgrid.so.*") if folder else ():
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    import simgrid

    return simgrid


def platform(hosts: int, network: Network) -> str:
    """The cluster, and one host where time passes, in SimGrid's words."""
    local = 1 / network.local_beta if network.local_beta else 1e15
    return f"""<?xml version="1.0"?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1"><zone id="world" routing="Full">
<cluster id="cluster" prefix="host" suffix="" radical="0-{hosts - 1}" speed="1Gf" core="{MANY}"
 bw="{1 / network.beta}Bps" lat="{INSTANT}s" sharing_policy="SPLITDUPLEX"
 loopback_bw="{local}Bps" loopback_lat="{INSTANT}s"/>
<cluster id="clock" prefix="clock" suffix="" radical="0-0" speed="1Gf" core="{MANY}" bw="1GBps" lat="1us"/>
</zone></platform>
"""


class Player:
    """Starts what nothing holds back any more, until nothing is left."""

    def __init__(self, graph: Graph, local: int, network: Network, simgrid: Any) -> None:
        self._graph, self._local, self._net, self._simgrid = graph, local, network, simgrid
        self._running: dict[Any, int] = {}  # activity to node; SimGrid hands out the same object again
        self._set: Any = None

    def play(self) -> None:
        """The body of the one actor that drives all activities."""
        engine = self._simgrid.Engine.instance
        count = max(node.rank for node in self._graph.nodes) // self._local + 1
        self._hosts = [engine.host_by_name(f"host{host}") for host in range(count)]
        self._clock = engine.host_by_name("clock0")
        self._set = self._simgrid.ActivitySet()
        ready = [number for number, node in enumerate(self._graph.nodes) if node.waits == 0]
        done = 0
        while ready or self._running:
            while ready:
                number = ready.pop()
                if not self._start(number):
                    done += 1
                    ready += self._release(number)
            if self._running:
                done += 1
                ready += self._release(self._running.pop(self._set.wait_any()))
        if done != len(self._graph.nodes):
            raise ValueError(f"{len(self._graph.nodes) - done} of {len(self._graph.nodes)} steps wait for each other")

    def _release(self, number: int) -> list[int]:
        ready = []
        for after in self._graph.nodes[number].next:
            self._graph.nodes[after].waits -= 1
            if self._graph.nodes[after].waits == 0:
                ready.append(after)
        return ready

    def _start(self, number: int) -> bool:
        """Whether it takes any time."""
        node, net = self._graph.nodes[number], self._net
        here, there = node.rank // self._local, node.peer // self._local
        if node.kind == WIRE:
            extra = net.gap / net.beta if here != there else 0
            activity = self._simgrid.Comm.sendto_init(self._hosts[here], self._hosts[there])
            activity.set_payload_size(max(1, round(node.amount + extra)))
        else:
            seconds = {
                DELAY: net.alpha if here != there else net.local_alpha,
                COMPUTE: node.amount * net.gamma,
                NOTHING: 0.0,
            }[node.kind]
            if not seconds:
                return False
            activity = self._simgrid.this_actor.exec_init(seconds * 1e9)
            activity.host = self._clock
        self._running[activity] = number
        activity.start()
        self._set.push(activity)
        return True


def simulate(job: dict[str, Any]) -> float:
    """Seconds until the last step of the last rank is over."""
    simgrid = load_simgrid()
    network, local = Network(**job["network"]), job["local"]
    engine = simgrid.Engine(["simulate", *(f"--cfg={setting}" for setting in SETTINGS), "--log=root.thres:error"])
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
        file.write(platform(len(job["plans"]) // local, network))
        file.flush()
        engine.load_platform(file.name)
    player = Player(Graph(job["plans"], local), local, network, simgrid)
    engine.host_by_name("clock0").add_actor("player", player.play)
    engine.run()
    return engine.clock


if __name__ == "__main__":
    print(repr(simulate(json.loads(Path(sys.argv[1]).read_text()))))
