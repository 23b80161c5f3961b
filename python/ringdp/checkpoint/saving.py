"""Saving: every rank offers what it holds, each element is written by one rank, one rename makes it a checkpoint."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ringdp.checkpoint.background import Pending
from ringdp.checkpoint.block_writer import INDEX, Written, write_blocks, write_index
from ringdp.checkpoint.draft import Draft, draft
from ringdp.checkpoint.holder import HasHolder, Holder
from ringdp.checkpoint.manifest import Manifest
from ringdp.checkpoint.ranks import Ranks, ranks_of
from ringdp.checkpoint.shelf import Slot
from ringdp.checkpoint.twin import twin_of

Folder = str | os.PathLike[str]


def save(
    folder: Folder,
    model: nn.Module | Holder,
    optimizer: Optimizer | HasHolder | Holder | None = None,
    *,
    extra: Any = None,
    group: dist.ProcessGroup | None = None,
    keep: int | None = 2,
) -> Path:
    """Collective: writes `folder`/checkpoint-NNNNNN and removes all but the `keep` latest (None: none); its path.

    extra: any small value of this rank - loader position, schedulers' state_dict(), the step - which `load` gives back.
    Raises CheckpointError on every rank, naming the rank that failed; the checkpoints before it stay as they are.
    """
    ranks = ranks_of(group)
    return _finish(draft(Path(folder), model, optimizer, extra, keep, ranks), ranks)


def save_async(
    folder: Folder,
    model: nn.Module | Holder,
    optimizer: Optimizer | HasHolder | Holder | None = None,
    *,
    extra: Any = None,
    group: dist.ProcessGroup | None = None,
    keep: int | None = 2,
) -> Pending:
    """Collective: as `save`, but returns when what this rank writes has been copied; a thread does the rest.

    Errors of the thread are raised by `wait()` of the result, or else by the next save, which waits for this one.
    """
    ranks = ranks_of(group)
    agreed = draft(Path(folder), model, optimizer, extra, keep, ranks)
    snapshot = ranks.keep("copying what is to be saved", agreed.copy)
    twin = twin_of(ranks)
    return Pending(lambda: _finish(snapshot, twin))


def _finish(agreed: Draft, ranks: Ranks) -> Path:
    """Collective: writes, and makes it a checkpoint when all have written."""
    slot: Slot | None = None

    def begin() -> Path:
        nonlocal slot
        slot = Slot(agreed.folder)
        return slot.unfinished

    def commit(everyones: Sequence[Written]) -> Path:
        assert slot is not None
        write_index(slot.unfinished, everyones)
        _manifest(agreed, slot.unfinished, everyones).write(slot.unfinished)
        return slot.commit(agreed.keep)

    try:
        unfinished = ranks.on_first("saving a checkpoint", begin)
        written = ranks.agree("writing a checkpoint", lambda: write_blocks(unfinished, ranks.rank, agreed.blocks))
        return ranks.on_first("completing a checkpoint", lambda: commit(written))
    finally:
        if slot is not None:
            slot.close()


def _manifest(agreed: Draft, folder: Path, everyones: Sequence[Written]) -> Manifest:
    index = (folder / INDEX).read_bytes()
    files = {name: length for written in everyones for name, length in written.files.items()}
    return Manifest(
        hashes={stretch: digest for written in everyones for stretch, digest in written.hashes.items()},
        specs=agreed.specs,
        files={**files, INDEX: len(index)},
        index_sha256=hashlib.sha256(index).hexdigest(),
        settings=agreed.settings,
        extras=agreed.extras,
        rng=agreed.rng,
    )
