"""A rank's side of a session: it sleeps until its team has the turn, obeys the order, and leaves times and errors.

Needs neither torch nor numpy: MPI ranks run it in interpreters that have neither.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

from runner.cell import Cell, seed_of
from runner.native import DTYPES, Block, Mapping, load_native

OPEN, RUN, CLOSE, STOP = range(4)  # orders
POLL_US = 300  # in a barrier: longer than it takes to wake a halted core


class Order(NamedTuple):
    """The coordinator's order for a turn. `number` makes the data fresh."""

    kind: int
    cell: int = 0
    candidate: int = 0
    number: int = 0
    root: int = 0


@dataclass
class Buffers:
    """Where a candidate keeps a cell's tensors; `owner` holds the memory and is the candidate's own business."""

    input: int  # 0 where there is nothing to fill
    output: int  # 0 where the result replaces the input
    owner: Any = None


class Candidate(Protocol):
    """One way to run a collective. `checked` is False for limits, which compute nothing."""

    name: str
    checked: bool

    def open(self, cell: Cell) -> Buffers:
        """Memory for a cell."""

    def call(self, cell: Cell, buffers: Buffers, root: int) -> None:
        """The collective, to its end."""


class Worker:
    """The words shared with the coordinator, and this team's barrier."""

    def __init__(self, folder: Path, team: int, rank: int) -> None:
        self.job = json.loads((folder / "job.json").read_text())
        self.folder, self.team, self.rank = folder, team, rank
        self.ranks: int = self.job["ranks"]
        self.cells = [Cell(**cell) for cell in self.job["cells"]]
        self.native = load_native(Path(self.job["library"]))
        self._mapping = Mapping(self.job["block"])
        self.block: Block = self._mapping.block()
        self.address = self._mapping.address
        self.poll_us = 0

    def barrier(self) -> None:
        """All ranks of the team; RuntimeError when one of them has given up."""
        if self.native.runner_barrier(self.address, self.team, self.ranks, self.poll_us):
            raise RuntimeError("another rank of this benchmark has given up; its log says why")

    def choose_barrier(self) -> None:
        """Takes the barrier that is cheaper now, so that a limit is not larger than it has to be.

        Polling is cheaper on a quiet machine, sleeping on a busy one. Where ranks share cores no rank polls.
        """
        if self.ranks > len(os.sched_getaffinity(0)):
            return
        cost = {}
        for self.poll_us in (POLL_US, 0):
            times = []
            for _ in range(60):
                start = time.monotonic_ns()
                self.barrier()
                times.append(time.monotonic_ns() - start)
            cost[self.poll_us] = median(times[20:])  # the first wake ranks that may lie on one core
        self.poll_us = min(cost, key=cost.__getitem__)

    def say(self, facts: dict[str, Any]) -> None:
        """Tells the coordinator what this team is; only rank 0's word counts."""
        if self.rank == 0:
            partial = self.folder / f"hello-{self.team}.tmp"
            partial.write_text(json.dumps(facts))
            partial.rename(partial.with_suffix(".json"))

    def serve(self, candidates: list[Candidate]) -> None:
        """Does what is ordered until told to stop."""
        opened: dict[tuple[int, int], Buffers] = {}
        turn, parent = 0, os.getppid()
        while True:
            seen = self.native.runner_await_turn(self.address, self.team, turn, 1000)
            if seen == turn:
                if self.block.gone[0] or os.getppid() != parent:
                    return
                continue
            turn = seen
            order = Order(*self.block.order[: len(Order._fields)])
            if order.kind == OPEN:
                if order.candidate == 0:
                    self.choose_barrier()
                opened[order.cell, order.candidate] = candidates[order.candidate].open(self.cells[order.cell])
            elif order.kind == RUN:
                self._run(candidates[order.candidate], opened[order.cell, order.candidate], order)
            else:
                opened.clear()
            self.native.runner_finish_turn(self.address)
            if order.kind == STOP:
                return

    def _run(self, candidate: Candidate, buffers: Buffers, order: Order) -> None:
        cell = self.cells[order.cell]
        self._fill(buffers.input, cell, cell.input_count, candidate.checked, seed_of(cell, order.number, self.rank))
        garbage = seed_of(cell, order.number, self.ranks)  # so that last round's result is gone
        self._fill(buffers.output, cell, cell.output_count, candidate.checked, garbage)
        self._time(lambda: candidate.call(cell, buffers, order.root))
        self.block.wrong[self.rank] = self._wrong(cell, buffers, order) if candidate.checked else 0

    def _fill(self, address: int, cell: Cell, count: int, checked: bool, seed: int) -> None:
        """Limits count all bytes as float32: two bfloat16 in one would often be a denormal number, which is slow."""
        if not address:
            return
        dtype = cell.dtype if checked else "float32"
        count = count * DTYPES[cell.dtype] // DTYPES[dtype]
        getattr(self.native, f"runner_fill_{dtype}")(address, count, seed)

    def _time(self, call: Callable[[], None]) -> None:
        self.barrier()
        self.barrier()  # takes out the skew with which ranks wake from the first
        self.block.start[self.rank] = time.monotonic_ns()
        call()
        self.block.stop[self.rank] = time.monotonic_ns()
        self.barrier()  # else the first rank to end checks its result on a core that the others need

    def _wrong(self, cell: Cell, buffers: Buffers, order: Order) -> int:
        count_wrong = getattr(self.native, f"runner_wrong_{cell.dtype}")
        start = buffers.output or buffers.input
        wrong = 0
        for begin, count, first, ranks in cell.expected(self.rank, order.root):
            seeds = (ctypes.c_uint32 * len(ranks))(*(seed_of(cell, order.number, r) for r in ranks))
            wrong += count_wrong(start + begin * DTYPES[cell.dtype], count, first, seeds, len(ranks))
        return wrong
