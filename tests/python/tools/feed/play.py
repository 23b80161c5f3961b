"""Ranks played one after the other in this process: real loaders and samplers, drawn through the real hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from ringdp.tools.attach.finding import Finding
from ringdp.tools.attach.records import RankRecords
from ringdp.tools.feed.draws import Feed, feeds_of
from ringdp.tools.feed.exchange import records_of
from ringdp.tools.feed.hooks import Watcher, unwatch, watch
from ringdp.tools.feed.judge import Report, judge
from ringdp.tools.feed.recorder import Recorder
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def numbered(length: int = 64) -> TensorDataset:
    """Sample i is the numbers i and i % 10."""
    return TensorDataset(torch.arange(float(length)), torch.arange(length) % 10)


@contextmanager
def watching(watcher: Watcher, *samplers: type) -> Iterator[None]:
    """Loaders, and samplers of these classes, are watched while it lasts."""
    watch(watcher, *samplers)
    try:
        yield
    finally:
        unwatch(watcher)


def played(draw_as: Callable[[int], object], world: int) -> dict[int, list[dict[str, Any]]]:
    """draw_as(rank) iterates what that rank would; the records by rank."""
    rows: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(world)}
    for rank in range(world):
        watcher = Watcher(Recorder(rows[rank].append), lambda source: True)
        with watching(watcher, DistributedSampler):
            draw_as(rank)
        assert not watcher.failed
    return rows


def ranks_of(draw_as: Callable[[int], object], world: int) -> dict[int, RankRecords]:
    """The same as rank 0 reads them."""
    return records_by_rank(played(draw_as, world))


def records_by_rank(rows: dict[int, list[dict[str, Any]]]) -> dict[int, RankRecords]:
    """Of a job of so many ranks."""
    return {rank: records_of(rank, len(rows), own) for rank, own in rows.items()}


def feed_of(ranks: dict[int, RankRecords]) -> Feed:
    """The one loader that they have drawn from, trained with or not."""
    (feed,) = feeds_of(ranks, only_training=False)
    return feed


def judged(draw_as: Callable[[int], object], world: int) -> Report:
    """The report on it."""
    return judge(ranks_of(draw_as, world), only_training=False)


def epochs_of(
    loader: Any, epochs: int = 1, steps: int | None = None, *, told: bool = True, trained: bool = True
) -> None:
    """Draws, a backward pass after each; `steps` ends each epoch early; told=False forgets set_epoch()."""
    for epoch in range(epochs):
        if told and isinstance(getattr(loader, "sampler", None), DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for step, _ in enumerate(loader):
            if trained:
                torch.ones(1, requires_grad=True).sum().backward()
            if step + 1 == steps:
                break


def sharded(dataset: Dataset[Any], rank: int, world: int, batch: int = 8, **options: Any) -> DataLoader[Any]:
    """As it should be done."""
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=world, rank=rank, **options)
    return DataLoader(dataset, batch_size=batch, sampler=sampler)


def shuffled(dataset: Dataset[Any], seed: int, batch: int = 8) -> DataLoader[Any]:
    """A plain DataLoader."""
    return DataLoader(dataset, batch_size=batch, shuffle=True, generator=torch.Generator().manual_seed(seed))


def fixed(dataset: Dataset[Any], batches: Iterable[list[int]]) -> DataLoader[Any]:
    """Exactly these batches."""
    return DataLoader(dataset, batch_sampler=list(batches))


def checks(report: Report) -> list[str]:
    """The names of what was found."""
    return [finding.check for finding in report.findings]


def only(report: Report, check: str) -> Finding:
    """The one finding of this name."""
    (finding,) = [finding for finding in report.findings if finding.check == check]
    return finding
