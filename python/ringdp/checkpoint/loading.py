"""Loading: every rank reads and proves all it needs; only when all ranks have, the running state is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ringdp.checkpoint import rng as generators
from ringdp.checkpoint.background import join_latest
from ringdp.checkpoint.block_reader import read_pieces
from ringdp.checkpoint.combined import holder_of
from ringdp.checkpoint.errors import CheckpointError, reading
from ringdp.checkpoint.holder import HasHolder, Holder
from ringdp.checkpoint.manifest import Manifest, read_manifest
from ringdp.checkpoint.piece import Piece
from ringdp.checkpoint.plain import decode
from ringdp.checkpoint.ranks import Ranks, ranks_of
from ringdp.checkpoint.saving import Folder
from ringdp.checkpoint.shelf import find


@dataclass(frozen=True)
class Loaded:
    """Where the state came from, and what was handed in as `extra` by every rank that saved, in rank order.

    rank, size: of the ranks that have loaded. alike: whether all saving ranks handed in the same.
    """

    path: Path
    extras: list[Any]
    rank: int
    size: int
    alike: bool

    @property
    def extra(self) -> Any:
        """This rank's own, when as many ranks load as saved; else what all had saved alike.

        Raises CheckpointError when the number differs and the values do too: choose from `extras`.
        """
        if len(self.extras) == self.size:
            return self.extras[self.rank]
        if not self.alike:
            raise CheckpointError(
                f"{self.path} was saved by {len(self.extras)} ranks with different `extra`, and {self.size} load it: "
                "choose from .extras"
            )
        return self.extras[0]


@dataclass(frozen=True)
class _Proven:
    """All that a rank needs, read and verified."""

    manifest: Manifest
    holder: Holder
    pieces: list[Piece]
    settings: Mapping[str, Any]
    extras: list[Any]


def load(
    folder: Folder,
    model: nn.Module | Holder,
    optimizer: Optimizer | HasHolder | Holder | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    rng: bool = True,
    allow_pickle: bool = False,
) -> Loaded:
    """Collective: the latest checkpoint in `folder`, or the one that `folder` is, into the model and optimizer.

    Any number of ranks and any layout of shards may load what any other has saved; no bit changes. Without `optimizer`
    only parameters and buffers are loaded. rng: take up every rank's random number generators (rng.py says how when the
    number of ranks is another). Needs memory for a second copy of what this rank holds.
    Raises CheckpointError on every rank, naming the file, before anything has changed.
    """
    ranks = ranks_of(group)

    def choose() -> Path:
        join_latest()
        return find(Path(folder).absolute())

    path = ranks.on_first("loading a checkpoint", choose)
    proven = ranks.keep(
        "loading a checkpoint", lambda: _prove(path, holder_of(model, optimizer, ranks.rank), allow_pickle)
    )
    _check_same(path, proven.manifest, ranks)
    ranks.agree("taking over a checkpoint (the state is torn: load again)", lambda: _take_over(proven, ranks, rng))
    stored = proven.manifest.extras
    return Loaded(path, proven.extras, ranks.rank, ranks.size, alike=all(each == stored[0] for each in stored))


def _prove(path: Path, holder: Holder, allow_pickle: bool) -> _Proven:
    with reading(path):
        manifest = read_manifest(path)
        settings = decode(manifest.settings)
        extras = [decode(extra, allow_pickle=allow_pickle) for extra in manifest.extras]
    try:
        wanted = list(holder.wants(manifest.specs, settings))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    with reading(path):
        return _Proven(manifest, holder, read_pieces(path, manifest, wanted), settings, extras)


def _check_same(path: Path, manifest: Manifest, ranks: Ranks) -> None:
    """The index of every save is another one, so its hash tells whether all ranks see the same folder."""
    seen = ranks.agree("loading a checkpoint", lambda: manifest.index_sha256)
    for rank, digest in enumerate(seen):
        if digest != seen[0]:
            raise CheckpointError(
                f"rank {rank} finds another checkpoint at {path} than rank 0: "
                "the folder must be on a file system that all ranks share"
            )


def _take_over(proven: _Proven, ranks: Ranks, rng: bool) -> None:
    proven.holder.adopt(proven.pieces, proven.settings)
    if rng:
        generators.resume(proven.manifest.rng, ranks.rank, ranks.size)
