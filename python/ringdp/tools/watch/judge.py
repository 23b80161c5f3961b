"""What rank 0 concludes from the ranks' reports: drift at once; stragglers and lost overlap by sequential tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean, median

from ringdp import _native
from ringdp.text.units import agreeing, names, seconds
from ringdp.tools.attach.finding import Finding
from ringdp.tools.observe import blame
from ringdp.tools.watch.figures import Row
from ringdp.tools.watch.samples import Drift

_C = _native.load()
CHECKS = ("drift", "straggler", "overlap")
_Steps = Sequence[tuple[Mapping[int, Row], Mapping[int, float]]]  # rows and waits by rank; the latest step last


class Judge:
    """ranks: of the group, by their rank in the job. describe: a block of the parameters."""

    def __init__(self, ranks: Sequence[int], describe: Callable[[int], str]) -> None:
        self._ranks = ranks
        self._describe = describe
        self._steps = _C.StepJudge(len(ranks))
        self._sums: dict[tuple[int, int], dict[int, int]] = {}
        self.compared = 0  # blocks

    def add(self, rank: int, rows: bytes, sums: Iterable[tuple[int, int, int]]) -> None:
        """A report of a rank of the group, with packed rows; what is known of it already is left out.

        ValueError where the rows are not times of steps.
        """
        before = self._steps.add(rank, rows)
        for key, block, value in sums:
            if key > before:
                self._sums.setdefault((key, block), {})[rank] = value

    def note_delay(self, key: int, rank: int, lost: float) -> None:
        """Of a group of backend ringdp: which rank the others waited for alone in this step, and how many seconds."""
        self._steps.note_delay(key, rank, lost)

    def findings(self, reporting: Collection[int]) -> list[Finding]:
        """What is new. reporting: the ranks of the group that report, which are waited for."""
        ranks = list(reporting)
        found = self._drift(self._steps.reached(ranks))
        for late, usual, recent in self._steps.judge(ranks):
            steps = [({rank: Row(*row) for rank, row in rows.items()}, waits) for rows, waits in recent]
            found += [self._exposed(usual, steps)] if late is None else self._late(late, steps)
        forgotten = self._steps.forgotten()  # more than was reached where a rank does not come along
        self._sums = {at: sums for at, sums in self._sums.items() if at[0] > forgotten}
        return found

    def _drift(self, reached: int) -> list[Finding]:
        found: dict[tuple[int, ...], Finding] = {}
        for key, block in sorted(at for at in self._sums if at[0] <= reached):
            by_rank = self._sums.pop((key, block))
            if len(by_rank) < 2:
                continue
            self.compared += 1
            odd = _C.odd_ranks([by_rank.get(rank, 0) for rank in range(len(self._ranks))])
            if odd and tuple(odd) not in found:
                step = self._steps.number_of(key)
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

    def _late(self, rank: int, steps: _Steps) -> Iterable[Finding]:
        """That this rank is, if it costs so much in the latest steps that the judge of `ringdp blame` says it, too."""
        table = blame.Table(
            seconds=sum(fmean(row.seconds for row in rows.values()) for rows, _ in steps),
            waits=[waits for _, waits in steps],
            within=list(range(len(steps))),
            steps=[{other: blame.Work(row.data, row.compute) for other, row in rows.items()} for rows, _ in steps],
        )
        late = next((late for late in blame.judge(table) if late.ranks == (rank,)), None)
        if late is None:
            return
        cost, of_job = late.seconds / len(steps), self._ranks[rank]
        yield Finding(
            "straggler",
            f"up to step {_last(steps)} rank {of_job} makes the others wait {seconds(cost)} of each step of "
            f"{seconds(table.seconds / len(steps))}{_where(late, steps, rank)}",
            "all ranks step together, so each step is as long as the slowest rank's",
            late.advice.replace("Look", "look", 1).rstrip("."),
            (of_job,),
            numbers={"step": _last(steps), "cause": late.cause, "wait_s": cost, "share": late.share},
        )

    def _exposed(self, usual: float, steps: _Steps) -> Finding:
        """The rank that waits least waits for bytes only, and not for another rank."""
        least = [min(rows.values(), key=lambda row: row.exposed) for rows, _ in steps]
        exposed = median(row.exposed for row in least)
        hidden = median(1 - row.exposed / row.communication for row in least if row.communication > 0)
        return Finding(
            "overlap",
            f"up to step {_last(steps)} every rank waits {seconds(exposed)} of each step of "
            f"{seconds(median(row.seconds for row in least))} for communication that nothing hides, {seconds(usual)} "
            f"before; {hidden:.0%} of it is hidden",
            "exposed communication is time in which no rank computes",
            "ddp.explain() shows when each bucket was launched and done: the same bytes that take longer are a slow or "
            "shared link (`ringdp info` names the interface), buckets that are launched later are a layer that now "
            "comes last in the backward pass, or a communication hook that waits",
            numbers={"step": _last(steps), "exposed_s": exposed, "before_s": usual, "hidden": hidden},
        )


def _last(steps: _Steps) -> int:
    return max(row.number for rows, _ in steps for row in rows.values())


def _where(late: blame.Blame, steps: _Steps, rank: int) -> str:
    """In which part of a step it takes longer than the others."""
    if late.cause == "late":
        return ""
    more = [
        getattr(rows[rank], late.cause) - median(getattr(row, late.cause) for r, row in rows.items() if r != rank)
        for rows, _ in steps
        if rank in rows and len(rows) > 1
    ]
    part = "between steps (loader, optimizer, logging)" if late.cause == "data" else "in forward and backward"
    return f"; it takes {seconds(fmean(more))} longer than they do {part}"
