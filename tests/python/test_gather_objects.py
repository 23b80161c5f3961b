"""Objects that ranks gather: as of torch, and by name where a bit has changed on its way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.gather_objects import gather_objects

OBJECTS = ("rank 0", {"rank": [1, None, b"\0\xff"]}, ["two"] * 500, None)


def gathered_in_both_ways() -> bool:
    own = OBJECTS[HERE.rank]
    by_rank = [None] * HERE.size
    dist.all_gather_object(by_rank, own)
    return gather_objects(own, dist.group.WORLD) == by_rank == list(OBJECTS[: HERE.size])


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_objects_of_any_size_are_those_of_torch(ranks: int, world_of):
    assert world_of(ranks).run(gathered_in_both_ways) == [True] * ranks


@pytest.mark.parametrize("call", ["lengths", "objects"])
def test_each_bit_that_changes_on_its_way_is_named_with_its_sender(call: str, monkeypatch: pytest.MonkeyPatch):
    group = SimpleNamespace(size=lambda: 2, _device_types=[torch.device("cpu")])
    sizes: list[int] = []
    flipped = -1

    def all_gather(by_rank: list[torch.Tensor], own: torch.Tensor, group: object) -> None:
        """Both ranks send the same; in the chosen call one bit of what rank 1 sent is another."""
        for theirs in by_rank:
            theirs.copy_(own)
        sizes.append(own.numel())
        if flipped >= 0 and len(sizes) == ("lengths", "objects").index(call) + 1:
            by_rank[1][flipped // 8] ^= 1 << flipped % 8

    monkeypatch.setattr(dist, "all_gather", all_gather)
    value = ["parameter 0: weight", 3]
    assert gather_objects(value, group) == [value, value]
    for flipped in range(8 * sizes[call == "objects"]):  # noqa: B007 - all_gather reads it
        sizes.clear()
        with pytest.raises(RuntimeError, match="^Data that rank 1 .* has changed on its way"):
            gather_objects(value, group)
