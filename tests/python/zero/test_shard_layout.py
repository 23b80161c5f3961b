"""Who owns what: every element once, equal shards, cuts between blocks only, the reducer's places."""

from __future__ import annotations

import random

import pytest
import torch.distributed as dist
from ringdp import _native

_C = _native.load()
BLOCK = _C.shard_block()


def random_case(seed: int) -> tuple[list[int], list[list[int]]]:
    source = random.Random(seed)
    lengths = [source.choice([0, 1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 7 * BLOCK + 3]) for _ in range(12)]
    order = source.sample(range(12), 12)
    return lengths, [order[:1], order[1:5], order[5:]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(6))
def test_every_element_has_one_owner(seed, ranks):
    lengths, buckets = random_case(seed)
    layout = _C.ShardLayout(lengths, buckets, ranks)
    owned: dict[int, list[tuple[int, int]]] = {}
    for rank in range(ranks):
        for parameter, begin, length, bucket, offset in layout.pieces(rank):
            assert length > 0 and begin % BLOCK == 0 and parameter in buckets[bucket]
            assert offset >= 0 and offset + length <= layout.shard(bucket)
            place = layout.offsets(bucket)[buckets[bucket].index(parameter)]
            assert rank * layout.shard(bucket) + offset == place + begin
            owned.setdefault(parameter, []).append((begin, begin + length))
    for parameter, length in enumerate(lengths):
        covered = sorted(owned.get(parameter, []))
        assert [b for b, _ in covered] + [length] == [0] * bool(covered) + [e for _, e in covered] or length == 0


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_shards_are_equal_and_padding_is_counted(ranks):
    lengths, buckets = random_case(1)
    layout = _C.ShardLayout(lengths, buckets, ranks)
    for bucket, members in enumerate(buckets):
        assert layout.padded(bucket) == ranks * layout.shard(bucket) and layout.shard(bucket) % BLOCK == 0
        assert layout.padded(bucket) < sum(lengths[p] for p in members) + BLOCK * (len(members) + ranks)
    total = sum(layout.padded(bucket) for bucket in range(len(buckets)))
    assert sum(layout.padding(rank) for rank in range(ranks)) == total - sum(lengths)


@pytest.mark.parametrize(
    ("buckets", "ranks", "says"),
    [
        ([[0]], 2, "parameter 1 is in 0 buckets"),
        ([[0, 1], [1]], 2, "parameter 1 is in 2 buckets"),
        ([[0, 1, 2]], 2, "parameter 2, which is unknown"),
        ([[0, 1]], 0, "0 ranks"),
    ],
)
def test_bad_layouts_are_refused(buckets, ranks, says):
    with pytest.raises(dist.DistBackendError, match=says):
        _C.ShardLayout([3, 4], buckets, ranks)


def test_unknown_ranks_are_refused():
    with pytest.raises(dist.DistBackendError, match="rank 2 of 2"):
        _C.ShardLayout([3], [[0]], 2).pieces(2)
