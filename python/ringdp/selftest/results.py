"""Collects the verdicts of all ranks: counts, cells of the table, failures, and the JSON of a self-test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringdp.selftest.cases import Case
from ringdp.selftest.oracle import COLUMNS
from ringdp.selftest.rank import EXACT, REFUSED, WRONG, Verdict
from ringdp.selftest.session import Event
from ringdp.text.units import names

NOT_RUN = "not run"
MARKS = {EXACT: "✓", REFUSED: "-", WRONG: "✗", NOT_RUN: "·"}
# The worst part of a cell is what it shows; a refusal counts only where nothing else happened.
_RANKING = (WRONG, NOT_RUN, EXACT, REFUSED)


@dataclass(frozen=True)
class Failure:
    """A failure on these ranks; `case` None: one that belongs to no case."""

    ranks: tuple[int, ...]
    transport: str
    case: Case | None
    why: str

    def __str__(self) -> str:
        where = " ".join(part for part in (self.transport, str(self.case or "")) if part)
        return f"{names(self.ranks)}: {where + ': ' if where else ''}{self.why}"


class Results:
    """What `size` ranks said about `cases` over each of `transports`, so far."""

    def __init__(self, size: int, transports: Sequence[str], cases: Sequence[Case]) -> None:
        self.size, self.transports, self.cases = size, tuple(transports), tuple(cases)
        self._complaints: dict[tuple[str, Case | None, str], list[int]] = {}
        self._verdicts: dict[tuple[str, int], list[Verdict]] = {}

    def add(self, event: Event) -> None:
        """Adds a report."""
        if event.case is not None:
            self._verdicts.setdefault((event.transport, event.case), []).append(event.verdict)
        if event.verdict.kind == WRONG:
            case = None if event.case is None else self.cases[event.case]
            self._complaints.setdefault((event.transport, case, event.verdict.why), []).append(event.rank)

    @property
    def failures(self) -> list[Failure]:
        """In the order of their first report; equal failures of several ranks are merged."""
        return [Failure(tuple(sorted(ranks)), *complaint) for complaint, ranks in self._complaints.items()]

    def outcome(self, transport: str, number: int) -> str:
        """WRONG when one rank reports it, NOT_RUN until all ranks have reported."""
        verdicts = self._verdicts.get((transport, number), [])
        if any(verdict.kind == WRONG for verdict in verdicts):
            return WRONG
        return verdicts[0].kind if len(verdicts) == self.size else NOT_RUN

    def counts(self) -> Counter[str]:
        """How many cases had each outcome."""
        numbers = range(len(self.cases))
        return Counter(self.outcome(transport, number) for transport in self.transports for number in numbers)

    @property
    def good(self) -> bool:
        """Whether everything was run and nothing was wrong."""
        counts = self.counts()
        return bool(self.cases) and not (self._complaints or counts[WRONG] or counts[NOT_RUN])

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of marks: ops down, element types across, over all transports and reduce ops."""
        columns = list(dict.fromkeys(COLUMNS.get(case.dtype, "-") for case in self.cases))
        rows = []
        for op in dict.fromkeys(case.op for case in self.cases):
            rows.append([op, *(self._cell(op, column) for column in columns)])
        return ["", *columns], rows

    def _cell(self, op: str, column: str) -> str:
        numbers = [n for n, c in enumerate(self.cases) if c.op == op and COLUMNS.get(c.dtype, "-") == column]
        found = {self.outcome(transport, number) for transport in self.transports for number in numbers}
        return next((MARKS[kind] for kind in _RANKING if kind in found), "")

    def report(self) -> dict[str, Any]:
        """What --json prints."""
        counts = self.counts()
        return {
            "ranks": self.size,
            "transports": list(self.transports),
            **{kind.replace(" ", "_"): counts[kind] for kind in MARKS},
            "good": self.good,
            "cases": [
                {"transport": t, "op": c.op, "dtype": c.dtype, "reduce": c.reduce, "outcome": self.outcome(t, n)}
                for t in self.transports
                for n, c in enumerate(self.cases)
            ],
            "failures": [
                {"ranks": list(f.ranks), "transport": f.transport, "case": str(f.case or ""), "why": f.why}
                for f in self.failures
            ],
        }
