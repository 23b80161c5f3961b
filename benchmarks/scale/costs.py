"""Time of an all_reduce by formula, for the plans that csrc/plan really makes: their segments, windows and stages.

S bytes per rank, H hosts of L ranks, N = HL, tau = gap + s beta for a segment of s bytes, f = 2 s gamma to fold two.
The textbook forms (Thakur et al. 2005, Patarasuk and Yuan 2009) are the limits of one segment and of many. A port that
several links share gives each its part, as TCP does; that is why a tree's root sends slower than one by one.

reigns() finds where one algorithm takes over from another.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True)
class Network:
    """Seconds, and seconds per byte. Links are full duplex; the switch between them is as fast as all of them."""

    alpha: float  # from the last byte sent to the last byte received, with the call's own cost
    beta: float  # per byte through a host's port
    gap: float  # what a message occupies a port for besides its bytes
    gamma: float  # per byte that a fold or a copy reads
    local_alpha: float  # alpha and beta of a link within a host
    local_beta: float
    origin: str = "given by hand"

    def wire(self, nbytes: float) -> float:
        """How long a message occupies a port."""
        return self.gap + nbytes * self.beta

    def local(self, nbytes: float) -> float:
        """A message within a host, from end to end."""
        return self.local_alpha + nbytes * self.local_beta


def load_network(path: Path) -> Network:
    """ValueError names the file and what is wrong with it."""
    try:
        network = Network(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist: measure one with --calibrate (needs root), or name another") from None
    except (TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no calibration: {error}") from None
    for name, value in asdict(network).items():
        if name != "origin" and not (isinstance(value, (int, float)) and value >= 0):
            raise ValueError(f"{path}: {name}={value!r} must be a number of seconds, at least 0")
    if not network.beta > 0:
        raise ValueError(f"{path}: beta={network.beta!r} must be above 0")
    return network


def save_network(network: Network, path: Path) -> None:
    """As JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(network), indent=1) + "\n")


SEGMENT, SLOT, WINDOW, MAX_SEGMENTS = 256 << 10, 1 << 20, 4, 4096  # of base/, plan/pipeline.h, plan/plan.h
ELEMENT = 4  # bytes: float32


@dataclass(frozen=True)
class Topology:
    """Hosts of equally many ranks."""

    hosts: int
    local: int = 1

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.hosts * self.local


def cut(nbytes: float, most: int = MAX_SEGMENTS) -> tuple[int, float]:
    """How many segments a plan makes of so many bytes, and how long one is."""
    size = max(SEGMENT, ceil(nbytes / ELEMENT / max(1, most)) * ELEMENT)
    count = max(1, ceil(nbytes / size))
    return count, min(size, nbytes)


def direct(size: float, at: Topology, net: Network) -> float:
    """Two rounds in which every rank talks to all others; a host's port carries those of all its ranks."""
    part = size / at.ranks
    segments, piece = cut(part)
    messages = at.local * (at.ranks - at.local)
    port = messages * (segments * net.gap + part * net.beta)
    return 2 * net.alpha + 2 * port + at.ranks * piece * net.gamma


def exchange(size: float, at: Topology, net: Network) -> float:
    """One round in which every rank sends its tensor to all others."""
    segments, piece = cut(size)
    port = at.local * (at.ranks - at.local) * (segments * net.gap + size * net.beta)
    return net.alpha + port + at.ranks * piece * net.gamma


def server(size: float, at: Topology, net: Network) -> float:
    """One port receives N-1 tensors and sends N-1 results, a segment behind."""
    segments, piece = cut(size)
    step = (at.ranks - at.local) * net.wire(piece)
    return 2 * net.alpha + (segments + 1) * step + at.ranks * piece * net.gamma


def levels(count: int) -> tuple[int, int]:
    """For a binomial tree of so many nodes: children of the root, and messages from the deepest node to the root."""
    children = (count - 1).bit_length()
    return children, max((count - 1).bit_count(), children - 1, 0)


def tree(size: float, at: Topology, net: Network) -> float:
    """Levels within a host first. Children share their parent's port: always going down, and going up as soon as there
    are several segments; a single one comes from each child at another time.
    """
    segments, piece = cut(size)
    wire, fold = net.wire(piece), 2 * piece * net.gamma
    (outer, depth), (inner, _) = levels(at.hosts), levels(at.local)
    shared = sum(outer - level for level in range(depth)) * wire
    up = (outer * wire if segments == 1 else shared) + outer * fold + inner * (net.local(piece) + fold)
    down = shared + inner * net.local(piece)
    return 2 * depth * net.alpha + up + down + (segments - 1) * max(outer * wire, (outer + inner) * fold)


def _hop(at: Topology, net: Network, piece: float) -> float:
    """A hop round the ring, on average: H of N go through a port."""
    return (at.hosts * (net.alpha + net.wire(piece)) + (at.ranks - at.hosts) * net.local(piece)) / at.ranks


def ring_rank(size: float, at: Topology, net: Network) -> float:
    """Prefixes go 0 to N-1, results once round. A port carries both once results are back; and since channels keep the
    order of rounds, the prefix of a segment waits for the result of N segments before.
    """
    segments, piece = cut(size)
    wire, fold, n = net.wire(piece), 2 * piece * net.gamma, at.ranks
    hop = _hop(at, net, piece)
    way = (n - 1) * hop
    stream = (segments - 1) * max(wire, fold)
    ends = 2 * way + (n - 1) * fold
    shared = ends + stream + max(0.0, stream - way)
    in_order = ends + (min(segments, n) - 1) * max(wire, fold) + max(0, segments - n) * (hop + fold)
    if n == 2:  # rank 0 sends prefixes only, rank 1 results only
        return ends + stream
    return max(shared, in_order, 2 * segments * wire)


def ring_rotated(size: float, at: Topology, net: Network) -> float:
    """N-1 rounds of partial sums, in groups of a window of segments, then N-1 rounds of results."""
    part, n = size / at.ranks, at.ranks
    segments, piece = cut(part, MAX_SEGMENTS // (2 * n))
    wire, fold, hop = net.wire(piece), 2 * piece * net.gamma, _hop(at, net, piece)
    groups = [min(WINDOW, segments - first) for first in range(0, segments, WINDOW)]
    sums = sum((n - 1) * max(group * max(wire, fold), hop + fold) for group in groups)
    results = (n - 1) * max(segments * wire, hop)
    return sums + results + min((min(segments, WINDOW) - 1) * wire, max(0.0, hop - wire))


def hierarchy(size: float, at: Topology, net: Network) -> float:
    """Stages of a slot: fold within the host, a chain of partial sums over the hosts, results once round.

    A host goes on with the next stage but one when it has a result, H hops after it sent its part. What the two stages
    under way take from each other is left out: simulations say up to a sixth. One rank per host: ring in rank order.
    """
    if at.local == 1:
        return ring_rank(size, at, net)
    stages = max(1, ceil(size / SLOT))
    stage = min(size, SLOT)
    segments, piece = cut(stage / at.local)
    wire = at.local * net.wire(piece)  # the ranks of a host share its port
    fold = (at.local + 1) * piece * net.gamma
    hop, rest, copies = net.alpha + wire, (segments - 1) * wire, 2 * stage * net.gamma
    way = (at.hosts - 1) * (2 * hop + fold) + rest + copies
    turn = (at.hosts * hop + (at.hosts - 1) * fold + rest + copies) / 2
    port = (1 if at.hosts == 2 else 2) * segments * wire
    return way + (stages - 1) * max(port, turn)


Formula = Callable[[float, Topology, Network], float]
ALGORITHMS: dict[str, Formula] = {
    "direct": direct,
    "exchange": exchange,
    "ring": ring_rank,
    "ring/rotated": ring_rotated,
    "tree": tree,
    "server": server,
    "hierarchy": hierarchy,
}
IN_RANK_ORDER = ("direct", "exchange", "ring", "server", "hierarchy")  # the bits of one process


def candidates(at: Topology, in_order: bool = False) -> dict[str, Formula]:
    """Algorithms that differ here: with one rank per host hierarchy is ring."""
    chosen = {name: cost for name, cost in ALGORITHMS.items() if not in_order or name in IN_RANK_ORDER}
    return chosen if at.local > 1 else {name: cost for name, cost in chosen.items() if name != "hierarchy"}


STEPS_PER_OCTAVE = 4
MARGIN = 0.1


class Reign(NamedTuple):
    """`algorithm` is the fastest from `begin` to `end` bytes, both included."""

    algorithm: str
    begin: int
    end: int


def fastest(size: float, at: Topology, net: Network, among: dict[str, Formula]) -> str:
    """The algorithm of the lowest time; of equal ones the first."""
    return min(among, key=lambda name: among[name](size, at, net))


def grid(smallest: int, largest: int) -> list[int]:
    """Sizes, STEPS_PER_OCTAVE per doubling, whole float32 elements, with both ends."""
    sizes, step = {smallest, largest}, 0
    while (size := int(smallest * 2 ** (step / STEPS_PER_OCTAVE)) // 4 * 4) < largest:
        sizes.add(max(size, smallest))
        step += 1
    return sorted(sizes)


def reigns(smallest: int, largest: int, at: Topology, net: Network, among: dict[str, Formula]) -> list[Reign]:
    """All of them, in order of size. An algorithm reigns until another is faster by more than MARGIN: segments make
    steps in the curves, which are no reason to switch back and forth. Ends are exact where the curves cross once
    between two sizes of the grid.
    """

    def stays(name: str, size: float) -> bool:
        return among[name](size, at, net) <= (1 + MARGIN) * min(cost(size, at, net) for cost in among.values())

    found, begin, king = [], smallest, fastest(smallest, at, net, among)
    for left, right in pairwise(grid(smallest, largest)):
        if stays(king, right):
            continue
        while right - left > 4:
            middle = (left + right) // 8 * 4
            if stays(king, middle):
                left = middle
            else:
                right = middle
        found.append(Reign(king, begin, left))
        begin, king = right, fastest(right, at, net, among)
    found.append(Reign(king, begin, largest))
    return found
