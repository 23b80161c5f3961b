"""What a sample is where its index says nothing: a hash of the bytes that the loader handed out for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

_PIECE = 256
_PIECES = 16  # of a sample's tensor beyond 4 KiB, spread evenly: what hashing costs is bounded
_DIGITS = 16


def batch_size(data: Any) -> int:
    """How many samples a collated batch has: the first tensor's or list's first dimension; 1 for a bare sample."""
    return next((len(leaf) for leaf in _leaves(data) if _has_rows(leaf)), 1)


def sample_hashes(
    data: Any, count: int, places: Sequence[int] | None = None, wanted: Callable[[Any], bool] = lambda part: True
) -> list[str]:
    """Per sample at these places (None: all): a hash of its parts, as far as they are wanted; '' where none is.

    data: a collated batch of `count` samples, of nested tensors, lists and mappings; with count 1 anything.
    Parts on devices or of a form that has no bytes are left out.
    """
    places = range(count) if places is None else places
    rows = [_rows(leaf, count, places) for leaf in _leaves(data) if wanted(leaf)]
    parts = [row for row in rows if row is not None]
    return [_digest(part[number] for part in parts) if parts else "" for number in range(len(places))]


def is_label(part: Any) -> bool:
    """Integers and text: what random augmentation leaves alone."""
    return not (isinstance(part, torch.Tensor) and (part.is_floating_point() or part.is_complex()))


def _digest(parts: Iterable[Any]) -> str:
    # Where the processor has instructions for it, sha1 is the fastest that hashlib has.
    hashed = hashlib.sha1(usedforsecurity=False)
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()[:_DIGITS]


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, Mapping):
        for value in data.values():
            yield from _leaves(value)
    elif isinstance(data, Sequence) and not _is_text(data):
        if data and all(isinstance(item, (str, bytes, int, float)) for item in data):
            yield data
        else:
            for item in data:
                yield from _leaves(item)
    else:
        yield data


def _has_rows(leaf: Any) -> bool:
    return leaf.dim() > 0 if isinstance(leaf, torch.Tensor) else isinstance(leaf, Sequence) and not _is_text(leaf)


def _is_text(leaf: Any) -> bool:
    return isinstance(leaf, (str, bytes))


def _rows(leaf: Any, count: int, places: Sequence[int]) -> Sequence[Any] | None:
    """The bytes of the part of it of each sample at these places; None where it has none."""
    if isinstance(leaf, torch.Tensor):
        return _tensor_rows(leaf, count, places)
    if _is_text(leaf):
        return [_encoded(leaf) for _ in places] if count == 1 else None
    if isinstance(leaf, Sequence) and len(leaf) == count:
        return [_encoded(leaf[place]) for place in places]
    return None


def _encoded(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode()


def _tensor_rows(tensor: torch.Tensor, count: int, places: Sequence[int]) -> Sequence[Any] | None:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized or not tensor.numel():
        return None
    if count > 1 and (tensor.dim() == 0 or len(tensor) != count):
        return None
    rows = tensor.detach() if count > 1 else tensor.detach().reshape(1, -1)
    if not rows.is_contiguous() and len(places) < count:
        rows, places = rows[list(places)], range(len(places))  # not a copy of the others too
    flat = rows.resolve_conj().resolve_neg().reshape(len(rows), -1).contiguous().view(torch.uint8).numpy()
    return [_thinned(flat[place]) for place in places]


def _thinned(row: Any) -> Any:
    """At most _PIECES pieces of a row of bytes, the first and the last among them."""
    width = len(row)
    if width <= _PIECE * _PIECES:
        return row
    starts = [(width - _PIECE) * number // (_PIECES - 1) for number in range(_PIECES)]
    return b"".join(row[start : start + _PIECE] for start in starts)
