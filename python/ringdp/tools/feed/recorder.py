"""Records what one rank draws: which loader, which epoch, which samples, and the cost of recording.

Records by kind: loader (feed/facts.py), epoch, batch, trained (a backward pass came after a draw; weighted: by
the number of samples), end, cost. An iterator that is dropped after one batch, without a backward pass, was a look into
the loader: it does not count as an epoch, and nothing is written about it.
"""

from __future__ import annotations

import hashlib
import operator
import sys
import time
import weakref
import zlib
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset
from torch.utils.data.distributed import DistributedSampler

from ringdp.tools.feed.hashing import batch_size, is_label, sample_hashes


def innermost(source: Any) -> Any:
    """The sampler that chooses samples: below batch samplers and what wraps them. None for a fixed list of batches."""
    sampler = source
    if isinstance(source, DataLoader):
        sampler = source.batch_sampler if source.batch_sampler is not None else source.sampler
    for _ in range(8):  # deeper than they are ever nested; also ends for a sampler that contains itself
        below = next((getattr(sampler, name) for name in ("sampler", "batch_sampler") if hasattr(sampler, name)), None)
        if below is None or below is sampler:
            break
        sampler = below
    return None if isinstance(sampler, Sequence) else sampler


def describe(source: Any) -> dict[str, Any]:
    """A loader's or a sampler's facts, as a record.

    length: samples of its data set, None where unknown. part: a digest of the Subset it is, '' for a whole data set.
    replicas, sampler_rank, seed, shuffle: of a DistributedSampler, None for others. pads: whether it repeats samples
    to make ranks even; None where that is not known. leaves: settings of a ringdp.elastic.Leaves, and which
    micro-batches it deals to this rank; None for others.
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
        "leaves": {**settings_of(sampler), "mine": sampler.mine()} if is_leaves(sampler) else None,
    }


SETTINGS = ("dataset_len", "micro_batch", "micro_batches", "seed", "remainder")


def is_leaves(sampler: Any) -> bool:
    """Whether it is a ringdp.elastic.Leaves, whose module other jobs do not load."""
    known = sys.modules.get("ringdp.elastic.leaves")
    return known is not None and isinstance(sampler, known.Leaves)


def settings_of(leaves: Any) -> dict[str, Any]:
    """Of a ringdp.elastic.Leaves: what all ranks must agree on."""
    return {name: getattr(leaves, name) for name in SETTINGS}


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


HASHED_BATCHES = 8  # of an epoch whose indices are known; of later ones the samples that is_probe() names
_PROBES = 64
_COST_FROM = 8  # draws, and then whenever they have doubled

Sink = Callable[[dict[str, Any]], None]


def is_probe(index: Any) -> bool:
    """One index in 64, the same on all ranks: so what two of them draw under one index is hashed by both, or neither.

    Indices are scattered first: samplers divide them by residues.
    """
    try:
        number = operator.index(index)
    except TypeError:
        number = zlib.crc32(str(index).encode())
    return (number * 0x9E3779B1 & 0xFFFFFFFF) * _PROBES < 1 << 32


@dataclass
class Stream:
    """The epochs of one loader: also of several, each made for one epoch over the same data set."""

    number: int
    source: Any  # weak reference to the loader or sampler
    dataset: Any  # weak reference, or None
    hidden: bool
    epochs: int = 0


@dataclass
class Epoch:
    """An iterator that is being drawn. `batches` is how many it has had, `number` counts epochs from 0.

    `number` is None while it may still be a look into the loader; its records are held back until then.
    """

    stream: Stream
    dataset: Any
    number: int | None = None
    held: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    batches: int = 0
    trained: bool = False
    ended: bool = False


class Recorder:
    """The recorder of one process. `epochs`: how many of each loader are written down; None: all.

    `at_first_step` is called once in every epoch: before its first backward pass, at its second batch, or at its end;
    its time is not the recorder's. `at_draw` is told the loader or sampler of each draw with known indices,
    and its number in the epoch.
    """

    def __init__(
        self,
        sink: Sink,
        epochs: int | None = None,
        at_first_step: Callable[[], object] = lambda: None,
        at_draw: Callable[[Any, int], object] = lambda source, number: None,
    ) -> None:
        self._sink = sink
        self._epochs = epochs
        self._at_first_step = at_first_step
        self._at_draw = at_draw
        self._streams: list[Stream] = []
        self._latest: Epoch | None = None
        self._seconds = 0.0
        self._first = 0.0
        self._last = 0.0
        self._draws = 0

    def begin(self, source: Any) -> Epoch:
        """An iterator over this loader or sampler has been made."""
        start = time.perf_counter()
        self._first = self._first or start
        stream = self._stream_of(source)
        dataset = getattr(source, "dataset", None)
        epoch = Epoch(stream, dataset)
        self._note(epoch, "epoch", sampler_epoch=sampler_epoch(source))
        self._seconds += time.perf_counter() - start
        return epoch

    def draw(self, epoch: Epoch, indices: Any, data: Any = None) -> None:
        """A batch (or one sample) was handed out. indices: None where they are hidden. data: None to hash nothing."""
        start = time.perf_counter()
        self._latest = epoch
        if self._recorded(epoch):
            self._note(epoch, "batch", **self._batch(epoch, indices, data))
        if indices is not None:
            self._at_draw(epoch.stream.source(), epoch.batches)
        epoch.batches += 1
        self._draws += 1
        self._last = time.perf_counter()
        self._seconds += self._last - start
        if self._draws >= _COST_FROM and self._draws & (self._draws - 1) == 0:  # so that a killed job has one too
            self.note_cost()
        if epoch.batches == 2:
            self._count(epoch)

    def backward(self) -> None:
        """A backward pass begins: the loader that was drawn from last is one that trains."""
        epoch = self._latest
        if epoch and not epoch.trained:
            epoch.trained = True
            weights = sys.modules.get("ringdp.ddp.weights")
            self._note(epoch, "trained", weighted=bool(weights and weights.passes))
            self._count(epoch)

    def end(self, epoch: Epoch) -> None:
        """The iterator has come to its end."""
        if not epoch.ended:
            epoch.ended = True
            self._note(epoch, "end", batches=epoch.batches)
            self._count(epoch)
            self.note_cost()

    def note_cost(self) -> None:
        """Seconds spent in here, of those from the first iterator to the last draw; nothing without draws."""
        if not self._draws:
            return
        span = self._last - self._first
        self._sink({"kind": "cost", "seconds": self._seconds, "span": span, "draws": self._draws})

    def _count(self, epoch: Epoch) -> None:
        """It is an epoch, and no look into the loader."""
        if epoch.number is None:
            epoch.number, held, epoch.held = epoch.stream.epochs, epoch.held, []
            epoch.stream.epochs += 1
            for kind, row in held:
                self._note(epoch, kind, **row)
            self._at_first_step()

    def _recorded(self, epoch: Epoch) -> bool:
        number = epoch.stream.epochs if epoch.number is None else epoch.number
        return self._epochs is None or number < self._epochs

    def _note(self, epoch: Epoch, kind: str, **row: Any) -> None:
        if epoch.number is None:
            epoch.held.append((kind, row))
        elif self._recorded(epoch):
            self._sink({"kind": kind, "loader": epoch.stream.number, "epoch": epoch.number, **row})

    def _batch(self, epoch: Epoch, indices: Any, data: Any) -> dict[str, Any]:
        """`size`, `indices` (None: hidden), and hashes: `contents` of whole samples, `labels` of integers and text.

        `hashed`: the places of the batch that they are of; not there: all.
        """
        if indices is None or epoch.stream.hidden:
            size = batch_size(data)
            return {"size": size, "indices": None, "contents": sample_hashes(data, size)}
        listed = base_indices(epoch.dataset, indices if isinstance(indices, list) else [indices])
        size = len(listed)
        places = [place for place, index in enumerate(listed) if epoch.batches < HASHED_BATCHES or is_probe(index)]
        if data is None or not places:
            return {"size": size, "indices": listed}
        contents, labels = sample_hashes(data, size, places), sample_hashes(data, size, places, wanted=is_label)
        return {"size": size, "indices": listed, "hashed": places, "contents": contents, "labels": labels}

    def _stream_of(self, source: Any) -> Stream:
        for stream in self._streams:
            if stream.source() is source:
                return stream
        dataset = _weak(getattr(source, "dataset", None))
        for stream in self._streams:
            if stream.source() is None and stream.dataset() is not None and stream.dataset() is dataset():
                stream.source = weakref.ref(source)
                return stream
        described = describe(source)
        stream = Stream(len(self._streams), weakref.ref(source), dataset, described["hidden"])
        self._streams.append(stream)
        self._sink({"kind": "loader", "loader": stream.number, **described})
        return stream


def _weak(dataset: Any) -> Callable[[], Any]:
    """A weak reference, or one to nothing for types that have none, such as lists."""
    try:
        return weakref.ref(dataset)
    except TypeError:
        return lambda: None
