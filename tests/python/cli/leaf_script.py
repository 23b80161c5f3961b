"""A small training script with micro-batches, as users write them: leaf_script.py HOW [FAULT].

HOW: loader (a DataLoader draws) or indices (the script asks which samples a leaf has). FAULT: see train().
"""

from __future__ import annotations

import sys

import ringdp
import torch
import torch.distributed as dist
from ringdp.elastic import Leaves
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, MICRO_BATCHES, EPOCHS = 52, 8, 2


def train(how: str, fault: str = "", micro_batches: int = MICRO_BATCHES) -> None:
    """Two epochs. The faults are those of rank 1, or of all ranks ("again", "forgotten", "clipped")."""
    rank = dist.get_rank()
    bad = fault if rank == 1 else ""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, 4))
    leaves = Leaves(
        SAMPLES,
        micro_batch=2,
        micro_batches=micro_batches,
        seed=5 if bad == "order" else 0,
        remainder="carry" if fault in ("", "carried") else "drop",
        rank=0 if bad == "rank" else None,
    )
    ddp = ringdp.DistributedDataParallel(torch.nn.Linear(4, 2), micro_batches=micro_batches)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    loader = DataLoader(data, batch_sampler=leaves)
    mine = leaves.mine()
    if bad == "missing":
        mine = mine[1:]
    elif bad == "twice":
        mine = [0, *mine]
    elif bad == "swapped":
        mine = mine[::-1]
    for epoch in range(EPOCHS):
        if fault != "forgotten" and bad != "stale":
            leaves.set_epoch(epoch)
        batches = iter(loader) if how == "loader" else iter(())
        for step in range(leaves.steps(epoch)):
            number = step if fault == "again" else leaves.first_step(epoch) + step
            for place, leaf in enumerate(mine):
                if how == "loader":
                    (x,) = next(batches)
                else:
                    asked = leaves.mine()[place % len(leaves.mine())] if bad == "swapped" else leaf
                    (x,) = data[leaves.indices(leaves.epoch, step, asked)]
                with ringdp.leaf(number, leaf, seed=7 if bad == "seed" else 0):
                    ddp(x).square().mean().backward()
            if fault == "clipped":
                ddp.finish_step()
                ringdp.clip_grad_norm_(ddp.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        next(batches, None)  # as a for loop does


if __name__ == "__main__":
    dist.init_process_group("ringdp")
    train(*sys.argv[1:])
    dist.destroy_process_group()
