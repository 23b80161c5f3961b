"""A rank of torch.distributed in a benchmark: ringdp on ordinary and on shared tensors, gloo, and the limits.

python -m runner.torch_rank FOLDER RANK     (started by runner/coordinator.py)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import ringdp
import torch
import torch.distributed as dist

from runner.cell import Cell
from runner.limits import LIMITS, Limit, Probe
from runner.native import Mapping
from runner.worker import Buffers, Worker

TEAM = 0
LIMIT_S = 120
Allocate = Callable[[int, torch.dtype], torch.Tensor]


def ordinary(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor as torch makes it."""
    return torch.empty(count, dtype=dtype)


def _reduce_scatter(x: torch.Tensor, out: torch.Tensor, root: int, group: Any) -> None:
    dist.reduce_scatter_tensor(out, x, group=group)


def _all_gather(x: torch.Tensor, out: torch.Tensor, root: int, group: Any) -> None:
    dist.all_gather_into_tensor(out, x, group=group)


def _all_to_all(x: torch.Tensor, out: torch.Tensor, root: int, group: Any) -> None:
    dist.all_to_all_single(out, x, group=group)


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor, int, Any], Any]] = {
    "all_reduce": lambda x, out, root, group: dist.all_reduce(x, group=group),
    "broadcast": lambda x, out, root, group: dist.broadcast(x, src=root, group=group),
    "reduce": lambda x, out, root, group: dist.reduce(x, dst=root, group=group),
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
}


class C10d:
    """A backend of torch.distributed, on tensors from `allocate`."""

    checked = True

    def __init__(self, name: str, group: Any, allocate: Allocate = ordinary) -> None:
        self.name, self._group, self._allocate = name, group, allocate

    def open(self, cell: Cell) -> Buffers:
        """One tensor, or an input and an output."""
        dtype = getattr(torch, cell.dtype)
        x = self._allocate(cell.input_count, dtype)
        out = self._allocate(cell.output_count, dtype) if cell.output_count else None
        return Buffers(x.data_ptr(), 0 if out is None else out.data_ptr(), (x, out))

    def call(self, cell: Cell, buffers: Buffers, root: int) -> None:
        """The blocking call that a user would write."""
        x, out = buffers.owner
        CALLS[cell.op](x, out, root, self._group)


def shared_memory_candidate() -> tuple[list[C10d], str]:
    """ringdp on its shared tensors, or why there is none."""
    if not hasattr(ringdp, "empty"):
        return [], f"ringdp {ringdp.__version__} has no ringdp.empty"
    try:
        ringdp.empty(16, dtype=torch.float32)
    except Exception as error:
        return [], f"ringdp.empty: {error}".splitlines()[0]
    return [C10d("ringdp.empty", None, lambda count, dtype: ringdp.empty(count, dtype=dtype))], ""


def candidates_of(worker: Worker) -> tuple[list[Any], dict[str, str]]:
    """All that this team can run, and the reasons why something is missing."""
    shared, reason = shared_memory_candidate()
    found: list[Any] = [C10d("ringdp", None), *shared]
    found += [C10d(name, dist.new_group(backend=name)) for name in worker.job["backends"]]
    if worker.job["hosts"]:
        found.append(Probe(worker))
    else:
        memory = Mapping(worker.job["shared"])
        found += [Limit(name, worker, memory, found[0]) for name in LIMITS]
    return found, {"ringdp.empty": reason} if reason else {}


def main() -> None:
    """One rank, from its group to the order to stop."""
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    worker = Worker(folder, TEAM, rank)
    try:
        ringdp.register()  # also where the package is not installed but on the path
        for module in worker.job["modules"]:
            importlib.import_module(module)
        dist.init_process_group(
            "ringdp",
            init_method=worker.job["rendezvous"],
            rank=rank,
            world_size=worker.ranks,
            timeout=timedelta(seconds=LIMIT_S),
        )
        found, left_out = candidates_of(worker)
        names = [candidate.name for candidate in found]
        limits = [candidate.name for candidate in found if not candidate.checked]
        version = f"torch {torch.__version__}"
        worker.say({"candidates": names, "limits": limits, "left_out": left_out, "version": version})
        worker.serve(found)
    except BaseException:
        worker.native.runner_give_up(worker.address)
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
