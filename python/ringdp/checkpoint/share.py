"""Who writes which elements: a pure function of what every rank holds, computed alike on every rank.

Every element is written once. What one rank holds alone, it writes; what several hold is cut into blocks and dealt
to the rank that has least so far, largest block first (Graham's LPT rule: within 4/3 of the best balance).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ringdp.checkpoint.errors import CheckpointError
from ringdp.checkpoint.piece import Spec, Stretch

# No stored block is larger: the unit in which replicas are dealt out, and what reading needs beside its result.
BLOCK_BYTES = 16 << 20


def share(held: Sequence[Sequence[Stretch]]) -> list[list[Stretch]]:
    """held[r]: what rank r holds. Result[r]: what it writes, sorted; together every element exactly once.

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
    # Blocks without a choice first, so that the choices can level what they leave.
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
    """The part in blocks of at most BLOCK_BYTES."""
    step = max(1, BLOCK_BYTES // part.spec.torch_dtype.itemsize)
    for offset in range(part.offset, part.stop, step):
        yield Stretch(part.spec, offset, min(step, part.stop - offset))
