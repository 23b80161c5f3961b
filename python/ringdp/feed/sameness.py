"""Whether an index means the same sample on every rank, or each rank has data of its own that it numbers from 0."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_ENOUGH = 0.5
_LABELS_AGREE = 0.9


@dataclass(frozen=True)
class Compared:
    """A sample that two ranks have drawn under one index: are its bytes equal, are its integers and text."""

    content: bool
    labels: bool
    label: str = ""


def same_samples(pairs: Iterable[Compared]) -> bool:
    """Bytes decide; where random augmentation changes them, labels of more than one value. Nothing seen: the same."""
    seen = list(pairs)
    if not seen or sum(pair.content for pair in seen) >= _ENOUGH * len(seen):
        return True
    labelled = [pair for pair in seen if pair.label]
    if len({pair.label for pair in labelled}) < 2:
        return False
    return sum(pair.labels for pair in labelled) >= _LABELS_AGREE * len(labelled)
