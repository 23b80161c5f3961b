"""Loading: every rank reads and verifies all it needs; when all ranks have done so, the running state is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ringdp.checkpoint import rng as generators
from ringdp.checkpoint.background import join_latest
from ringdp.checkpoint.blocks import read_pieces, whole_of
from ringdp.checkpoint.directory import find
from ringdp.checkpoint.holder import HasHolder, Holder
from ringdp.checkpoint.holders import holder_of
from ringdp.checkpoint.manifest import Manifest, read_manifest
from ringdp.checkpoint.piece import CheckpointError, Piece, reading
from ringdp.checkpoint.plain import decode
from ringdp.checkpoint.ranks import Ranks, ranks_of
from ringdp.checkpoint.saving import Folder
from ringdp.text.units import counted


@dataclass(frozen=True)
class Loaded:
    """The folder that was loaded, and the `extra` of every rank that saved, in rank order.

    rank, size: of the ranks that have loaded. alike: whether all saving ranks handed in the same.
    """

    path: Path
    extras: list[Any]
    rank: int
    size: int
    alike: bool

    @property
    def extra(self) -> Any:
        """This rank's own `extra` if as many ranks load as saved; otherwise the value that all ranks have saved.

        Raises CheckpointError when the number differs and the values do too: choose from `extras`.
        """
        if len(self.extras) == self.size:
            return self.extras[self.rank]
        if not self.alike:
            raise CheckpointError(
                f"{self.path} was saved by {counted(len(self.extras), 'rank')} with different `extra`, and "
                f"{self.size} load it: choose from .extras"
            )
        return self.extras[0]


@dataclass(frozen=True)
class _Verified:
    """All that this rank needs of a checkpoint, read and verified."""

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
    verified = ranks.keep(
        "loading a checkpoint", lambda: _verify(path, holder_of(model, optimizer, ranks.rank), allow_pickle)
    )
    _check_same(path, verified.manifest, ranks)
    ranks.agree("taking over a checkpoint (the state is torn: load again)", lambda: _take_over(verified, ranks, rng))
    stored = verified.manifest.extras
    return Loaded(path, verified.extras, ranks.rank, ranks.size, alike=all(each == stored[0] for each in stored))


def _verify(path: Path, holder: Holder, allow_pickle: bool) -> _Verified:
    with reading(path):
        manifest = read_manifest(path)
        settings = decode(manifest.settings)
        extras = [decode(extra, allow_pickle=allow_pickle) for extra in manifest.extras]
    try:
        wanted = list(holder.wants(manifest.specs, settings))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    with reading(path):
        return _Verified(manifest, holder, read_pieces(path, manifest, wanted), settings, extras)


def _check_same(path: Path, manifest: Manifest, ranks: Ranks) -> None:
    """Every save has a different index, so its hash tells whether all ranks see the same folder."""
    seen = ranks.agree("loading a checkpoint", lambda: manifest.index_sha256)
    for rank, digest in enumerate(seen):
        if digest != seen[0]:
            raise CheckpointError(
                f"rank {rank} finds another checkpoint at {path} than rank 0: "
                "the folder must be on a file system that all ranks share"
            )


def _take_over(verified: _Verified, ranks: Ranks, rng: bool) -> None:
    verified.holder.adopt(verified.pieces, verified.settings)
    if rng:
        generators.resume(verified.manifest.rng, ranks.rank, ranks.size)


@dataclass(frozen=True)
class Contents:
    """tensors["exp_avg"]["layer.weight"] is a whole tensor; settings as holder.py describes; `extra` by rank."""

    path: Path
    tensors: dict[str, dict[str, Tensor]]
    settings: dict[str, Any]
    extras: list[Any]


def read(folder: Folder, *, tensors: bool = True, allow_pickle: bool = False) -> Contents:
    """The latest checkpoint in `folder`, or the one that `folder` is, every hash compared. Not collective.

    tensors: False reads settings and extras only.
    A plain module takes them by load_state_dict({**tensors["parameter"], **tensors.get("buffer", {})}).
    """
    join_latest()
    path = find(Path(folder).absolute())
    with reading(path):
        manifest = read_manifest(path)
        found: dict[str, dict[str, Tensor]] = {}
        for piece in read_pieces(path, manifest, whole_of(manifest.specs)) if tensors else ():
            found.setdefault(piece.kind, {})[piece.name] = piece.tensor.view(piece.shape)
        extras = [decode(extra, allow_pickle=allow_pickle) for extra in manifest.extras]
        return Contents(path, found, decode(manifest.settings), extras)
