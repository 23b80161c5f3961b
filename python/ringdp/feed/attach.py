"""In a rank of `ringdp audit`: every DataLoader and DistributedSampler of the process is written down."""

from __future__ import annotations

import atexit
from typing import Any

from torch.utils.data.distributed import DistributedSampler

from ringdp.feed.hooks import Watcher, watch
from ringdp.feed.recorder import Recorder, Sink


def attach(write: Sink, options: dict[str, Any]) -> Recorder:
    """For the life of the process. options: `epochs`, how many of each loader are written down."""
    recorder = Recorder(write, options["epochs"])
    watch(Watcher(recorder, lambda source: True), DistributedSampler)
    atexit.register(recorder.note_cost)
    return recorder
