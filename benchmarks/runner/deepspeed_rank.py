"""A rank of DeepSpeed's shared-memory all-reduce for inference on CPUs.

python -m runner.deepspeed_rank FOLDER TEAM NAME RANK     (started by runner/coordinator.py)
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from runner.cell import Cell
from runner.peers import OP_MODULE, compiled_op
from runner.worker import Buffers, Worker


class Op:
    """The op on torch's own tensors. It knows one group: all ranks of the host."""

    checked = True

    def __init__(self, name: str, module: Any) -> None:
        self.name, self._module = name, module

    def open(self, cell: Cell) -> Buffers:
        """One tensor, reduced in place."""
        x = torch.empty(cell.count, dtype=getattr(torch, cell.dtype))
        return Buffers(x.data_ptr(), 0, x)

    def call(self, cell: Cell, buffers: Buffers, root: int) -> None:
        """The sum."""
        torch.ops.deepspeed.inference_all_reduce_(buffers.owner)


def load_op(worker: Worker) -> Any:
    """The op that peers.py has compiled. It finds the other ranks by these variables."""
    port = str(worker.job["port"])
    os.environ.update({"LOCAL_SIZE": str(worker.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
    loader = importlib.machinery.ExtensionFileLoader(OP_MODULE, str(compiled_op(Path(sys.prefix))))
    spec = importlib.util.spec_from_loader(OP_MODULE, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.initialize(worker.ranks, worker.rank)
    return module


def main() -> None:
    """One rank, from compiling the op to the order to stop."""
    torch.set_num_threads(1)
    worker = Worker(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4]))
    try:
        op = Op(sys.argv[3], load_op(worker))
        version = f"DeepSpeed {metadata.version('deepspeed')}"
        worker.say({"candidates": [op.name], "limits": [], "left_out": {}, "version": version})
        worker.serve([op])
        for left in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{worker.job['port']}_{worker.rank}"):
            left.unlink()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # a rank that polls for the others cannot be waited for


if __name__ == "__main__":
    main()
