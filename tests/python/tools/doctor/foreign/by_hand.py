"""In the manner of PyTorch's "Writing Distributed Applications": no wrapper, gradients averaged by the script."""

from __future__ import annotations

import os
import sys
import time
from random import Random

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn import functional as F


class DataPartitioner:
    def __init__(self, size, parts, seed=1234):
        indexes = list(range(size))
        Random(seed).shuffle(indexes)
        part = size // parts
        self.partitions = [indexes[part * i : part * (i + 1)] for i in range(parts)]

    def use(self, partition):
        return self.partitions[partition]


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


def run(rank, size):
    torch.manual_seed(1234)
    data, labels = torch.randn(256, 10), torch.randint(0, 4, (256,))
    mine = DataPartitioner(256, size).use(rank)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for epoch in range(10):
        epoch_loss = 0.0
        for begin in range(0, len(mine), 16):
            index = mine[begin : begin + 16]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data[index]), labels[index])
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        print(f"Rank {rank}, epoch {epoch}: {epoch_loss:.4f} at {time.strftime('%X')}")


if __name__ == "__main__":
    dist.init_process_group(sys.argv[1])
    run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    dist.destroy_process_group()
