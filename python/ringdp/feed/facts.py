"""What a DataLoader or a sampler says of itself: enough to tell padding that is meant from samples seen twice."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Sized
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset
from torch.utils.data.distributed import DistributedSampler


def innermost(source: Any) -> Any:
    """The sampler that chooses samples: below batch samplers and what wraps them. None for a fixed list of batches."""
    sampler = source
    if isinstance(source, DataLoader):
        sampler = source.batch_sampler if source.batch_sampler is not None else source.sampler
    for _ in range(8):  # deeper than anyone nests them; a sampler that names itself ends too
        below = next((getattr(sampler, name) for name in ("sampler", "batch_sampler") if hasattr(sampler, name)), None)
        if below is None or below is sampler:
            break
        sampler = below
    return None if isinstance(sampler, Sequence) else sampler


def describe(source: Any) -> dict[str, Any]:
    """A loader's or a sampler's facts, as a record.

    length: samples of its data set, None where unknown. part: a digest of the Subset it is, '' for a whole data set.
    replicas, sampler_rank, seed, shuffle: of a DistributedSampler, None for others. pads: whether it repeats samples
    to make ranks even; None where nobody here knows.
    """
    is_loader = isinstance(source, DataLoader)
    sampler = innermost(source)
    dataset = source.dataset if is_loader else _dataset_of(sampler)
    sharded = isinstance(sampler, DistributedSampler)
    return {
        "dataset": "-" if dataset is None else type(dataset).__name__,
        "length": _length(dataset),
        "part": part_of(dataset),
        "hidden": isinstance(dataset, IterableDataset),
        "sampler": "fixed batches" if sampler is None else type(sampler).__name__,
        "batch_size": _batch_size(source),
        "drop_last": bool(getattr(source, "drop_last", False)),
        "replacement": _replaces(sampler),
        "replicas": sampler.num_replicas if sharded else None,
        "sampler_rank": sampler.rank if sharded else None,
        "seed": sampler.seed if sharded else None,
        "shuffle": sampler.shuffle if sharded else None,
        "pads": not sampler.drop_last if sharded else _never_pads(sampler),
    }


def sampler_epoch(source: Any) -> int | None:
    """What set_epoch() was given last; None where the sampler has none."""
    epoch = getattr(innermost(source), "epoch", None)
    return epoch if isinstance(epoch, int) else None


def base_indices(dataset: Any, indices: list[Any]) -> list[Any]:
    """Indices into the data set below Subsets: ranks that each have a Subset of their own can then be compared."""
    while isinstance(dataset, Subset):
        indices = [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    return indices


def part_of(dataset: Any) -> str:
    """Equal for Subsets of the same samples in the same order."""
    if not isinstance(dataset, Subset):
        return ""
    text = ",".join(map(str, base_indices(dataset, list(range(len(dataset))))))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _dataset_of(sampler: Any) -> Any:
    return next((getattr(sampler, name) for name in ("dataset", "data_source") if hasattr(sampler, name)), None)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset) if isinstance(dataset, Sized) else None
    except (TypeError, NotImplementedError):
        return None


def _batch_size(source: Any) -> int | None:
    size = getattr(source, "batch_size", None)
    if size is None and isinstance(source, DataLoader):
        size = getattr(source.batch_sampler, "batch_size", None)
    return size


def _never_pads(sampler: Any) -> bool | None:
    return False if type(sampler) in (RandomSampler, SequentialSampler) else None


def _replaces(sampler: Any) -> bool:
    """Whether it draws with replacement. WeightedRandomSampler does by default, RandomSampler on request."""
    return bool(getattr(sampler, "replacement", False))
