"""At zero_stage=2: who owns what of a bucket's mean. The owner of a shard is also that of its codes, and keeps it.

The reducer cuts parameters only at multiples of a shard block, which is a whole number of blocks of every code, so what
the owner of a shard decodes is all that it owns, and no code of the mean has to travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ringdp.compress.means import Owners, Part


@dataclass(frozen=True)
class BucketShards:
    """Of one bucket. offsets: where this rank's parts begin in its shard, by parameter. elements: of that shard."""

    rank: int
    owners: Owners
    offsets: Mapping[str, int]
    elements: int

    def shard(self, means: Mapping[str, Part], like: Tensor) -> Tensor:
        """This rank's shard of the means, in the dtype of `like`, with zeros between parameters."""
        found = like.new_zeros(self.elements)
        for name, part in self.owners[self.rank].items():
            first, values = means[name]
            at = self.offsets[name]
            found[at : at + len(part)] = values[part.start - first : part.stop - first]
        return found


def bucket_shards(layout: Any, names: Sequence[str], rank: int) -> list[BucketShards]:
    """By bucket of a ShardLayout. names: of its parameters."""
    buckets = range(len(layout.buckets))
    owners: list[list[dict[str, range]]] = [[{} for _ in range(layout.ranks)] for _ in buckets]
    offsets: list[dict[str, int]] = [{} for _ in buckets]
    for owner in range(layout.ranks):
        for parameter, begin, length, bucket, offset in layout.pieces(owner):
            owners[bucket][owner][names[parameter]] = range(begin, begin + length)
            if owner == rank:
                offsets[bucket][names[parameter]] = offset
    return [BucketShards(rank, owners[n], offsets[n], layout.shard(n)) for n in buckets]
