"""A small training script as users write them; it imports nothing of ringdp. watched_script.py FEED [STATUS].

FEED: good, stale (set_epoch forgotten) or plain (no DistributedSampler). It ends with STATUS.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main(feed: str) -> None:
    """Two epochs, each with a look at all samples afterwards, as for validation."""
    dist.init_process_group("ringdp")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.arange(64) % 2)
    sampler = None if feed == "plain" else DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, shuffle=sampler is None)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        if feed == "good":
            sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        for x, _ in DataLoader(data, batch_size=32):
            model.module(x)
    print(f"rank {dist.get_rank()} is done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
    sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
