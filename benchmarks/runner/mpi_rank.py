"""A rank of an MPI library in a benchmark. Needs mpi4py and nothing else.

mpiexec -n N python -m runner.mpi_rank FOLDER TEAM NAME     (started by runner/coordinator.py)
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import traceback
from pathlib import Path

from mpi4py import MPI

from runner.cell import SUMS, Cell
from runner.native import DTYPES
from runner.worker import Buffers, Worker


class Mpi:
    """The blocking calls of MPI_COMM_WORLD, on private memory."""

    checked = True

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, cell: Cell) -> Buffers:
        """Anonymous private pages."""
        width = DTYPES[cell.dtype]
        x = mmap.mmap(-1, cell.input_count * width, flags=mmap.MAP_PRIVATE)
        out = mmap.mmap(-1, cell.output_count * width, flags=mmap.MAP_PRIVATE) if cell.output_count else None
        return Buffers(_address(x), _address(out) if out else 0, (x, out))

    def call(self, cell: Cell, buffers: Buffers, root: int) -> None:
        """What moves without a sum travels as bytes: MPI has no bfloat16."""
        x, out = buffers.owner
        world = MPI.COMM_WORLD
        kind = MPI.FLOAT if cell.op in SUMS else MPI.BYTE
        if cell.op == "all_reduce":
            world.Allreduce(MPI.IN_PLACE, [x, kind])
        elif cell.op == "reduce":
            mine = world.Get_rank() == root
            world.Reduce(MPI.IN_PLACE if mine else [x, kind], [x, kind] if mine else None, root=root)
        elif cell.op == "broadcast":
            world.Bcast([x, kind], root=root)
        elif cell.op == "reduce_scatter":
            world.Reduce_scatter_block([x, kind], [out, kind])
        elif cell.op == "all_gather":
            world.Allgather([x, kind], [out, kind])
        else:
            world.Alltoall([x, kind], [out, kind])


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def main() -> None:
    """One rank, from MPI_Init to the order to stop."""
    worker = Worker(Path(sys.argv[1]), int(sys.argv[2]), MPI.COMM_WORLD.Get_rank())
    try:
        if MPI.COMM_WORLD.Get_size() != worker.ranks:
            size = MPI.COMM_WORLD.Get_size()
            raise RuntimeError(f"{size} ranks in MPI_COMM_WORLD, not {worker.ranks}: is mpiexec that of another MPI?")
        version = MPI.Get_library_version().replace("\0", "").splitlines()[0].strip().rstrip(",")
        worker.say({"candidates": [sys.argv[3]], "limits": [], "left_out": {}, "version": version})
        worker.serve([Mpi(sys.argv[3])])
    except BaseException:
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    main()
