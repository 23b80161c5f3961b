"""The same steps by the run's wrapper and backend and by others, in alternation, so that all see the same machine.

Lanes take turns, in another order each round: the run's own; stock DDP over the run's backend, where that is another
one; stock DDP over gloo; no communication at all. All work on copies of the trained model. Communication is what a
lane's backward takes beyond the one without.
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

from ringdp.examples.gpt import GPT, next_token_loss
from ringdp.examples.parallel import adamw, data_parallel
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
    """Medians over the rounds, as rank 0 sees them. Ratios: step time over ours, round by round.

    stock: stock DDP over our backend; None where that is what the run uses.
    """

    ours: Split
    gloo: Split
    ratio: float
    traffic: Traffic | None
    stock: Split | None = None
    stock_ratio: float | None = None


def compare(model: GPT, micro_batches: Iterator[Tensor], rounds: int, ddp: str, zero_stage: int = 0) -> Comparison:
    """Collective. `rounds` rounds (at least one) after one to warm up."""
    gloo = dist.new_group(backend="gloo")
    ours = _Lane(model, ddp, zero_stage=zero_stage)
    lanes = {"ours": ours, "gloo": _Lane(model, "stock", gloo), "alone": _Lane(model, "stock", communicate=False)}
    if ddp != "stock":
        lanes["stock"] = _Lane(model, "stock")
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
    gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    traffic = meter.total(rounds * STEPS_PER_ROUND, gradient_bytes, in_place=ddp == "ringdp", zero_stage=zero_stage)
    dist.destroy_process_group(gloo)
    stock = lanes.get("stock")
    return Comparison(
        ours=ours.split(alone),
        gloo=lanes["gloo"].split(alone),
        ratio=_ratio(lanes["gloo"], ours),
        traffic=traffic,
        stock=stock.split(alone) if stock else None,
        stock_ratio=_ratio(stock, ours) if stock else None,
    )


def _ratio(theirs: _Lane, ours: _Lane) -> float:
    return median(their / mine for their, mine in zip(theirs.rounds(), ours.rounds(), strict=True))


class _Lane:
    """A copy of the model behind a wrapper with its own optimizer, and the times of its rounds."""

    def __init__(
        self,
        model: GPT,
        ddp: str,
        group: dist.ProcessGroup | None = None,
        communicate: bool = True,
        zero_stage: int = 0,
    ) -> None:
        self._ddp = data_parallel(copy.deepcopy(model), ddp, group, zero_stage)
        self._optimizer = adamw(self._ddp, 1e-5, zero_stage)
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
