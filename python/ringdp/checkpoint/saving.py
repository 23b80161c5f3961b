"""Saving: ranks agree on a save plan, each element is written by one rank, and one rename makes it a checkpoint.

The write plan is a pure function of what every rank holds, computed on every rank. What only one rank holds, it writes.
What several hold is cut into blocks, and each block, the largest first, goes to the rank that has least to write so far
(Graham's LPT rule: within 4/3 of the best balance).
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ringdp.checkpoint import rng
from ringdp.checkpoint.background import Pending, finish_latest
from ringdp.checkpoint.blocks import INDEX, Written, blocks_of, write_blocks, write_index
from ringdp.checkpoint.directory import Slot
from ringdp.checkpoint.holder import HasHolder, Holder
from ringdp.checkpoint.holders import holder_of
from ringdp.checkpoint.manifest import Manifest
from ringdp.checkpoint.optimizer_state import merged
from ringdp.checkpoint.piece import CheckpointError, Piece, Spec, Stretch
from ringdp.checkpoint.plain import encode
from ringdp.checkpoint.ranks import Ranks, async_group_of, ranks_of

# The largest stored block: replicas are divided into these, and reading needs memory for one beside its result.
BLOCK_BYTES = 16 << 20


def write_plan(held: Sequence[Sequence[Stretch]]) -> list[list[Stretch]]:
    """Which stretches each rank writes, sorted: every element exactly once. held[r]: what rank r holds.

    Raises CheckpointError for elements that no rank holds and for tensors whose ranks disagree on shape or dtype.
    """
    blocks = [
        (block, owners)
        for spec, stretches in sorted(_by_tensor(held).items())
        for part, owners in _parts(spec, stretches)
        for block in _cut(part)
    ]
    written: list[list[Stretch]] = [[] for _ in held]
    load = [0] * len(held)
    # First the blocks that only one rank holds; the others then balance the load.
    for block, owners in sorted(blocks, key=lambda entry: (len(entry[1]) > 1, -entry[0].bytes)):
        rank = min(owners, key=lambda r: (load[r], r))
        written[rank].append(block)
        load[rank] += block.bytes
    return [sorted(mine) for mine in written]


def specs_of(held: Sequence[Sequence[Stretch]]) -> list[Spec]:
    """All tensors of the state, those without elements included, sorted."""
    return sorted(_by_tensor(held))


def _by_tensor(held: Sequence[Sequence[Stretch]]) -> dict[Spec, list[tuple[int, Stretch]]]:
    """(rank, stretch) of every tensor."""
    known: dict[str, tuple[int, Spec]] = {}
    found: dict[Spec, list[tuple[int, Stretch]]] = defaultdict(list)
    for rank, stretches in enumerate(held):
        for stretch in stretches:
            first_rank, spec = known.setdefault(stretch.spec.key, (rank, stretch.spec))
            if spec != stretch.spec:
                raise CheckpointError(
                    f"rank {first_rank} has {spec}, rank {rank} has {stretch.spec}: "
                    "build the same model and optimizer on every rank"
                )
            found[spec].append((rank, stretch))
    return found


def _parts(spec: Spec, stretches: list[tuple[int, Stretch]]) -> Iterator[tuple[Stretch, list[int]]]:
    """The tensor cut wherever a stretch begins or ends, each part with the ranks that hold it."""
    begins: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, list[int]] = defaultdict(list)
    for rank, stretch in stretches:
        if stretch.length:
            begins[stretch.offset].append(rank)
            ends[stretch.stop].append(rank)
    bounds = sorted({0, spec.elements, *begins, *ends})
    holding: list[int] = []
    for start, stop in pairwise(bounds):
        for rank in ends[start]:
            holding.remove(rank)
        holding += begins[start]
        part = Stretch(spec, start, stop - start)
        if not holding:
            raise CheckpointError(f"no rank holds {part}: the holders' pieces() are incomplete")
        yield part, sorted(set(holding))


def _cut(part: Stretch) -> Iterator[Stretch]:
    """Cuts a part into blocks of at most BLOCK_BYTES."""
    step = max(1, BLOCK_BYTES // part.spec.torch_dtype.itemsize)
    for offset in range(part.offset, part.stop, step):
        yield Stretch(part.spec, offset, min(step, part.stop - offset))


_BRIEF = 200


@dataclass(frozen=True)
class _Offer:
    """What each rank sends to the others before a save."""

    folder: Path
    keep: int | None
    held: list[Stretch]
    settings: Any
    extra: Any
    rng: Any


@dataclass(frozen=True)
class SavePlan:
    """A save that ranks have agreed on, not yet written: this rank's blocks, and what goes into the manifest."""

    folder: Path
    keep: int | None
    blocks: dict[Stretch, Tensor]
    specs: list[Spec]
    settings: Any
    extras: list[Any]
    rng: list[Any]

    def copy(self) -> SavePlan:
        """A plan with copies of the blocks, on the CPU."""
        own = {stretch: tensor.detach().to("cpu", copy=True) for stretch, tensor in self.blocks.items()}
        return replace(self, blocks=own)


def plan_save(
    folder: Path,
    model: nn.Module | Holder,
    optimizer: Optimizer | HasHolder | Holder | None,
    extra: Any,
    keep: int | None,
    ranks: Ranks,
) -> SavePlan:
    """Collective: finishes the previous save and divides the work.

    Raises CheckpointError on every rank when one cannot offer its part or they do not fit together.
    """
    pieces: list[Piece] = []

    def offer() -> _Offer:
        finish_latest()
        if keep is not None and keep < 1:
            raise CheckpointError(f"keep is {keep}, must be 1 or more, or None to keep all checkpoints")
        holder = holder_of(model, optimizer, ranks.rank)
        pieces.extend(holder.pieces())
        held = [piece.stretch for piece in pieces]
        return _Offer(folder.absolute(), keep, held, encode(dict(holder.settings())), encode(extra), rng.capture())

    offers: list[_Offer] = ranks.agree("saving a checkpoint", offer)
    settings = merged([each.settings for each in offers])
    offers = [replace(each, settings=its) for each, its in zip(offers, settings, strict=True)]
    _check_same_offers(offers)
    held = [each.held for each in offers]
    return SavePlan(
        folder=offers[0].folder,
        keep=keep,
        blocks=blocks_of(pieces, write_plan(held)[ranks.rank]),
        specs=specs_of(held),
        settings=offers[0].settings,
        extras=[each.extra for each in offers],
        rng=[each.rng for each in offers],
    )


def _check_same_offers(offers: Sequence[_Offer]) -> None:
    for word in ("folder", "keep", "settings"):
        for rank, offer in enumerate(offers):
            mine, first = getattr(offer, word), getattr(offers[0], word)
            if str(mine) != str(first):  # not `!=`: NaN equals NaN here
                raise CheckpointError(
                    f"the ranks differ in {word}: rank 0 has {_brief(first)}, rank {rank} {_brief(mine)}"
                )


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= _BRIEF else text[:_BRIEF] + "..."


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
    """Collective: writes `folder`/checkpoint-NNNNNN and removes all but the `keep` latest (None: keeps all); its path.

    extra: any small value of this rank - loader position, schedulers' state_dict(), the step - which `load` gives back.
    Raises CheckpointError on every rank, naming the rank that failed; the checkpoints before it stay as they are.
    """
    ranks = ranks_of(group)
    return _finish(plan_save(Path(folder), model, optimizer, extra, keep, ranks), ranks)


def save_async(
    folder: Folder,
    model: nn.Module | Holder,
    optimizer: Optimizer | HasHolder | Holder | None = None,
    *,
    extra: Any = None,
    group: dist.ProcessGroup | None = None,
    keep: int | None = 2,
) -> Pending:
    """Collective: as `save`, but returns when this rank's data have been copied; a thread does the rest.

    Errors of the thread are raised by `wait()` of the result, or else by the next save, which waits for this one.
    """
    ranks = ranks_of(group)
    agreed = plan_save(Path(folder), model, optimizer, extra, keep, ranks)
    snapshot = ranks.keep("copying what is to be saved", agreed.copy)
    async_ranks = async_group_of(ranks)
    return Pending(lambda: _finish(snapshot, async_ranks))


def _finish(agreed: SavePlan, ranks: Ranks) -> Path:
    """Collective: writes this rank's blocks; when all ranks have written, rank 0 completes the checkpoint."""
    slot: Slot | None = None

    def begin() -> Path:
        nonlocal slot
        slot = Slot(agreed.folder)
        return slot.unfinished

    def commit(by_rank: Sequence[Written]) -> Path:
        assert slot is not None
        write_index(slot.unfinished, by_rank)
        _manifest(agreed, slot.unfinished, by_rank).write(slot.unfinished)
        return slot.commit(agreed.keep)

    try:
        unfinished = ranks.on_first("saving a checkpoint", begin)
        written = ranks.agree("writing a checkpoint", lambda: write_blocks(unfinished, ranks.rank, agreed.blocks))
        return ranks.on_first("completing a checkpoint", lambda: commit(written))
    finally:
        if slot is not None:
            slot.close()


def _manifest(agreed: SavePlan, folder: Path, by_rank: Sequence[Written]) -> Manifest:
    index = (folder / INDEX).read_bytes()
    files = {name: length for written in by_rank for name, length in written.files.items()}
    return Manifest(
        hashes={stretch: digest for written in by_rank for stretch, digest in written.hashes.items()},
        specs=agreed.specs,
        files={**files, INDEX: len(index)},
        index_sha256=hashlib.sha256(index).hexdigest(),
        settings=agreed.settings,
        extras=agreed.extras,
        rng=agreed.rng,
    )
