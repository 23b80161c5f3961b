"""Where micro-batches (leaves) are seen: from the first wrapper with `micro_batches=M` on, steps and their leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ringdp.tools.attach.patches import Patches
from ringdp.tools.feed.leaf_recorder import LeafRecorder
from ringdp.tools.feed.recorder import Sink


class LeafHooks:
    """Of one process. by_loader(): whether a watched loader asks its sampler now. tell(): calls, whatever fails."""

    def __init__(self, write: Sink, by_loader: Callable[[], bool]) -> None:
        self._recorder = LeafRecorder(write)
        self._by_loader = by_loader
        self._is_watching = False

    def install(self, patches: Patches, tell: Callable[..., Any]) -> None:
        """Wrappers are looked at that are made from now on; what they need is loaded by then."""
        self._patches, self._tell = patches, tell
        patches.around(DistributedDataParallel, "__init__", self._init)

    def drawn(self, loader: Any, number: int) -> None:
        """See LeafRecorder."""
        if self._is_watching:
            self._recorder.drawn(loader, number)

    def _init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            self._tell(self._made, wrapper)

        return __init__

    def _made(self, wrapper: Any) -> None:
        number = getattr(getattr(wrapper, "_modes", None), "micro_batches", None)
        if number is None:
            return
        if self._is_watching:
            known = self._recorder.micro_batches
            self._recorder.micro_batches = number if known == number else None
            return
        self._is_watching, self._recorder.micro_batches = True, number
        self._patches.around(sys.modules["ringdp.elastic.leaf"].Running, "end", self._end)
        self._patches.around(sys.modules["ringdp.elastic.leaves"].Leaves, "indices", self._indices)
        self._patches.around(sys.modules["ringdp.ddp.leaf_steps"].LeafSteps, "finish", self._finish)

    def _end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end(leaf: Any) -> None:
            original(leaf)
            if leaf.parts:  # of a wrapper
                self._tell(self._recorder.end, leaf)

        return end

    def _indices(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def indices(leaves: Any, epoch: int, step: int, leaf: int) -> Any:
            found = original(leaves, epoch, step, leaf)
            if not self._by_loader():
                self._tell(self._recorder.asked, leaves, epoch, step, leaf)
            return found

        return indices

    def _finish(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def finish(steps: Any, *, keep: bool = False) -> None:
            self._tell(self._recorder.over)  # first: it raises where a leaf is missing
            original(steps, keep=keep)

        return finish
