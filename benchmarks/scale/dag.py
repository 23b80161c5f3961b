"""Recorded plans as a graph of activities: what is on the wire, what is computed, and what has to be over before it.

A send holds the port for its bytes; the message is there `alpha` later, and its receive waits for that and for its own
lane. Sends to the same rank keep their order. Bytes that wait for a late receiver are buffered without a bound.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

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
        self._signals: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._waits: dict[tuple[int, int], list[int]] = defaultdict(list)
        for plan in plans:
            self._add_plan(plan)
        self._join(self._sent, self._received)
        for key, waits in self._waits.items():
            for signal in self._signals[key]:
                for wait in waits:
                    self._edge(signal, wait)

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
        barrier = [0, 0]  # signals and waits so far: the k-th wait is for everybody's k-th signal
        for lane in plan["lanes"]:
            nodes.append([self._add_step(rank, step, barrier) for step in lane["steps"]])
        for lane, own in zip(plan["lanes"], nodes, strict=True):
            for before, after in pairwise(own):
                self._edge(before, after)
            for step, node in zip(lane["steps"], own, strict=True):
                for after in step["after"]:
                    if after["steps"]:
                        self._edge(nodes[after["lane"]][after["steps"] - 1], node)

    def _add_step(self, rank: int, step: dict[str, Any], barrier: list[int]) -> int:
        verb, host = step["verb"], rank // self._local
        if verb == "send":
            node = self._add(Node(WIRE, rank, step["bytes"], step["peer"]))
            self._sent[rank, step["peer"]].append(node)
        elif verb == "recv":
            node = self._add(Node(NOTHING, rank))
            self._received[step["peer"], rank].append(node)
        elif verb in ("signal", "wait"):
            node = self._add(Node(NOTHING, rank))
            which = ("signal", "wait").index(verb)
            (self._signals, self._waits)[which][host, barrier[which]].append(node)
            barrier[which] += 1
        else:
            node = self._add(Node(COMPUTE, rank, sum(ref["bytes"] for ref in step["srcs"])))
        return node
