"""The same steps over the run's backend and over gloo, in alternation, so that both see the same machine.

Three lanes take turns, in another order each round: the run's backend, gloo, and no communication at all. All
work on copies of the trained model. Communication is what a lane's backward takes beyond the one without.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median

import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from ringdp.examples.gpt import GPT, next_token_loss
from ringdp.examples.traffic import Meter, Traffic

STEPS_PER_ROUND = 2


@dataclass(frozen=True)
class Split:
    """One step's seconds by phase; communication: not hidden by backward, with the wait for slower ranks."""

    forward: float
    backward: float
    communication: float
    optimizer: float

    @property
    def step(self) -> float:
        """The whole step."""
        return self.forward + self.backward + self.communication + self.optimizer


@dataclass(frozen=True)
class Comparison:
    """Medians over the rounds, as rank 0 sees them. ratio: gloo's step time over ours, round by round."""

    ours: Split
    gloo: Split
    ratio: float
    traffic: Traffic | None


def compare(model: GPT, micro_batches: Iterator[Tensor], rounds: int) -> Comparison:
    """Collective. `rounds` rounds (at least one) after one to warm up."""
    gloo = dist.new_group(backend="gloo")
    ours = _Lane(model)
    lanes = {"ours": ours, "gloo": _Lane(model, gloo), "alone": _Lane(model, communicate=False)}
    meter = Meter()
    for number in range(rounds + 1):
        turn = number % len(lanes)
        for name in [*lanes][turn:] + [*lanes][:turn]:
            dist.barrier()
            metered = name == "ours" and number > 0
            if metered:
                meter.start()
            lanes[name].run_round([next(micro_batches) for _ in range(STEPS_PER_ROUND)])
            if metered:
                meter.stop()
    alone = lanes["alone"].median_phases()[1]
    ratios = [theirs / mine for theirs, mine in zip(lanes["gloo"].rounds(), ours.rounds(), strict=True)]
    gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    traffic = meter.total(rounds * STEPS_PER_ROUND, gradient_bytes)
    dist.destroy_process_group(gloo)
    return Comparison(ours.split(alone), lanes["gloo"].split(alone), median(ratios), traffic)


class _Lane:
    """A copy of the model behind DDP with its own optimizer, and the times of its rounds."""

    def __init__(self, model: GPT, group: dist.ProcessGroup | None = None, communicate: bool = True) -> None:
        self._ddp = DistributedDataParallel(copy.deepcopy(model), process_group=group, gradient_as_bucket_view=True)
        self._optimizer = AdamW(self._ddp.parameters(), lr=1e-5)
        self._communicate = communicate
        self._rounds: list[tuple[float, float, float]] = []

    def run_round(self, micro_batches: list[Tensor]) -> None:
        """Some steps; keeps the mean seconds of forward, backward and optimizer."""
        steps = [self._one_step(windows) for windows in micro_batches]
        forward, backward, optimizer = (sum(phase) / len(steps) for phase in zip(*steps, strict=True))
        self._rounds.append((forward, backward, optimizer))

    def rounds(self) -> list[float]:
        """Seconds per step of every round but the first, which warms up."""
        return [sum(phases) for phases in self._rounds[1:]]

    def median_phases(self) -> tuple[float, float, float]:
        """Median seconds of forward, backward and optimizer."""
        forward, backward, optimizer = (median(phase) for phase in zip(*self._rounds[1:], strict=True))
        return forward, backward, optimizer

    def split(self, alone: float) -> Split:
        """The phases, with backward split by what it takes without communication."""
        forward, backward, optimizer = self.median_phases()
        hidden = min(alone, backward)
        return Split(forward, hidden, backward - hidden, optimizer)

    def _one_step(self, windows: Tensor) -> tuple[float, float, float]:
        self._optimizer.zero_grad(set_to_none=True)
        start = time.perf_counter()
        with nullcontext() if self._communicate else self._ddp.no_sync():
            loss = next_token_loss(self._ddp, windows)
            middle = time.perf_counter()
            loss.backward()
        end = time.perf_counter()
        self._optimizer.step()
        return middle - start, end - middle, time.perf_counter() - end
