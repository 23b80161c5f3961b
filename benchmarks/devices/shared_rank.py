"""One of several processes that share a GPU: all_reduce and DDP's step, by ringdp or by a peer.

python -m devices.shared_rank KIND      (a key of KINDS; rank and address from the environment, as torchrun sets them)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from devices.cell import Cell
from devices.core import STREAM, open_core
from devices.one_rank import OneRank
from devices.place import CudaPlace, fill, tensor_at, wrong_in_sum
from devices.plan import Problem
from devices.worker import Candidate, serve

LIMIT_S = 20
MULTI_RANK = (2, 30)  # NCCL from here on runs several ranks on one GPU


class OnTensor:
    """Calls on a tensor that `allocate` makes, in place. A barrier of the host goes before every run."""

    def __init__(
        self, name: str, call: Callable[[torch.Tensor], Any], allocate: Callable[[int], torch.Tensor] | None = None
    ) -> None:
        self.name, self._call = name, call
        self._allocate = allocate or (lambda count: torch.empty(count, device="cuda"))

    def open(self, cell: Cell) -> int:
        """Memory; one checked call."""
        self._input = torch.empty(cell.count, device="cuda")
        fill(self._input, dist.get_rank())
        self._tensor = self._allocate(cell.count)
        self._tensor.copy_(self._input)
        found = self._call(self._tensor)
        torch.cuda.synchronize()
        return wrong_in_sum(self._tensor if found is None else found, dist.get_world_size())

    def run(self, calls: int) -> tuple[float, float]:
        """So many calls on what the inputs were at first."""
        self._tensor.copy_(self._input)
        return timed(lambda: self._call(self._tensor), calls)

    def close(self) -> None:
        """Gives the memory back."""
        del self._tensor, self._input


class Plans:
    """A device plan over memory that the processes share, waits being operations of the stream."""

    def __init__(self, name: str, algorithm: str) -> None:
        self.name, self._algorithm = name, algorithm
        self._core, self._place = open_core(), CudaPlace()

    def open(self, cell: Cell) -> int:
        """Memory, that of all ranks mapped; one checked call."""
        self._problem = Problem("all_reduce", self._algorithm, world=cell.world, count=cell.count)
        self._rank = OneRank(self._core, self._place, [self._problem], STREAM, group=_hosts[0])
        self._rank.__enter__()
        fill(tensor_at(self._rank.input(), cell.count, torch.float32), dist.get_rank())
        torch.cuda.synchronize()
        self._rank.launch(self._problem)
        torch.cuda.synchronize()
        return wrong_in_sum(tensor_at(self._rank.output(), cell.count, torch.float32), cell.world)

    def run(self, calls: int) -> tuple[float, float]:
        """So many launches."""
        return timed(lambda: self._rank.launch(self._problem), calls)

    def close(self) -> None:
        """Gives the memory back; collective."""
        self._rank.__exit__()


WIDTH, BATCH = 1024, 64  # of a layer, and of a rank


class DdpStep:
    """A forward and a backward pass of an MLP, whose gradients are averaged over ranks meanwhile.

    A layer's weights are 4 MiB, and there are as many layers as the cell's bytes hold.
    """

    def __init__(self, name: str, wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
        self.name, self._wrap = name, wrap

    def open(self, cell: Cell) -> int:
        """The model; elements of its first gradients that are not near the mean of all ranks' own."""
        torch.manual_seed(0)
        layers = max(1, cell.size // (4 * WIDTH * WIDTH))
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))).cuda()
        source = torch.Generator().manual_seed(dist.get_rank())
        self._input = torch.randn(BATCH, WIDTH, generator=source).cuda()
        model(self._input).square().sum().backward()
        own = [parameter.grad.cpu() for parameter in model.parameters()]
        model.zero_grad()
        self._model = self._wrap(model)
        self._step()
        torch.cuda.synchronize()
        wrong = 0
        for parameter, mean in zip(model.parameters(), own, strict=True):
            dist.all_reduce(mean, group=_hosts[0])
            mean /= cell.world
            near = (parameter.grad.cpu() - mean).abs() <= 1e-4 * mean.abs().max()  # NaN is not
            wrong += int((~near).sum())
        return wrong

    def _step(self) -> None:
        self._model.zero_grad()
        self._model(self._input).square().sum().backward()

    def run(self, calls: int) -> tuple[float, float]:
        """So many steps."""
        return timed(self._step, calls)

    def close(self) -> None:
        """Gives the memory back."""
        del self._model, self._input


def timed(call: Callable[[], Any], calls: int) -> tuple[float, float]:
    """From when all ranks are here until this one's stream is empty."""
    torch.cuda.synchronize()
    meet()
    start = time.monotonic()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return start, time.monotonic()


def meet() -> None:
    """The processes' barrier, over the host, whatever is measured."""
    dist.barrier(group=_hosts[0])


_hosts: list[Any] = []


def join(backend: str) -> None:
    """The default group over `backend`, and one over gloo for meeting."""
    if backend == "ringdp":
        import ringdp

        ringdp.register()
    torch.cuda.set_device(0)
    dist.init_process_group(backend, timeout=timedelta(seconds=LIMIT_S))
    _hosts.append(dist.new_group(backend="gloo", timeout=timedelta(seconds=LIMIT_S)))


def in_place(name: str) -> list[Candidate]:
    """torch.distributed's all_reduce over the default group."""

    def call(tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)

    return [OnTensor(name, call)]


def ringdp() -> list[Candidate]:
    """The backend as users call it, and plans by themselves."""
    join("ringdp")
    from ringdp import DistributedDataParallel as OwnDdp

    plans = [Plans("processes", "direct"), Plans("processes one_shot", "one_shot")]
    return [*in_place("ringdp"), *plans, DdpStep("ringdp ddp", OwnDdp)]


def gloo() -> list[Candidate]:
    """torch's backend for what has no NCCL."""
    join("gloo")
    return [*in_place("gloo"), DdpStep("gloo ddp", DistributedDataParallel)]


def nccl() -> list[Candidate]:
    """NCCL with ranks that share a GPU, as it chooses."""
    join_nccl()
    return [*in_place("nccl"), DdpStep("nccl ddp", DistributedDataParallel)]


def nccl_ring() -> list[Candidate]:
    """NCCL's ring alone."""
    join_nccl()
    return in_place("nccl ring")


def join_nccl() -> None:
    """The default group over NCCL with ranks that share a GPU, where its version allows."""
    version = torch.cuda.nccl.version()
    if version < MULTI_RANK:
        said = ".".join(map(str, version))
        raise RuntimeError(f"NCCL {said} refuses ranks that share a GPU; 2.30 is the first that does not")
    join("nccl")


def nccl_sockets() -> list[Candidate]:
    """NCCL whose ranks take one another for other hosts, so that it does not see that they share a GPU."""
    join("nccl")
    return in_place("nccl sockets")


def symmetric() -> list[Candidate]:
    """torch's symmetric memory with overlapping devices."""
    import torch.distributed._symmetric_memory as symm_mem

    join("gloo")
    group = dist.group.WORLD.group_name

    def allocate(count: int) -> torch.Tensor:
        tensor = symm_mem.empty(count, dtype=torch.float32, device="cuda")
        symm_mem.rendezvous(tensor, group)
        return tensor

    def two_shot(tensor: torch.Tensor) -> None:
        torch.ops.symm_mem.two_shot_all_reduce_(tensor, "sum", group)

    def one_shot(tensor: torch.Tensor) -> torch.Tensor:
        return torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", group)

    return [OnTensor("symm one_shot", one_shot, allocate), OnTensor("symm two_shot", two_shot, allocate)]


KINDS = {
    "ringdp": ringdp,
    "gloo": gloo,
    "nccl": nccl,
    "nccl ring": nccl_ring,
    "nccl sockets": nccl_sockets,
    "symm": symmetric,
}


def variables_of(kind: str, rank: int) -> dict[str, str]:
    """What a kind needs in the environment of a rank."""
    if kind in ("nccl", "nccl ring"):
        ring = {"NCCL_ALGO": "Ring"} if kind == "nccl ring" else {}
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1", **ring}
    if kind == "nccl sockets":
        return {"NCCL_HOSTID": f"host-{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    return {"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"} if kind == "symm" else {}


if __name__ == "__main__":
    serve(KINDS[sys.argv[1]])
