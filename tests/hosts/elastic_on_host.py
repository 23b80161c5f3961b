"""A member of an elastic job on several hosts: `elastic_on_host.py FOLDER NAME STAGE STEPS LEAF_MS`.

Writes a line for every step that it has applied to FOLDER/steps-NAME-<pid>, and what its model has become to
FOLDER/result-NAME-<pid>. At stages of ZeRO all ranks save into FOLDER/saved after every tenth step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))

import churn
import ringdp
import torch.distributed as dist

SAVE_EVERY = 10


def main(folder: Path, name: str, stage: int, steps: int, leaf_ms: float) -> None:
    """Trains churn's network."""
    ddp, optimizer = churn.wrapped("float32", stage)
    own = f"{name}-{os.getpid()}"
    said = (folder / f"steps-{own}").open("w")

    def note(step: int) -> None:
        print(json.dumps([step, time.monotonic(), dist.get_world_size()]), file=said, flush=True)

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
    (folder / f"result-{own}").write_text(churn.hash_of(ddp, optimizer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:5]), float(sys.argv[5]))
