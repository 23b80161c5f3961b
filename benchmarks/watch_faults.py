"""One rank of watch.py --faults: plants faults in healthy steps, and counts the steps until ringdp.watch names each.

The JOB of runner/job.py is the JSON of watch_rank.Job and `seeds`: each decides when and where a fault comes.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ringdp
import torch
import torch.distributed as dist
from ringdp.tools.watch import watch as watching
from runner.job import serve
from watch_rank import Job, Trainer

AFTER = 70  # steps after a fault was planted
LATE_S = 0.010
HEALTHY = 2000  # steps without a fault


class _Lines(logging.Handler):
    """What is logged, with the number of the step."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.step = 0
        self.said: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((self.step, record.getMessage()))


@contextmanager
def watched(trainer: Trainer) -> Iterator[_Lines]:
    """With a watch, what it says."""
    lines = _Lines()
    watching.log.addHandler(lines)
    try:
        with ringdp.watch(trainer.ddp, trainer.optimizer):
            yield lines
    finally:
        watching.log.removeHandler(lines)


class _Late:
    """A communication hook that keeps every bucket back; for no time at first."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def finish() -> None:
            work.wait()
            time.sleep(self.seconds)
            done.set_result(bucket.buffer())

        threading.Thread(target=finish).start()
        return done


def planted(trainer: Trainer, fault: str, seed: int, hook: _Late | None) -> dict[str, Any]:
    """What was said, by the number of steps since the fault was planted. Collective."""
    choose = random.Random(seed)
    begin, victim = choose.randrange(20, 60), choose.randrange(dist.get_world_size())
    parameter = choose.choice([p for p in trainer.ddp.parameters() for _ in range(p.numel() >> 9)])
    element = choose.randrange(parameter.numel())
    is_victim = dist.get_rank() == victim
    with watched(trainer) as lines:
        for step in range(begin + AFTER):
            lines.step = step - begin
            if step == begin and fault == "drift" and is_victim:
                with torch.no_grad():
                    parameter.view(-1)[element] += 1e-3
            if step == begin and fault == "overlap" and hook is not None:
                hook.seconds = LATE_S
            if step >= begin and fault == "straggler" and is_victim:
                time.sleep(LATE_S)
            trainer.step()
        dist.barrier()
    if hook is not None:
        hook.seconds = 0.0
    dist.broadcast(parameter.data, 0)
    return {"fault": fault, "seed": seed, "victim": victim, "said": lines.said}


def run(job: Job, seeds: int) -> dict[str, Any]:
    """Every fault with every seed, and a run without any. Collective."""
    trainer = Trainer(job)
    runs = [planted(trainer, fault, seed, None) for fault in ("straggler", "drift") for seed in range(seeds)]
    with watched(trainer) as lines:
        for lines.step in range(HEALTHY):
            trainer.step()
    hook = _Late()
    trainer.ddp.register_comm_hook(None, lambda state, bucket: hook(state, bucket))  # torch reads annotations
    for _ in range(10):
        trainer.step()
    runs += [planted(trainer, "overlap", seed, hook) for seed in range(seeds)]
    return {"runs": runs, "healthy": lines.said}


if __name__ == "__main__":
    serve(lambda job: run(Job(**{name: job[name] for name in job if name != "seeds"}), job["seeds"]))
