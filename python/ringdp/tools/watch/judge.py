"""What rank 0 concludes from the ranks' reports: drift at once; stragglers and lost overlap from windows of steps.

A window is 16 steps of which every rank has reported. What is measured is said when two windows in a row say it: jitter
that is different in every window is no rank's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean, median

from ringdp import _native
from ringdp.text.units import agreeing, names, seconds
from ringdp.tools.attach.finding import Finding
from ringdp.tools.observe import blame
from ringdp.tools.watch.figures import Row

_C = _native.load()
CHECKS = ("drift", "straggler", "overlap")
WINDOW = 16
WARM_UP = 5  # steps in which buckets are laid out anew and kernels chosen
_KEPT = 512  # steps that wait for other ranks' reports
_EARLIER = 64  # windows that the exposed time is compared with
_TIMES = 2.0  # the exposed time of those
_Step = Mapping[int, Row]


class Judge:
    """ranks: of the group, by their rank in the job. describe: a block, of a step's key and its number there."""

    def __init__(self, ranks: Sequence[int], describe: Callable[[int, int], str]) -> None:
        self._ranks = ranks
        self._describe = describe
        self._rows: dict[int, dict[int, Row]] = {}
        self._lags: dict[int, tuple[int, float]] = {}
        self._sums: dict[tuple[int, int], dict[int, int]] = {}
        self._latest = dict.fromkeys(range(len(ranks)), -1)
        self._late_before: tuple[int, ...] = ()
        self._exposed_before = False
        self._earlier: list[tuple[float, float]] = []  # by window: exposed seconds of a step, and the part hidden
        self.compared = 0  # blocks

    def add(self, rank: int, rows: Iterable[Row], sums: Iterable[tuple[int, int, int]]) -> None:
        """A report of a rank of the group; what is known of it already is left out."""
        before = self._latest[rank]
        for row in rows:
            if row.key > before:
                self._rows.setdefault(row.key, {})[rank] = row
                self._latest[rank] = max(self._latest[rank], row.key)
        for key, number, value in sums:
            if key > before:
                self._sums.setdefault((key, number), {})[rank] = value

    def note_delay(self, key: int, rank: int, lost: float) -> None:
        """Of a group of backend ringdp: which rank the others waited for alone in this step, and how many seconds."""
        self._lags[key] = (rank, lost)

    def findings(self, reporting: Collection[int]) -> list[Finding]:
        """What is new. reporting: the ranks of the group that report, which are waited for."""
        reached = min(self._latest[rank] for rank in reporting)
        steps = {key: row for key, row in sorted(self._rows.items()) if key <= reached}
        found = self._drift(reached, steps)
        complete = [key for key, rows in steps.items() if all(rank in rows for rank in reporting)]
        for key in steps.keys() - set(complete):  # a rank that does less has left it out
            del self._rows[key]
        while len(complete) >= WINDOW:
            window, complete = complete[:WINDOW], complete[WINDOW:]
            rows = {key: self._rows.pop(key) for key in window}
            warm = {key: row for key, row in rows.items() if min(r.number for r in row.values()) > WARM_UP}
            if warm:
                found += self._late(warm)
            if warm and len(reporting) == len(self._ranks):
                found += self._overlap(warm)
        self._forget(complete[0] if complete else reached)
        return found

    def _forget(self, first: int) -> None:
        """What belongs to steps that were judged, and the oldest where a rank does not come along."""
        for key in sorted(self._rows)[:-_KEPT]:
            del self._rows[key]
        first = max(first, min(self._rows, default=first))
        self._sums = {at: sums for at, sums in self._sums.items() if at[0] > first or at[0] in self._rows}
        self._lags = {key: lag for key, lag in self._lags.items() if key >= first}

    def _drift(self, reached: int, steps: Mapping[int, _Step]) -> list[Finding]:
        found: dict[tuple[int, ...], Finding] = {}
        for key, number in sorted(at for at in self._sums if at[0] <= reached):
            by_rank = self._sums.pop((key, number))
            if len(by_rank) < 2:
                continue
            self.compared += 1
            odd = _C.odd_ranks([by_rank.get(rank, 0) for rank in range(len(self._ranks))])
            if odd and tuple(odd) not in found:
                found[tuple(odd)] = self._drifted(key, number, odd, by_rank.keys(), steps.get(key, {}))
        return list(found.values())

    def _drifted(self, key: int, number: int, odd: Sequence[int], by: Iterable[int], step: _Step) -> Finding:
        ranks = tuple(self._ranks[rank] for rank in odd)
        at = min((row.number for row in step.values()), default=0)
        who = f"{names(ranks)} {agreeing(ranks, 'holds', 'hold')} other bits than most"
        if set(odd) == set(by):
            who = f"{names(ranks)} hold different bits, and no value has a majority,"
        return Finding(
            "drift",
            f"the ranks have drifted apart: at step {at} {who} in {self._describe(key, number)}",
            "averaging gradients never repairs parameters that differ",
            "stop, and restart from a checkpoint of before; a memory error, or code that changes parameters on some "
            "ranks only: ringdp.check_replicas(model) compares everything, check_drift=True every step",
            ranks,
            numbers={"step": at},
        )

    def _late(self, steps: Mapping[int, _Step]) -> Iterable[Finding]:
        """By the judge of `ringdp blame`: from the delays that a ringdp group counts, else from exposed waits."""
        waits: list[Mapping[int, float]] = []
        for key, rows in steps.items():
            if key in self._lags:
                rank, lost = self._lags[key]
                waits.append({other: 0.0 if other == rank else lost for other in range(len(self._ranks))})
            elif len(rows) > 1:
                waits.append({rank: row.exposed for rank, row in rows.items()})
        if not waits or len(self._ranks) < 2:
            return
        table = blame.Table(
            seconds=sum(fmean(row.seconds for row in rows.values()) for rows in steps.values()),
            waits=waits,
            within=list(range(len(waits))),
            steps=[{rank: blame.Work(row.data, row.compute) for rank, row in rows.items()} for rows in steps.values()],
        )
        late = blame.judge(table)
        ranks = late[0].ranks if late else ()
        again, self._late_before = ranks and ranks == self._late_before, ranks
        if not again:
            return
        cost, of_job = late[0].seconds / len(steps), self._ranks[ranks[0]]
        yield Finding(
            "straggler",
            f"up to step {_last(steps)} rank {of_job} makes the others wait {seconds(cost)} of each step of "
            f"{seconds(table.seconds / len(steps))}{_where(late[0], steps, ranks[0])}",
            "all ranks step together, so each step is as long as the slowest rank's",
            late[0].advice.replace("Look", "look", 1).rstrip("."),
            (of_job,),
            numbers={"step": _last(steps), "cause": late[0].cause, "wait_s": cost, "share": late[0].share},
        )

    def _overlap(self, steps: Mapping[int, _Step]) -> Iterable[Finding]:
        """The rank that waits least waits for bytes only, and not for another rank."""
        least = [min(rows.values(), key=lambda row: row.exposed) for rows in steps.values()]
        least = [row for row in least if row.communication > 0]
        if not least:
            return
        exposed = median(row.exposed for row in least)
        hidden = median(1 - row.exposed / row.communication for row in least)
        step = median(row.seconds for row in least)
        usual = median(e for e, _ in self._earlier) if self._earlier else exposed
        usually_hidden = median(h for _, h in self._earlier) if self._earlier else hidden
        lost = exposed > _TIMES * usual and exposed - usual > blame.FAIR_PART * step
        again, self._exposed_before = lost and self._exposed_before, lost
        if not lost:
            self._earlier = [*self._earlier, (exposed, hidden)][-_EARLIER:]
        if not again:
            return
        yield Finding(
            "overlap",
            f"up to step {_last(steps)} every rank waits {seconds(exposed)} of each step of {seconds(step)} for "
            f"communication that nothing hides, {seconds(usual)} before; {hidden:.0%} of it is hidden, "
            f"{usually_hidden:.0%} before",
            "exposed communication is time in which no rank computes",
            "ddp.explain() shows when each bucket was launched and done: the same bytes that take longer are a slow or "
            "shared link (`ringdp info` names the interface), buckets that are launched later are a layer that now "
            "comes last in the backward pass, or a communication hook that waits",
            numbers={"step": _last(steps), "exposed_s": exposed, "before_s": usual, "hidden": hidden},
        )


def _last(steps: Mapping[int, _Step]) -> int:
    return max(row.number for rows in steps.values() for row in rows.values())


def _where(late: blame.Blame, steps: Mapping[int, _Step], rank: int) -> str:
    """In which part of a step it takes longer than the others."""
    if late.cause == "late":
        return ""
    more = [
        getattr(rows[rank], late.cause) - median(getattr(row, late.cause) for r, row in rows.items() if r != rank)
        for rows in steps.values()
        if rank in rows and len(rows) > 1
    ]
    part = "between steps (loader, optimizer, logging)" if late.cause == "data" else "in forward and backward"
    return f"; it takes {seconds(fmean(more))} longer than they do {part}"
