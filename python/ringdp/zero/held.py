"""What an optimizer steps, and a checkpoint holds, at stage 3: this rank's shards of the parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ringdp.zero.flat import FlatParameters
from ringdp.zero.unit_storage import Bucket


class HeldShards(FlatParameters):
    """The parameters of all buckets of one layout. Others get what has been stepped when units are gathered."""

    def __init__(
        self, buckets: Sequence[Bucket], group: dist.ProcessGroup, master_dtype: torch.dtype | None = None
    ) -> None:
        self._buckets = list(buckets)
        layout = buckets[0].plan.layout
        by_number = {}
        for members, bucket in zip(layout.buckets, buckets, strict=True):
            by_number.update(zip(members, bucket.parameters, strict=True))
        super().__init__([by_number[n] for n in range(len(by_number))], layout, group, master_dtype)

    @property
    def held_bytes(self) -> int:
        """See FlatParameters."""
        return sum(bucket.shard.nbytes for bucket in self._buckets)

    @property
    def useful_bytes(self) -> int:
        """See FlatParameters."""
        return sum(bucket.useful_bytes for bucket in self._buckets)

    def own(self, bucket: int) -> torch.Tensor:
        """The shard."""
        return self._buckets[bucket].shard

    def kept(self, bucket: int) -> torch.Tensor:
        """The shard."""
        return self.own(bucket)

    def take_back(self, bucket: int) -> None:
        """Masters follow what was loaded."""
        self._renew_master(bucket)

    def gather(self, bucket: int) -> None:
        """Nothing: units are gathered when they are used."""

    def _lay_out(self) -> None:
        """They lie as they are."""
