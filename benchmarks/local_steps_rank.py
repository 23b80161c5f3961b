"""A rank of local_steps.py: trainings that take turns, block by block, after the planner was asked what hides the way.

The JOB of runner/job.py is the JSON of Job. Clocks are those of one machine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import ringdp
import torch
import torch.distributed as dist
from ringdp.examples.gpt import Shape
from ringdp.examples.gpt_task import Task
from ringdp.tools.planner.local import local as plan
from runner.job import serve
from torch import nn

INNER, ALONE = "inner steps", "alone"
BEGIN_S = 0.3  # from the call to begin until all begin: longer than it takes to reach the farthest rank
PROBES, PROBE_STEPS = 5, 10


@dataclass(frozen=True)
class Job:
    """shape, batch, rate: of the model, of a worker's step, of AdamW. every, fragments, alpha, compress: of the DiLoCo.

    delays: of the candidates; None is the least that hides the way, by the planner. bandwidth (bytes/s) and rtt
    (seconds): of the link, for the planner. rounds: of all candidates. block: so many times `every` steps are a turn.
    """

    backend: str
    shape: dict[str, int]
    batch: int
    rate: float
    every: int
    fragments: int
    alpha: float
    compress: str | None
    delays: list[int | None]
    bandwidth: float
    rtt: float
    rounds: int
    block: int


def why_not(delay: int, fragments: int, every: int) -> str:
    """Why no turn can begin and end with nothing on its way; empty when it can."""
    if delay < every // fragments:
        return ""
    return (
        f"a delay of {delay} steps with {fragments} fragments in {every} steps: the next fragment leaves before one "
        f"has arrived; take --every {fragments * (delay + 1)} or more"
    )


def name_of(delay: int) -> str:
    """Of the candidate that communicates."""
    return f"delay {delay}"


class Candidate:
    """A training with a model of its own; all read the same samples. made(parameters): what makes a step."""

    def __init__(self, task: Task, made: Callable[[nn.Module], Callable[[], None]]) -> None:
        self._task, self._model, self._steps = task, task.model(), 0
        self._step = made(self._model)

    def run(self, steps: int) -> None:
        """So many steps."""
        rank = dist.get_rank()
        for _ in range(steps):
            self._task.loss(self._model, rank, self._steps).backward()
            self._step()
            self._steps += 1


def adamw(rate: float, parameters: Any) -> torch.optim.AdamW:
    """Of every candidate."""
    return torch.optim.AdamW(parameters, lr=rate)


def inner_steps(job: Job, model: nn.Module) -> Callable[[], None]:
    """Nothing else."""
    optimizer = adamw(job.rate, model.parameters())

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return step


def local_steps(
    job: Job, delay: int, workers: int, group: dist.ProcessGroup | None, model: nn.Module
) -> Callable[[], None]:
    """Streaming DiLoCo."""
    made = ringdp.DiLoCo(
        model,
        partial(adamw, job.rate),
        workers=workers,
        every=job.every,
        fragments=job.fragments,
        delay=delay,
        alpha=job.alpha,
        compress=job.compress,
        group=group,
    )
    return made.step


def of_slowest(seconds: float) -> float:
    """The same on all ranks. Collective."""
    most = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most.item()


def timed(turn: Callable[[], None]) -> float:
    """Seconds of this rank; all begin at the same moment. Collective."""
    begin = torch.tensor(time.monotonic() + BEGIN_S, dtype=torch.float64)
    dist.broadcast(begin, 0)
    time.sleep(max(0.0, begin.item() - time.monotonic()))
    turn()
    return time.monotonic() - begin.item()


def asked(job: Job, parameters: int, delay: int | None, step: float) -> Mapping[str, Any]:
    """What `ringdp plan local` says of the codec, by column."""
    ranks = dist.get_world_size()
    (table,) = plan(
        params=parameters,
        workers=ranks,
        every=job.every,
        ranks=ranks,
        fragments=job.fragments,
        delay=delay,
        bandwidth=job.bandwidth,
        rtt=job.rtt,
        step_seconds=step,
    ).tables
    names = [name for name, _ in table.columns]
    return next(dict(zip(names, row, strict=True)) for row in table.rows if row[0] == (job.compress or "none"))


def run(job: Job) -> dict[str, Any]:
    """Of this rank: seconds of a step by candidate and round, and the planner's figures. Collective.

    A turn begins and ends `delay` steps after a round of H steps: nothing is on its way then, as the next fragment
    leaves later, so every fragment that a turn sends is one that it waits for.
    """
    ranks = dist.get_world_size()
    task = Task(Shape(**job.shape), job.batch, ranks)
    own, _ = dist.new_subgroups(1)
    candidates = {INNER: Candidate(task, partial(inner_steps, job))}
    candidates[INNER].run(PROBE_STEPS)
    step = of_slowest(median(timed(partial(candidates[INNER].run, PROBE_STEPS)) for _ in range(PROBES)) / PROBE_STEPS)
    parameters = sum(parameter.numel() for parameter in task.model().parameters())
    least = asked(job, parameters, None, step)["least delay"]
    delays = sorted({least if delay is None else delay for delay in job.delays})
    if problem := why_not(delays[-1], job.fragments, job.every):
        raise ValueError(problem)
    predicted = {name_of(delay): asked(job, parameters, delay, step) for delay in delays}
    settling = {INNER: 0, ALONE: delays[-1]}
    candidates[ALONE] = Candidate(task, partial(local_steps, job, delays[-1], 1, own))
    for delay in delays:
        settling[name_of(delay)] = delay
        candidates[name_of(delay)] = Candidate(task, partial(local_steps, job, delay, ranks, dist.new_group()))
    for name, candidate in candidates.items():
        candidate.run(job.every + settling[name])
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    steps = job.block * job.every
    for number in range(job.rounds):
        for name in random.Random(number).sample(list(candidates), len(candidates)):
            seconds[name].append(timed(partial(candidates[name].run, steps)) / steps)
    return {"seconds": seconds, "step": step, "least": least, "parameters": parameters, "predicted": predicted}


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
