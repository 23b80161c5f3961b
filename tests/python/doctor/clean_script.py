"""A training script without a fault; tests plant theirs by replacing lines. clean_script.py stock|ringdp BACKEND."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WRAPPER, BACKEND = sys.argv[1:3]
EPOCHS, BATCH, WIDTH, LR = 100, 8, 64, 0.02


class Net(torch.nn.Module):
    """Two layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)
        self.drop = torch.nn.Dropout(0.1)
        self.head = torch.nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of 4 classes."""
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        return self.head(self.drop(x))


def wrapped(model: torch.nn.Module) -> torch.nn.Module:
    """By torch's class or by ringdp's."""
    if WRAPPER == "stock":
        return torch.nn.parallel.DistributedDataParallel(model)
    import ringdp

    return ringdp.DistributedDataParallel(model)


def main() -> None:
    """Trains until it is done or stopped."""
    dist.init_process_group(BACKEND)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 16), torch.randint(4, (160,)))
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = wrapped(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    torch.manual_seed(1 + rank)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    dist.barrier()
    print(f"rank {rank} of {world} is done {os.getpid()} {time.time()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
