"""A member of an elastic job on several hosts: `elastic_on_host.py FOLDER NAME STAGE STEPS LEAF_MS`.

Writes a line for every step that it has applied to FOLDER/steps-NAME-<pid>, and what its model has become to
FOLDER/result-NAME-<pid>. At stages of ZeRO all ranks save into FOLDER/saved after every tenth step. At stage -1 workers
step alone, and meet after every fifth step; the lines are of meetings then.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))

import churn
import ringdp
import torch
import torch.distributed as dist
from ringdp.testing import one_process_local, parameters_hash

SAVE_EVERY = 10
ALONE = -1  # in the place of a stage
OF_LOCAL = {"workers": 8, "every": 5, "compress": "int8"}


def adamw(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def undisturbed_alone(steps: int) -> str:
    """Of one process that plays all workers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = churn.network(torch.float32)
    one_process_local(model, adamw, lambda m, worker, step: churn.loss_of(m, step, worker), steps=steps, **OF_LOCAL)
    torch.set_num_threads(threads)
    return parameters_hash(model)


def main(folder: Path, name: str, stage: int, steps: int, leaf_ms: float) -> None:
    """Trains churn's network."""
    own = f"{name}-{os.getpid()}"
    said = (folder / f"steps-{own}").open("w")

    def note(step: int) -> None:
        print(json.dumps([step, time.monotonic(), dist.get_world_size()]), file=said, flush=True)

    train = train_alone if stage == ALONE else train_together
    (folder / f"result-{own}").write_text(train(folder, note, stage, steps, leaf_ms))
    dist.destroy_process_group()


def train_alone(folder: Path, note: Callable[[int], None], stage: int, steps: int, leaf_ms: float) -> str:
    """Workers that meet; the hash of the outer parameters."""
    torch.set_num_threads(1)
    dist.init_process_group("ringdp")
    model = churn.network(torch.float32)
    local = ringdp.DiLoCo(model, adamw, **OF_LOCAL)

    @ringdp.elastic.survive_local(local, copies=True, after=note)
    def train(step: int, workers: Sequence[int]) -> None:
        for worker in workers:
            with local.worker(worker):
                churn.loss_of(model, step, worker).backward()
            time.sleep(leaf_ms / 1000)

    train(steps)
    with local.outer():
        return parameters_hash(model)


def train_together(folder: Path, note: Callable[[int], None], stage: int, steps: int, leaf_ms: float) -> str:
    """Steps of micro-batches; the hash of parameters and the optimizer's state."""
    ddp, optimizer = churn.wrapped("float32", stage)

    def save(step: int) -> None:
        ringdp.checkpoint.save(folder / "saved", ddp, optimizer, extra=step)

    @ringdp.elastic.survive(
        model=ddp, optimizer=optimizer, after=note, save=save if stage else None, save_every=SAVE_EVERY
    )
    def train(step: int, leaves: Sequence[int]) -> None:
        for leaf in leaves:
            with ringdp.leaf(step, leaf):
                churn.loss_of(ddp, step, leaf).backward()
            time.sleep(leaf_ms / 1000)

    train(steps)
    return churn.hash_of(ddp, optimizer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:5]), float(sys.argv[5]))
