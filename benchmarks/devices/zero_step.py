"""A sharded AdamW step of all ranks in one process, fused and in three parts, on float32 gradients of one bucket.

Fused: a barrier, rd_gpu_adam_step on every rank, a barrier. Separate: reduce_scatter with the mean, torch's fused
AdamW on every rank's shard, all_gather. Both begin with the same numbers; what they end with is compared.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack

import torch

from devices.cell import Cell
from devices.core import SPIN, AdamWork, Core
from devices.one_process import OneProcess
from devices.place import CudaPlace, Replay, tensor_at
from devices.plan import Problem, plan_of

SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
RTOL, ATOL = 1e-5, 1e-7  # torch's fused kernel rounds otherwise


class ShardedStep:
    """All ranks' gradients, parameters and moments; subclasses define the step."""

    name = ""

    def __init__(self, world: int, core: Core, place: CudaPlace) -> None:
        self._world, self._core, self._place = world, core, place
        self._replays: dict[int, Replay] = {}

    def open(self, cell: Cell) -> int:
        """Memory; one step, compared with torch's in one process."""
        self._whole, self._shard = cell.count, cell.count // self._world
        undo = self._undo = ExitStack()
        self._scatter = Problem("reduce_scatter", op="AVG", world=self._world, count=self._shard)
        self._gather = Problem("all_gather", world=self._world, count=self._shard)
        self._barrier = Problem("barrier", world=self._world, count=0)
        self._gradients, self._parameters, self._meeting = (
            undo.enter_context(OneProcess(self._core, self._place, self._world, [problem], SPIN))
            for problem in (self._scatter, self._gather, self._barrier)
        )
        self.prepare()
        torch.cuda.synchronize()
        for rank in range(self._world):
            with torch.cuda.stream(self._place.stream(rank)):
                self.step(rank)
        torch.cuda.synchronize()
        return self._wrong()

    def gradient(self, rank: int) -> torch.Tensor:
        """A rank's whole gradient."""
        return tensor_at(self._gradients.input(rank), self._whole, torch.float32)

    def parameters(self, rank: int) -> torch.Tensor:
        """A rank's copy of all parameters."""
        return tensor_at(self._parameters.output(rank), self._whole, torch.float32)

    def prepare(self) -> None:
        """The same numbers for both ways."""
        for rank in range(self._world):
            source = torch.Generator(device="cuda").manual_seed(rank)
            self.gradient(rank).normal_(generator=source)
            self.parameters(rank).normal_(generator=source.manual_seed(99))

    def step(self, rank: int) -> None:
        """One rank's part, on its stream."""
        raise NotImplementedError

    def _launch(self, ranks: OneProcess, problem: Problem, rank: int) -> None:
        ranks.launch_on(ranks.streams[rank], plan_of(problem, rank), problem.divisor)

    def _wrong(self) -> int:
        right = torch.nn.Parameter(torch.empty(self._whole, device="cuda"))
        right.data.normal_(generator=torch.Generator(device="cuda").manual_seed(99))
        total = self.gradient(0).clone()
        for rank in range(1, self._world):
            total += self.gradient(rank)
        right.grad = total / self._world
        torch.optim.AdamW([right], foreach=False, **SETTINGS).step()
        found = [self.parameters(rank) for rank in range(self._world)]
        return sum(int((~torch.isclose(one, right.data, rtol=RTOL, atol=ATOL)).sum()) for one in found)

    def run(self, calls: int) -> tuple[float, float]:
        """So many steps."""
        if calls not in self._replays:
            streams = [self._place.stream(rank) for rank in range(self._world)]
            self._replays[calls] = Replay(streams, self.step, calls)
        seconds = self._replays[calls].seconds()
        for ranks in (self._gradients, self._parameters, self._meeting):
            ranks.check()
        return 0.0, seconds

    def close(self) -> None:
        """Gives the memory back."""
        self._replays.clear()
        self._undo.close()


class FusedStep(ShardedStep):
    """ringdp's kernel."""

    name = "fused step"

    def prepare(self) -> None:
        """Moments, an abort word, and what every rank's launch is given."""
        super().prepare()
        self._moments = [torch.zeros(2, self._shard, device="cuda") for _ in range(self._world)]
        self._works = [self._work(rank) for rank in range(self._world)]

    def _work(self, rank: int) -> AdamWork:
        from ringdp import _native

        scalars = _native.load().device_adam_scalars(
            SETTINGS["lr"], *SETTINGS["betas"], SETTINGS["eps"], SETTINGS["weight_decay"], decoupled=True, number=1
        )
        work = AdamWork(rank=rank, world=self._world, count=self._shard, divisor=float(self._world))
        offset = rank * self._shard * 4
        for other in range(self._world):
            work.gradients[other] = self._gradients.input(other) + offset
            work.parameters[other] = self._parameters.output(other) + offset
        for k in range(2):
            work.state[k] = self._moments[rank][k].data_ptr()
        ctypes.memmove(work.scalars, scalars, len(scalars))
        meeting = self._meeting.ranks[rank]
        work.abort, work.epoch = meeting.abort, meeting.bases[rank] + meeting.layout.epoch
        return work

    def step(self, rank: int) -> None:
        """Waits for all ranks' gradients; steps; waits for all ranks' parameters."""
        self._launch(self._meeting, self._barrier, rank)
        self._core.adam_step(self._works[rank], self._meeting.streams[rank])
        self._launch(self._meeting, self._barrier, rank)


class SeparateStep(ShardedStep):
    """Three parts, torch's optimizer between two collectives of ringdp."""

    name = "separate step"

    def prepare(self) -> None:
        """An optimizer of every shard, which lies where it is gathered from."""
        super().prepare()
        self._optimizers = []
        for rank in range(self._world):
            own = torch.nn.Parameter(tensor_at(self._parameters.input(rank), self._shard, torch.float32))
            own.data.copy_(self.parameters(rank).chunk(self._world)[rank])
            own.grad = tensor_at(self._gradients.output(rank), self._shard, torch.float32)
            self._optimizers.append(self._warm(torch.optim.AdamW([own], fused=True, capturable=True, **SETTINGS)))

    @staticmethod
    def _warm(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Its state is made and its kernels are loaded now: neither may happen while a kernel polls."""
        [own] = optimizer.param_groups[0]["params"]
        before = own.detach().clone()
        optimizer.step()
        own.data.copy_(before)
        for value in optimizer.state[own].values():
            value.zero_()
        return optimizer

    def step(self, rank: int) -> None:
        """Mean of the shard, its step, all ranks' shards."""
        self._launch(self._gradients, self._scatter, rank)
        self._optimizers[rank].step()
        self._launch(self._parameters, self._gather, rank)
