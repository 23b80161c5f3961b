"""What names a sample: enough to tell whether two ranks drew the same one, or each rank numbers data of its own."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

_ENOUGH = 0.5
_LABELS_AGREE = 0.9
# Common indices: where unrelated draws would have so many, hardly any is not by chance (p < 0.001).
_BY_CHANCE = 16
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


# A sample's index; the hash of its content; or its index and rank, where each rank has its own data, or
# nothing has shown yet whether it has.
Key = Any
By = Literal["index", "content", "own index", "not known"]


def have_leaves(facts: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether all ranks' samplers are a ringdp.elastic.Leaves."""
    return all(fact.get("leaves") for fact in facts.values())


def naming(batches: Mapping[int, list[dict[str, Any]]], facts: Mapping[int, Mapping[str, Any]]) -> By:
    """What names the samples of one loader, from its batches and its facts by rank."""
    if any(row["indices"] is None for rows in batches.values() for row in rows):
        return "content"
    if len(batches) < 2:
        return "index"
    if have_leaves(facts):  # divides by construction
        return "index"
    parts = _shared_out(facts)
    if parts == len(batches):  # whatever the bytes say: they differ where batches are padded, or data augmented
        return "index"
    same = same_samples(_compared(batches))
    if same is None:
        return "index" if parts or _divided(batches, facts) else "not known"
    return "index" if same else "own index"


def keys_of(rank: int, row: Mapping[str, Any], by: By) -> tuple[Key, ...]:
    """The keys of a batch, in order. Content that was not hashed equals no other."""
    if by == "content":
        hashes = dict(zip(_hashed(row), row.get("contents", ()), strict=True))
        return tuple(hashes.get(place) or (rank, row["epoch"], id(row), place) for place in range(row["size"]))
    return tuple(_indices(row)) if by == "index" else tuple((rank, index) for index in _indices(row))


def _compared(batches: Mapping[int, list[dict[str, Any]]]) -> Iterator[Compared]:
    """Samples that two ranks have drawn under one index, as far as they were hashed."""
    first: dict[Any, tuple[int, str, str]] = {}
    for rank, rows in batches.items():
        for row in rows:
            indices = _indices(row)
            hashes = zip(row.get("contents", ()), row.get("labels", ()), strict=True)
            for place, (content, label) in zip(_hashed(row), hashes, strict=True):
                known = first.setdefault(indices[place], (rank, content, label))
                if known[0] != rank and content:
                    yield Compared(known[1] == content, known[2] == label, label)


def _shared_out(facts: Mapping[int, Mapping[str, Any]]) -> int:
    """Into how many parts DistributedSamplers share out data of one length; 0: they do not."""
    replicas = {fact["replicas"] for fact in facts.values()}
    same = len(replicas) == 1 and len({fact["length"] for fact in facts.values()}) == 1
    parts = replicas.pop() if same else None
    return parts if parts is not None and parts > 1 else 0


def _divided(batches: Mapping[int, list[dict[str, Any]]], facts: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether the first epoch that is known was divided between ranks, see sameness.divided()."""
    epoch = min((row["epoch"] for rows in batches.values() for row in rows), default=0)
    drawn = [{i for row in rows if row["epoch"] == epoch for i in _indices(row)} for rows in batches.values()]
    seen = set().union(*drawn)
    highest = max((index for index in seen if isinstance(index, int)), default=-1)
    return divided(drawn, max(len(seen), highest + 1, *(fact["length"] or 0 for fact in facts.values())))


def _hashed(row: Mapping[str, Any]) -> Sequence[int]:
    """The places in its batch that its hashes are of."""
    return row.get("hashed", range(len(row.get("contents", ()))))


def _indices(row: Mapping[str, Any]) -> list[Key]:
    return [tuple(index) if isinstance(index, list) else index for index in row["indices"]]
