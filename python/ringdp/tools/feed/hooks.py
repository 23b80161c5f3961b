"""Where draws are seen: DataLoader iterators and samplers tell their watchers, and nothing else about them changes."""

from __future__ import annotations

import atexit
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as _dataloader
from torch.utils.data.distributed import DistributedSampler

from ringdp.tools.attach.patches import Patches
from ringdp.tools.feed.leaf_hooks import LeafHooks
from ringdp.tools.feed.recorder import Epoch, Recorder, Sink

_Iterator = _dataloader._BaseDataLoaderIter
_DRAWN, _EPOCHS = "_ringdp_drawn", "_ringdp_epochs"


class AuditError(RuntimeError):
    """The data feed has a problem, and the audit was asked to fail."""


@dataclass(eq=False)
class Watcher:
    """wanted(source): whether this loader or sampler is the recorder's.

    A failure in a recorder is reported once and ends the watching, never the training. An AuditError goes through.
    """

    recorder: Recorder
    wanted: Callable[[Any], bool]
    failed: bool = False

    def tell(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls one of the recorder's functions; None when it fails."""
        if self.failed:
            return None
        try:
            return function(*args)
        except AuditError:
            raise
        except Exception as error:  # an unforeseen kind of data set must not stop a training
            self.failed = True
            warnings.warn(f"ringdp stops watching the data feed: {error!r}", RuntimeWarning, stacklevel=3)
            return None


_watchers: list[Watcher] = []
_patches = Patches()
_sampler_classes: set[type] = set()
_see_loader: tuple[Watcher, ...] = ()  # watchers of the DataLoader whose sampler is being iterated


def watch(watcher: Watcher, *sampler_classes: type) -> None:
    """From now on the watcher sees DataLoaders, backward passes, and samplers of these classes.

    The sampler inside a watched DataLoader is left out, since the loader reports the draws; one inside another
    DataLoader is reported whenever it is iterated.
    """
    if not _watchers:
        _patches.around(DataLoader, "__iter__", _loader_iter)
        _patches.around(_Iterator, "_next_index", _next_index)
        _patches.around(_Iterator, "__next__", _next)
        _patches.around(torch.autograd, "backward", _backward)
    for kind in sampler_classes:
        if kind not in _sampler_classes:
            _sampler_classes.add(kind)
            _patches.around(kind, "__iter__", _sampler_iter)
    _watchers.append(watcher)


def unwatch(watcher: Watcher) -> None:
    """Ends it; with the last one torch's functions are as they were."""
    if watcher in _watchers:
        _watchers.remove(watcher)
    if not _watchers:
        _patches.undo()
        _sampler_classes.clear()


def _begun(source: Any, told: Sequence[Watcher] = ()) -> list[tuple[Watcher, Epoch]]:
    epochs = [(w, w.tell(w.recorder.begin, source)) for w in _watchers if w.wanted(source) and w not in told]
    return [(watcher, epoch) for watcher, epoch in epochs if epoch is not None]


def _loader_iter(original: Callable[..., Any]) -> Callable[..., Any]:
    def __iter__(loader: Any) -> Any:
        kept = getattr(loader, "_iterator", None)  # persistent workers draw ahead before __iter__ returns
        if kept is not None:
            vars(kept)[_DRAWN] = deque()
        epochs = _begun(loader)
        with _seen_by(epochs):
            iterator = original(loader)  # which may ask the sampler ahead
        if isinstance(iterator, _Iterator):
            vars(iterator)[_EPOCHS] = epochs
        return iterator

    return __iter__


@contextmanager
def _seen_by(epochs: Sequence[tuple[Watcher, Epoch]]) -> Iterator[None]:
    global _see_loader
    outer = _see_loader
    _see_loader = (*outer, *(watcher for watcher, _ in epochs))
    try:
        yield
    finally:
        _see_loader = outer


def _next_index(original: Callable[..., Any]) -> Callable[..., Any]:
    def _next_index(iterator: Any) -> Any:
        with _seen_by(vars(iterator).get(_EPOCHS, ())):
            index = original(iterator)
        vars(iterator).setdefault(_DRAWN, deque()).append(index)
        return index

    return _next_index


def _next(original: Callable[..., Any]) -> Callable[..., Any]:
    def __next__(iterator: Any) -> Any:
        epochs = vars(iterator).get(_EPOCHS, ())
        try:
            data = original(iterator)
        except StopIteration:
            for watcher, epoch in epochs:
                watcher.tell(watcher.recorder.end, epoch)
            raise
        drawn = vars(iterator).get(_DRAWN)
        indices = drawn.popleft() if drawn else None
        if not getattr(iterator, "_in_order", True):  # workers hand out what is ready, in an order that is not known
            indices = None
        for watcher, epoch in epochs:
            watcher.tell(watcher.recorder.draw, epoch, indices, data)
        return data

    return __next__


def _sampler_iter(original: Callable[..., Any]) -> Callable[..., Any]:
    def __iter__(sampler: Any) -> Iterator[Any]:
        indices = original(sampler)
        epochs = _begun(sampler, _see_loader)
        return _watched(epochs, indices) if epochs else indices

    return __iter__


def _watched(epochs: list[tuple[Watcher, Epoch]], indices: Iterator[Any]) -> Iterator[Any]:
    for index in indices:
        for watcher, epoch in epochs:
            watcher.tell(watcher.recorder.draw, epoch, index)
        yield index
    for watcher, epoch in epochs:
        watcher.tell(watcher.recorder.end, epoch)


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward(*args: Any, **kwargs: Any) -> Any:
        for watcher in _watchers:
            watcher.tell(watcher.recorder.backward)
        return original(*args, **kwargs)

    return backward


def watch_everything(write: Sink, epochs: int) -> Watcher:
    """All loaders, DistributedSamplers and steps of micro-batches; so many epochs of each loader are written down."""
    leaves = LeafHooks(write, lambda: bool(_see_loader))
    watcher = Watcher(Recorder(write, epochs, at_draw=leaves.drawn), lambda source: True)
    watch(watcher, DistributedSampler)
    leaves.install(_patches, watcher.tell)
    return watcher


def attach(write: Sink, options: dict[str, Any]) -> Recorder:
    """Records until the process ends. options: `epochs`, how many of each loader are written down."""
    recorder = watch_everything(write, options["epochs"]).recorder
    atexit.register(recorder.note_cost)
    return recorder
