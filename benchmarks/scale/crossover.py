"""Where one algorithm takes over from another: the fastest by size, with the sizes at which that changes."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from scale.costs import Formula, Topology
from scale.network import Network

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
    steps in the curves, and nobody switches to and fro for those. Ends are exact, where the curves cross once between
    two sizes of the grid.
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
