"""What ranks agree on before a byte is written: who has what, who writes what, and that they mean the same save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ringdp.checkpoint import rng
from ringdp.checkpoint.background import settle
from ringdp.checkpoint.block_writer import blocks_of
from ringdp.checkpoint.combined import holder_of
from ringdp.checkpoint.errors import CheckpointError
from ringdp.checkpoint.groups import merged
from ringdp.checkpoint.holder import HasHolder, Holder
from ringdp.checkpoint.piece import Piece, Spec, Stretch
from ringdp.checkpoint.plain import encode
from ringdp.checkpoint.ranks import Ranks
from ringdp.checkpoint.share import share, specs_of

_BRIEF = 200


@dataclass(frozen=True)
class _Offer:
    """What a rank tells the others before a save."""

    folder: Path
    keep: int | None
    held: list[Stretch]
    settings: Any
    extra: Any
    rng: Any


@dataclass(frozen=True)
class Draft:
    """A save that is agreed on but not written: this rank's blocks, and what goes into the manifest."""

    folder: Path
    keep: int | None
    blocks: dict[Stretch, Tensor]
    specs: list[Spec]
    settings: Any
    extras: list[Any]
    rng: list[Any]

    def copy(self) -> Draft:
        """The same with blocks of its own, on the CPU."""
        own = {stretch: tensor.detach().to("cpu", copy=True) for stretch, tensor in self.blocks.items()}
        return replace(self, blocks=own)


def draft(
    folder: Path,
    model: nn.Module | Holder,
    optimizer: Optimizer | HasHolder | Holder | None,
    extra: Any,
    keep: int | None,
    ranks: Ranks,
) -> Draft:
    """Collective: settles the save before this one and deals out the work.

    Raises CheckpointError on every rank when one cannot offer its part or they do not fit together.
    """
    pieces: list[Piece] = []

    def offer() -> _Offer:
        settle()
        if keep is not None and keep < 1:
            raise CheckpointError(f"keep is {keep}: at least the new checkpoint stays, so 1 or more, or None for all")
        holder = holder_of(model, optimizer, ranks.rank)
        pieces.extend(holder.pieces())
        held = [piece.stretch for piece in pieces]
        return _Offer(folder.absolute(), keep, held, encode(dict(holder.settings())), encode(extra), rng.capture())

    offers: list[_Offer] = ranks.agree("saving a checkpoint", offer)
    settings = merged([each.settings for each in offers])
    offers = [replace(each, settings=its) for each, its in zip(offers, settings, strict=True)]
    _check_alike(offers)
    held = [each.held for each in offers]
    return Draft(
        folder=offers[0].folder,
        keep=keep,
        blocks=blocks_of(pieces, share(held)[ranks.rank]),
        specs=specs_of(held),
        settings=offers[0].settings,
        extras=[each.extra for each in offers],
        rng=[each.rng for each in offers],
    )


def _check_alike(offers: Sequence[_Offer]) -> None:
    for word in ("folder", "keep", "settings"):
        for rank, offer in enumerate(offers):
            mine, first = getattr(offer, word), getattr(offers[0], word)
            if str(mine) != str(first):  # not `!=`: NaN is alike here
                raise CheckpointError(
                    f"the ranks differ in {word}: rank 0 has {_brief(first)}, rank {rank} {_brief(mine)}"
                )


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= _BRIEF else text[:_BRIEF] + "..."
