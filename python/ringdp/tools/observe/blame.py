"""Which rank or link makes the others wait, and why: judged from durations, so that no two clocks are compared.

Late ranks. In a collective, the rank that waits least came last; it costs what the next one waited (had it come
with that one, all would have begun so much sooner). A rank is blamed when these delays are a fair part of the time, are
mostly its own, and are so more often than by chance: jitter that moves from rank to rank is not blamed.

Why a rank is late: its steps are compared with the other ranks' steps: more time between steps is "data" (the loader,
or whatever else only it does there), more time in forward and backward is "compute". Without steps (no
ringdp.DistributedDataParallel) it is "late": something before its calls.

Slow links. Once all have arrived, time goes into moving bytes. A link is judged by how long a sender found it full:
that does not depend on late ranks. It is blamed when all ranks are held by transfers for a fair part of the time and
the link stands out from the others; where there are no others, when it is most of the time.

This is `ringdp blame FOLDER`, over the ranks' traces, and not a call in the script: the judge needs every rank's
table, gathering it would itself be a collective, and the files are there after a crash, too. `ringdp.stats()` has each
group's delays while it runs.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FAIR_PART = 0.05  # of the time; causes that cost less are not blamed
MOST = 0.6  # of all delays, for a rank; of the time, for a link that has nothing to be compared with
CHANCE = 0.001  # that a rank is last so often by chance
STANDS_OUT = 3.0  # times the median of the other links


@dataclass(frozen=True)
class Work:
    """Seconds of one rank in one step: between steps, and in forward and backward, waits taken out."""

    data: float
    compute: float


@dataclass
class Table:
    """The input of the analysis. Ranks are ranks in the job.

    seconds: how long the traces are. waits: of each collective, by rank: seconds until the last rank came; within: the
    number of the step that it belongs to, -1 for none. steps: of each step, by rank. full: of each link (from, to):
    seconds for which it had no room, and the bytes that then waited.
    held: by rank: seconds in which it was held by a collective that all ranks had already entered.
    """

    seconds: float
    waits: list[Mapping[int, float]] = field(default_factory=list)
    within: list[int] = field(default_factory=list)
    steps: list[Mapping[int, Work]] = field(default_factory=list)
    full: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)
    held: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Blame:
    """cause: "compute", "data", "late" or "link". seconds: lost by it; share: of the whole time."""

    cause: str
    ranks: tuple[int, ...]
    seconds: float
    share: float
    why: str
    advice: str

    def __str__(self) -> str:
        return f"{self.why} Cost: {self.seconds:.2f} s, {self.share:.0%} of the time. {self.advice}"


def judge(table: Table) -> list[Blame]:
    """The causes, the costliest first; empty when there are none."""
    found = [*_late(table), *_links(table)]
    return sorted(found, key=lambda blame: -blame.seconds)


def delay(waits: Mapping[int, float]) -> tuple[int, float]:
    """The rank that came last, and how much sooner all could have begun had it come with the one before it."""
    last = min(waits, key=lambda rank: waits[rank])
    return last, min(w for rank, w in waits.items() if rank != last) - waits[last]


def chance(times: int, of: int, ranks: int) -> float:
    """How likely one given rank of `ranks` equal ones is last at least `times` times in `of`."""
    p = 1 / ranks

    # By logarithms: the binomial coefficients of long traces are larger than any float.
    def log_ways(k: int) -> float:
        return math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1)

    return math.fsum(math.exp(log_ways(k) + k * math.log(p) + (of - k) * math.log1p(-p)) for k in range(times, of + 1))


def _late(table: Table) -> list[Blame]:
    groups: dict[tuple[int, ...], list[tuple[int, float]]] = defaultdict(list)
    in_step: dict[tuple[tuple[int, ...], int], Counter[int]] = defaultdict(Counter)
    for waits, step in zip(table.waits, table.within, strict=True):
        rank, lost = delay(waits)
        if step < 0:
            groups[tuple(sorted(waits))].append((rank, lost))
        else:
            in_step[tuple(sorted(waits)), step][rank] += lost
    # What delays one bucket of a step delays the next one, too: a step is one case, of the rank that delayed it most.
    for (ranks, _), lost_by in in_step.items():
        groups[ranks].append(lost_by.most_common(1)[0])
    return [blame for ranks, delays in groups.items() if (blame := _late_in(table, ranks, delays))]


def _late_in(table: Table, ranks: tuple[int, ...], delays: Sequence[tuple[int, float]]) -> Blame | None:
    total = sum(lost for _, lost in delays)
    if total <= 0:
        return None
    # Only collectives in which something was lost: the others' order is noise.
    counted = [(rank, lost) for rank, lost in delays if lost >= total / len(delays) / 2]
    by_rank: Counter[int] = Counter()
    for rank, lost in delays:
        by_rank[rank] += lost
    rank, lost = by_rank.most_common(1)[0]
    times = sum(last == rank for last, _ in counted)
    share = lost / table.seconds
    if share < FAIR_PART or lost < MOST * total or chance(times, len(counted), len(ranks)) > CHANCE:
        return None
    cause, more = _cause(table.steps, rank)
    why = f"Rank {rank} came last {times} of {len(counted)} times, and the others waited for it alone{more}."
    return Blame(cause, (rank,), lost, share, why, _ADVICE[cause])


_ADVICE = {
    "compute": "Look for another process on its core, a slower or hotter machine, pinning, or code that only it runs.",
    "data": "Look at its data loader (workers, storage, augmentation), and at what only it does between steps.",
    "late": "Look at what it does before its collectives; with ringdp.DistributedDataParallel the phase has a name.",
    "link": "Look at that cable, switch port or neighbour's traffic; RINGDP_SOCKET_IFNAME takes another interface.",
}


def _cause(steps: Sequence[Mapping[int, Work]], rank: int) -> tuple[str, str]:
    """Which phase of this rank takes longer than that of the others, and in words by how much in a step."""
    data, compute = [], []
    for step in steps:
        others = [work for other, work in step.items() if other != rank]
        if rank in step and others:
            data.append(step[rank].data - statistics.median(work.data for work in others))
            compute.append(step[rank].compute - statistics.median(work.compute for work in others))
    if not data:
        return "late", ""
    more = {"data": statistics.fmean(data), "compute": statistics.fmean(compute)}
    cause = max(more, key=lambda name: more[name])
    if more[cause] <= 0:
        return "late", ""
    where = "between steps" if cause == "data" else "in forward and backward"
    return cause, f": {where} it takes {1e3 * more[cause]:.1f} ms more than they do"


def _links(table: Table) -> list[Blame]:
    if not table.full or not table.held:
        return []
    lost = statistics.fmean(table.held.values())
    share = lost / table.seconds
    if share < FAIR_PART:
        return []
    slow = _slow_links(table)
    if not slow:
        return []
    seconds, size = (sum(column) for column in zip(*(table.full[link] for link in slow), strict=True))
    rate = f"{size / seconds / 1e6:.0f} MB/s while it was full"
    common = set.intersection(*(set(link) for link in slow))
    if len(slow) > 1 and len(common) == 1:
        rank = common.pop()
        return [Blame("link", (rank,), lost, share, f"The links of rank {rank} are slow ({rate}).", _ADVICE["link"])]
    names = ", ".join(f"{a} -> {b}" for a, b in slow)
    ranks = tuple(sorted({rank for link in slow for rank in link}))
    what = f"link {names} is" if len(slow) == 1 else f"links {names} are"
    return [Blame("link", ranks, lost, share, f"The {what} slow ({rate}).", _ADVICE["link"])]


def _slow_links(table: Table) -> list[tuple[int, int]]:
    """Links that were full much longer than the others; with one pair of ranks, for most of the time."""
    full = {link: seconds for link, (seconds, _) in table.full.items() if seconds >= FAIR_PART * table.seconds}
    ranks = sorted(table.held)
    if len(ranks) == 2:
        return sorted(full) if statistics.fmean(table.held.values()) >= MOST * table.seconds else []
    links = [(a, b) for a in ranks for b in ranks if a != b]
    usual = statistics.median(table.full.get(link, (0.0, 0))[0] for link in links)
    return sorted(link for link, seconds in full.items() if seconds > STANDS_OUT * usual)
