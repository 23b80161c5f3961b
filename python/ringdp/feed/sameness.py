"""Whether an index means the same sample on every rank, or each rank has data of its own that it numbers from 0."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass

_ENOUGH = 0.5
_LABELS_AGREE = 0.9
_BY_CHANCE = 16  # common indices: where so many are expected of unrelated draws, hardly any is no chance (p < 0.001)
_HARDLY_ANY = 0.25


@dataclass(frozen=True)
class Compared:
    """A sample that two ranks have drawn under one index: are its bytes equal, are its integers and text."""

    content: bool
    labels: bool
    label: str = ""


def same_samples(pairs: Iterable[Compared]) -> bool | None:
    """Bytes decide; where random augmentation changes them, labels of more than one value. None: nothing compared."""
    seen = list(pairs)
    if not seen:
        return None
    if sum(pair.content for pair in seen) >= _ENOUGH * len(seen):
        return True
    labelled = [pair for pair in seen if pair.label]
    if len({pair.label for pair in labelled}) < 2:
        return False
    return sum(pair.labels for pair in labelled) >= _LABELS_AGREE * len(labelled)


def divided(ranks: Collection[Collection[Hashable]], samples: int) -> bool:
    """Whether ranks draw from one numbering, share by share: far fewer common indices than unrelated draws would have.

    ranks: each one's distinct indices in one epoch, of a numbering of `samples`. Of unrelated draws two ranks with a
    and b indices have about a * b / samples in common.
    """
    drawn = sum(map(len, ranks))
    expected = (drawn**2 - sum(len(own) ** 2 for own in ranks)) / (2 * max(samples, 1))
    common = drawn - len(set().union(*ranks))
    return expected >= _BY_CHANCE and common <= _HARDLY_ANY * expected
