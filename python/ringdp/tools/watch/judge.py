"""What rank 0 concludes from the ranks' reports: drift at once; stragglers and lost overlap by sequential tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean, median

from ringdp import _native
from ringdp.text.units import agreeing, names, seconds
from ringdp.tools.attach.finding import Finding
from ringdp.tools.observe import blame
from ringdp.tools.watch.figures import Row
from ringdp.tools.watch.samples import Drift
from ringdp.tools.watch.sequential import Exposure, Lateness, delayed

_C = _native.load()
CHECKS = ("drift", "straggler", "overlap")
WARM_UP = 5  # steps in which buckets are laid out anew and kernels chosen
_RECENT = 16  # steps from which a finding's figures are
_KEPT = 512  # steps that wait for other ranks' reports
_Rows = Mapping[int, Row]


class Judge:
    """ranks: of the group, by their rank in the job. describe: a block of the parameters."""

    def __init__(self, ranks: Sequence[int], describe: Callable[[int], str]) -> None:
        self._ranks = ranks
        self._describe = describe
        self._rows: dict[int, dict[int, Row]] = {}
        self._lags: dict[int, tuple[int, float]] = {}
        self._sums: dict[tuple[int, int], dict[int, int]] = {}
        self._latest = dict.fromkeys(range(len(ranks)), -1)
        self._recent: deque[tuple[_Rows, Mapping[int, float]]] = deque(maxlen=_RECENT)  # with the ranks' waits
        self._lateness, self._exposure = Lateness(), Exposure()
        self.compared = 0  # blocks

    def add(self, rank: int, rows: Iterable[Row], sums: Iterable[tuple[int, int, int]]) -> None:
        """A report of a rank of the group; what is known of it already is left out."""
        before = self._latest[rank]
        for row in rows:
            if row.key > before:
                self._rows.setdefault(row.key, {})[rank] = row
                self._latest[rank] = max(self._latest[rank], row.key)
        for key, block, value in sums:
            if key > before:
                self._sums.setdefault((key, block), {})[rank] = value

    def note_delay(self, key: int, rank: int, lost: float) -> None:
        """Of a group of backend ringdp: which rank the others waited for alone in this step, and how many seconds."""
        self._lags[key] = (rank, lost)

    def findings(self, reporting: Collection[int]) -> list[Finding]:
        """What is new. reporting: the ranks of the group that report, which are waited for."""
        reached = min(self._latest[rank] for rank in reporting)
        ready = {key: self._rows.pop(key) for key in sorted(self._rows) if key <= reached}
        found = self._drift(reached, ready)
        all_of = set(reporting)
        for key, rows in ready.items():
            if not all_of <= rows.keys():  # a rank that does less has left it out
                continue
            if min([row.number for row in rows.values()]) > WARM_UP:
                found += self._step(rows, self._lags.get(key))
        self._forget(reached)
        return found

    def _forget(self, reached: int) -> None:
        """What belongs to steps that were judged, and the oldest where a rank does not come along."""
        for key in sorted(self._rows)[:-_KEPT]:
            reached = max(reached, key)
            del self._rows[key]
        self._sums = {at: sums for at, sums in self._sums.items() if at[0] > reached}
        self._lags = {key: lag for key, lag in self._lags.items() if key > reached}

    def _drift(self, reached: int, steps: Mapping[int, _Rows]) -> list[Finding]:
        found: dict[tuple[int, ...], Finding] = {}
        for key, block in sorted(at for at in self._sums if at[0] <= reached):
            by_rank = self._sums.pop((key, block))
            if len(by_rank) < 2:
                continue
            self.compared += 1
            odd = _C.odd_ranks([by_rank.get(rank, 0) for rank in range(len(self._ranks))])
            if odd and tuple(odd) not in found:
                step = min((row.number for row in steps.get(key, {}).values()), default=0)
                found[tuple(odd)] = self._drifted(odd, set(odd) != by_rank.keys(), self._describe(block), step)
        return list(found.values())

    def drifted(self, found: Iterable[Drift]) -> list[Finding]:
        """Of what came with the backward passes: the first finding for each set of ranks."""
        first = {tuple(drift.ranks): drift for drift in reversed(list(found))}
        return [self._drifted(ranks, one.has_majority, one.where, one.number) for ranks, one in first.items()]

    def _drifted(self, odd: Sequence[int], has_majority: bool, where: str, step: int) -> Finding:
        ranks = tuple(self._ranks[rank] for rank in odd)
        who = f"{names(ranks)} {agreeing(ranks, 'holds', 'hold')} other bits than most"
        if not has_majority:
            who = f"{names(ranks)} hold different bits, and no value has a majority,"
        return Finding(
            "drift",
            f"the ranks have drifted apart: at step {step} {who} in {where}",
            "averaging gradients never repairs parameters that differ",
            "stop, and restart from a checkpoint of before; a memory error, or code that changes parameters on some "
            "ranks only: ringdp.check_replicas(model) compares everything, check_drift=True every step",
            ranks,
            numbers={"step": step},
        )

    def _step(self, rows: _Rows, lag: tuple[int, float] | None) -> Iterable[Finding]:
        """What this step completes."""
        took = sum([row.seconds for row in rows.values()]) / len(rows)
        waits = {rank: row.exposed for rank, row in rows.items()}
        if lag is not None:
            waits = {rank: 0.0 if rank == lag[0] else lag[1] for rank in range(len(self._ranks))}
        if len(waits) < 2:  # only one rank reports, and this step was read before what its group counted of it
            return
        self._recent.append((rows, waits))
        late, lost = delayed(waits)
        self._lateness = self._lateness.after(late, lost / took)
        if (rank := self._lateness.found) is not None:
            self._lateness = Lateness()
            yield from self._late(rank)
        least = min(rows.values(), key=lambda row: row.exposed)
        if least.communication > 0 and len(rows) == len(self._ranks):
            self._exposure = self._exposure.after(least.exposed / least.seconds)
            if self._exposure.found:
                yield self._exposed(self._exposure.usual * least.seconds)
                self._exposure = Exposure(usual=self._exposure.usual)

    def _late(self, rank: int) -> Iterable[Finding]:
        """That this rank is, if it costs so much in the latest steps that the judge of `ringdp blame` says it, too."""
        steps = [rows for rows, _ in self._recent]
        table = blame.Table(
            seconds=sum(fmean(row.seconds for row in rows.values()) for rows in steps),
            waits=[waits for _, waits in self._recent],
            within=list(range(len(steps))),
            steps=[{rank: blame.Work(row.data, row.compute) for rank, row in rows.items()} for rows in steps],
        )
        late = next((late for late in blame.judge(table) if late.ranks == (rank,)), None)
        if late is None:
            return
        cost, of_job = late.seconds / len(steps), self._ranks[rank]
        yield Finding(
            "straggler",
            f"up to step {self._last()} rank {of_job} makes the others wait {seconds(cost)} of each step of "
            f"{seconds(table.seconds / len(steps))}{_where(late, steps, rank)}",
            "all ranks step together, so each step is as long as the slowest rank's",
            late.advice.replace("Look", "look", 1).rstrip("."),
            (of_job,),
            numbers={"step": self._last(), "cause": late.cause, "wait_s": cost, "share": late.share},
        )

    def _exposed(self, usual: float) -> Finding:
        """The rank that waits least waits for bytes only, and not for another rank."""
        least = [min(rows.values(), key=lambda row: row.exposed) for rows, _ in self._recent]
        exposed = median(row.exposed for row in least)
        hidden = median(1 - row.exposed / row.communication for row in least if row.communication > 0)
        return Finding(
            "overlap",
            f"up to step {self._last()} every rank waits {seconds(exposed)} of each step of "
            f"{seconds(median(row.seconds for row in least))} for communication that nothing hides, {seconds(usual)} "
            f"before; {hidden:.0%} of it is hidden",
            "exposed communication is time in which no rank computes",
            "ddp.explain() shows when each bucket was launched and done: the same bytes that take longer are a slow or "
            "shared link (`ringdp info` names the interface), buckets that are launched later are a layer that now "
            "comes last in the backward pass, or a communication hook that waits",
            numbers={"step": self._last(), "exposed_s": exposed, "before_s": usual, "hidden": hidden},
        )

    def _last(self) -> int:
        return max(row.number for rows, _ in self._recent for row in rows.values())


def _where(late: blame.Blame, steps: Iterable[_Rows], rank: int) -> str:
    """In which part of a step it takes longer than the others."""
    if late.cause == "late":
        return ""
    more = [
        getattr(rows[rank], late.cause) - median(getattr(row, late.cause) for r, row in rows.items() if r != rank)
        for rows in steps
        if rank in rows and len(rows) > 1
    ]
    part = "between steps (loader, optimizer, logging)" if late.cause == "data" else "in forward and backward"
    return f"; it takes {seconds(fmean(more))} longer than they do {part}"
