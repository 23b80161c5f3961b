"""Loss over wall time: copies of the parameters while the clock stands, judged when the training is over.

run = run_of(gathered reports of timed(task, model, synchronous(ddp, optimizer), ...))
run.time_to(2.5)                # seconds until the held-out loss is at 2.5
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ringdp.examples.gpt import set_rate
from ringdp.examples.gpt_task import Task


@dataclass
class Training:
    """forward: what samples pass through. step: after the backward pass.

    outcome: inside it the model has the parameters that are trained, which change after every `period` steps. workers:
    those that this rank plays. end: after the last step; nothing is on its way then.
    """

    forward: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    step: Callable[[], None]
    outcome: Callable[[], AbstractContextManager[Any]] = nullcontext
    period: int = 1
    workers: Sequence[int] = field(default_factory=lambda: [dist.get_rank()])
    end: Callable[[], object] = lambda: None


def synchronous(forward: nn.Module, optimizer: torch.optim.Optimizer, **others: Any) -> Training:
    """With means of gradients in every step."""

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return Training(forward, [optimizer], step, **others)


def timed(
    task: Task,
    model: nn.Module,
    training: Training,
    *,
    steps: int,
    note: int,
    rate: Callable[[int], float],
    show: Callable[[int, float, float], None] = lambda step, seconds, loss: None,
) -> dict[str, Any]:
    """Of this rank: seconds and bytes sent, from the first step to the end of each, and losses by step. Collective.

    note: steps from one copy of the parameters to the next. rate: of a step, the first one is 1. show(step, seconds,
    loss): at each copy, with the mean loss of this rank's samples since the one before. Losses are of every rank the
    share that it has judged. What copies and show take is not in the seconds.
    """
    note = training.period * -(-note // training.period)
    copies: dict[int, list[Tensor]] = {0: _copied(model)}
    dist.barrier()
    begun, before = time.monotonic(), sent_bytes()
    seconds, sent, total = [0.0], [0], torch.zeros(())
    for step in range(1, steps + 1):
        for optimizer in training.optimizers:
            set_rate(optimizer, rate(step))
        for worker in training.workers:
            loss = task.loss(training.forward, worker, step - 1) / len(training.workers)
            loss.backward()
            total += loss.detach()
        training.step()
        seconds.append(time.monotonic() - begun)
        sent.append(sent_bytes() - before)
        if step % note == 0:
            paused = time.monotonic()
            with training.outcome():
                copies[step] = _copied(model)
            show(step, seconds[-1], total.item() / note)
            total.zero_()
            begun += time.monotonic() - paused
    training.end()
    own = list(copies)[dist.get_rank() :: dist.get_world_size()]
    losses = {str(step): _judged(task, model, copies[step]) for step in own}
    return {"seconds": seconds, "sent": sent, "losses": losses, "period": training.period}


def sent_bytes() -> int:
    """By this host so far, on the link to the others; 0 where there is none."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.strip().partition(":")
        if name == "eth0":
            return int(counters.split()[8])
    return 0


def _copied(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@torch.no_grad()
def _judged(task: Task, model: nn.Module, values: Sequence[Tensor]) -> float:
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.copy_(value)
    return task.held_out_loss(model)


@dataclass(frozen=True)
class Run:
    """One training. losses: by step. seconds, sent: at the end of each step, from the first one on."""

    losses: Mapping[int, float]
    seconds: Sequence[float]
    sent: Sequence[int]
    period: int

    @property
    def last_loss(self) -> float:
        """At the last copy."""
        return self.losses[max(self.losses)]

    @property
    def curve(self) -> list[tuple[float, float]]:
        """(seconds, loss) of every copy."""
        return [(self.seconds[step], loss) for step, loss in sorted(self.losses.items())]

    def reached(self, target: float) -> int | None:
        """The first step after which the loss is at the target."""
        return next((step for step, loss in sorted(self.losses.items()) if loss <= target), None)

    def time_to(self, target: float) -> float:
        """Seconds; infinite where it is not reached."""
        step = self.reached(target)
        return math.inf if step is None else self.seconds[step]

    def per_step(self, totals: Sequence[float]) -> float:
        """In the second half, of whole periods."""
        half = len(totals) // 2 // self.period * self.period
        last = (len(totals) - 1) // self.period * self.period
        return (totals[last] - totals[half]) / (last - half)


def run_of(reports: Sequence[Mapping[str, Any]]) -> Run:
    """Of all ranks. A step ends when it does on the last one; bytes are rank 0's."""
    losses = {int(step): loss for own in reports for step, loss in own["losses"].items()}
    seconds = [max(each) for each in zip(*(own["seconds"] for own in reports), strict=True)]
    return Run(losses, seconds, reports[0]["sent"], reports[0]["period"])
