"""A rank of a team that needs no torch: `steady` does its work, `wrong` damages it, `mortal` dies in its third round.

python fake_rank.py FOLDER TEAM RANK KIND
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from runner.cell import Cell
from runner.worker import Buffers, Worker


class Broadcast:
    """From rank 0 through a file that all ranks map: the values are those that its pattern has."""

    checked = True

    def __init__(self, kind: str, worker: Worker) -> None:
        self.name, self._worker, self._calls = kind, worker, 0

    def open(self, cell: Cell) -> Buffers:
        """Ordinary memory."""
        memory = ctypes.create_string_buffer(cell.nbytes)
        return Buffers(ctypes.addressof(memory), 0, memory)

    def call(self, cell: Cell, buffers: Buffers, root: int) -> None:
        """Root writes, the others read, between barriers."""
        self._calls += 1
        if self.name == "mortal" and self._calls == 3 and self._worker.rank == 1:
            print("these are my last words", flush=True)
            os._exit(7)
        path = self._worker.folder / f"moved-{self._worker.team}"
        if self._worker.rank == root:
            path.write_bytes(buffers.owner.raw)
        self._worker.barrier()
        buffers.owner.raw = path.read_bytes()
        if self.name == "wrong" and self._worker.rank == 1:
            ctypes.cast(buffers.input, ctypes.POINTER(ctypes.c_float))[0] += 1
        self._worker.barrier()


def main() -> None:
    """A rank's life."""
    kind = sys.argv[4]
    worker = Worker(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    worker.say({"candidates": [kind], "limits": [], "left_out": {}, "version": kind})
    worker.serve([Broadcast(kind, worker)])


if __name__ == "__main__":
    main()
