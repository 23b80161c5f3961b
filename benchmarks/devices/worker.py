"""A rank's side of a session: orders come as lines of JSON on stdin, answers go to what was stdout.

An order names a candidate and a cell: "open" gives its memory, runs it once and counts wrong elements; "run" times
`calls` calls in a row; "close" gives the memory back. An error is an answer, and the rank goes on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Protocol

from devices.cell import Cell


class Candidate(Protocol):
    """One way to do a cell's operation, for one cell at a time."""

    name: str

    def open(self, cell: Cell) -> int:
        """Memory, one call on fresh inputs, and how many elements of its result were wrong."""

    def run(self, calls: int) -> tuple[float, float]:
        """So many calls; start and end in seconds, of a clock that all ranks of the team share."""

    def close(self) -> None:
        """Gives the memory back."""


def serve(make: Callable[[], list[Candidate]]) -> None:
    """Until stdin ends. What `make` raises is the answer to everything; what is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        candidates = {candidate.name: candidate for candidate in make()}
    except Exception as error:
        print(json.dumps({"error": sentence_of(error)}), file=answers)
        raise
    print(json.dumps({"candidates": list(candidates)}), file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(answer(candidates[order["candidate"]], order)), file=answers)


def answer(candidate: Candidate, order: dict) -> dict:
    """What one order has led to."""
    try:
        if order["do"] == "open":
            return {"wrong": candidate.open(Cell(**order["cell"]))}
        if order["do"] == "run":
            start, stop = candidate.run(order["calls"])
            return {"start": start, "stop": stop}
        candidate.close()
        return {}
    except Exception as error:
        return {"error": sentence_of(error)}


def sentence_of(error: BaseException) -> str:
    """Its first line, short enough for a table."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
