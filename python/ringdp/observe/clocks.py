"""One clock for all ranks: what to add to each rank's steady clock.

Ranks on one host share the kernel's clock, so nothing is estimated there. Between hosts nothing is assumed of the
wall clocks: a collective that ends for everybody at about the same moment (all do that make everybody wait for
everybody) gives one estimate, and the median over all of them is taken. It is good to about the time of the fastest
message; how far it may be off shows as the spread of the estimates.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ringdp.observe.collectives import Collective
from ringdp.observe.dump import Dump

# These end together; of the others some ranks may be done long before the last one.
_END_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all")


@dataclass(frozen=True)
class Offset:
    """Nanoseconds to add to a rank's clock.

    spread: of the estimates' middle half. how: "shared", "matched" or "wall".
    """

    ns: int
    spread: int = 0
    how: str = "shared"


def offsets(dumps: Sequence[Dump], rows: Sequence[Collective]) -> dict[int, Offset]:
    """By rank, to the clock of the first one. Where two hosts have no collective in common: by their wall clocks."""
    reference = dumps[0]
    boots = {dump.rank: dump.boot for dump in dumps}
    differences: dict[str, list[int]] = {}
    for row in rows:
        if row.name not in _END_TOGETHER or not row.whole:
            continue
        here = [side.ended for rank, side in row.sides.items() if boots.get(rank) == reference.boot]
        for rank, side in row.sides.items():
            if here and boots.get(rank, reference.boot) != reference.boot:
                differences.setdefault(boots[rank], []).append(int(statistics.median(here)) - side.ended)
    return {dump.rank: _offset(dump, reference, differences.get(dump.boot, [])) for dump in dumps}


def _offset(dump: Dump, reference: Dump, differences: list[int]) -> Offset:
    if dump.boot == reference.boot:
        return Offset(0)
    if not differences:
        return Offset((dump.wall - dump.steady) - (reference.wall - reference.steady), how="wall")
    spread = 0
    if len(differences) > 1:
        low, _, high = statistics.quantiles(differences, n=4)
        spread = int(high - low)
    return Offset(int(statistics.median(differences)), spread, "matched")
