"""The limits of a collective on one host: what its bytes cost when they are moved perfectly and nothing else is done.

Between two barriers every rank does, over float32 whatever the dtype (the bytes are the same):
sweep    all_reduce: x *= a over its own S bytes. reduce_scatter, reduce: reads S, writes S/N. all_gather, broadcast
         (all but the root): copies S out of shared memory. all_to_all: copies S. On all_reduce data stay in the
         rank's own cache, which no collective can do.
shuffle  all_reduce only: rank r does x *= a over part r of each of N shared buffers of S bytes: the same footprint and
         the same traffic between cores as a sum in one pass, without the sum.
barrier  nothing: what it costs to meet.
"""

from __future__ import annotations

from race.cell import Cell
from race.native import Mapping
from race.seat import Buffers, Candidate, Seat

LIMITS = ("sweep", "shuffle", "barrier")
FACTOR = -1.0  # keeps values what they are, whatever the number of sweeps


def sweep_bytes(cell: Cell, rank: int, root: int) -> tuple[int, int]:
    """(read, written) by `rank` in the sweep."""
    size = cell.nbytes
    if cell.op in ("reduce_scatter", "reduce"):
        return size, size // cell.ranks
    return (0, 0) if cell.op == "broadcast" and rank == root else (size, size)


def shared_bytes(cells: list[Cell]) -> int:
    """Shared memory that the limits of these cells need."""
    return max((cell.nbytes * (cell.ranks if cell.op == "all_reduce" else 1) for cell in cells), default=0)


class Limit:
    """One of LIMITS as a candidate. `memory` gives the sweep what ordinary tensors of a collective would lie in."""

    checked = False

    def __init__(self, name: str, seat: Seat, shared: Mapping, memory: Candidate) -> None:
        self.name, self._seat, self._shared, self._memory = name, seat, shared, memory

    def open(self, cell: Cell) -> Buffers:
        """Memory that the rank has filled itself before it starts, as before a collective."""
        if self.name == "sweep":
            return self._memory.open(cell)
        return Buffers(self._shared.address + self._seat.rank * cell.nbytes if self.name == "shuffle" else 0, 0)

    def call(self, cell: Cell, buffers: Buffers, root: int) -> None:
        """Barrier, the movement, barrier."""
        self._seat.barrier()
        if self.name == "sweep":
            self._sweep(cell, buffers, root)
        elif self.name == "shuffle":
            self._shuffle(cell)
        self._seat.barrier()

    def _sweep(self, cell: Cell, buffers: Buffers, root: int) -> None:
        native, floats = self._seat.native, cell.nbytes // 4
        if cell.op == "all_reduce":
            native.race_scale(buffers.input, floats, FACTOR)
        elif cell.op in ("reduce_scatter", "reduce"):
            target = buffers.output or buffers.input
            native.race_fold(target, buffers.input, floats // cell.ranks, cell.ranks)
        elif cell.op == "all_to_all":
            native.race_copy(buffers.output, buffers.input, cell.nbytes)
        elif cell.op == "all_gather" or self._seat.rank != root:
            native.race_copy(buffers.output or buffers.input, self._shared.address, cell.nbytes)

    def _shuffle(self, cell: Cell) -> None:
        part = cell.nbytes // 4 // cell.ranks
        for buffer in range(cell.ranks):
            start = self._shared.address + buffer * cell.nbytes + self._seat.rank * part * 4
            self._seat.native.race_scale(start, part, FACTOR)
