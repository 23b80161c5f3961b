"""On a rank: the default group of one backend, and a model and batches that every run makes alike."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from ranks import HERE

WIDTH = 16
STEPS = 3
_numbers = itertools.count()  # every rank makes the same groups one after the other


@contextmanager
def default_group(backend: str) -> Iterator[None]:
    """init_process_group and its end. Whoever asks later finds this backend, by its own name."""
    served = dist.TCPStore("127.0.0.1", HERE.port, is_master=False, timeout=timedelta(seconds=30))
    store = dist.PrefixStore(f"group {next(_numbers)}", served)
    dist.init_process_group(backend, store=store, rank=HERE.rank, world_size=HERE.size, timeout=timedelta(seconds=60))
    try:
        assert dist.get_backend() == backend
        yield
    finally:
        dist.destroy_process_group()


def mlp() -> torch.nn.Sequential:
    """The same weights on every rank."""
    torch.manual_seed(1)
    linear = torch.nn.Linear
    return torch.nn.Sequential(linear(WIDTH, 2 * WIDTH), torch.nn.ReLU(), linear(2 * WIDTH, WIDTH))


def batch(rank: int, step: int) -> torch.Tensor:
    """A rank's inputs of one step."""
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int = STEPS) -> list[float]:
    """A few steps of learning zero; the losses."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(batch(rank, step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
