"""Micro-batches of one rank: a stock DistributedSampler, shuffled anew every epoch, started at any step."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Feed:
    """Endless micro-batches [batch, length + 1] of one rank; each is a pure function of its step."""

    def __init__(self, windows: Dataset[Tensor], batch: int, rank: int, world: int, seed: int) -> None:
        self._windows = windows
        self._sampler: DistributedSampler[Tensor] = DistributedSampler(
            windows, num_replicas=world, rank=rank, shuffle=True, seed=seed, drop_last=True
        )
        self._batches = BatchSampler(self._sampler, batch, drop_last=True)
        if len(self._batches) == 0:
            raise ValueError(
                f"{len(windows)} training sequences are not one batch of {batch} for each of {world} ranks: "  # type: ignore[arg-type]
                "take a smaller --batch, a shorter --seq or more text"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Steps until every sequence was seen once, but for a rest that fills no batch on every rank."""
        return len(self._batches)

    def starting_at(self, step: int) -> Iterator[Tensor]:
        """The micro-batches of `step`, `step` + 1, ... without end."""
        epoch, done = divmod(step, self.steps_per_epoch)
        while True:
            self._sampler.set_epoch(epoch)
            # The loader draws a seed when iterated; its own generator keeps that out of the RNG dropout uses.
            yield from DataLoader(self._windows, batch_sampler=list(self._batches)[done:], generator=torch.Generator())
            epoch, done = epoch + 1, 0
