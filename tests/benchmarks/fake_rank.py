"""A rank of a team that needs no torch: `steady` does its work, `wrong` damages it, `mortal` dies in its third round.

python fake_rank.py FOLDER TEAM RANK KIND
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from race.cell import Cell
from race.seat import Buffers, Seat


class Broadcast:
    """From rank 0 through a file that all ranks map: the values are those that its pattern has."""

    checked = True

    def __init__(self, kind: str, seat: Seat) -> None:
        self.name, self._seat, self._calls = kind, seat, 0

    def open(self, cell: Cell) -> Buffers:
        """Ordinary memory."""
        memory = ctypes.create_string_buffer(cell.nbytes)
        return Buffers(ctypes.addressof(memory), 0, memory)

    def call(self, cell: Cell, buffers: Buffers, root: int) -> None:
        """Root writes, the others read, between barriers."""
        self._calls += 1
        if self.name == "mortal" and self._calls == 3 and self._seat.rank == 1:
            print("these are my last words", flush=True)
            os._exit(7)
        path = self._seat.folder / f"moved-{self._seat.team}"
        if self._seat.rank == root:
            path.write_bytes(buffers.owner.raw)
        self._seat.barrier()
        buffers.owner.raw = path.read_bytes()
        if self.name == "wrong" and self._seat.rank == 1:
            ctypes.cast(buffers.input, ctypes.POINTER(ctypes.c_float))[0] += 1
        self._seat.barrier()


def main() -> None:
    """A rank's life."""
    kind = sys.argv[4]
    seat = Seat(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    seat.say({"candidates": [kind], "limits": [], "left_out": {}, "version": kind})
    seat.serve([Broadcast(kind, seat)])


if __name__ == "__main__":
    main()
