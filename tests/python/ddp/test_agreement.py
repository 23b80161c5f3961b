"""Different models are named on every rank before anything moves; different values are reported."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, error_of, on_ranks
from ringdp.ddp.agreement import check_order
from ringdp.ddp.wrapper import DistributedDataParallel
from small_models import fresh, mlp
from torch import nn


class Renamed(nn.Module):
    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.add_module(first, nn.Linear(3, 3))
        self.add_module(second, nn.Linear(3, 3))


MODELS = {
    "shape": lambda odd: nn.Linear(3, 5 if odd else 4),
    "dtype": lambda odd: nn.Linear(3, 4, dtype=torch.float64 if odd else torch.float32),
    "strides": lambda odd: nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last if odd else torch.contiguous_format),
    "count": lambda odd: nn.Sequential(nn.Linear(3, 3), *([nn.Linear(3, 3)] if odd else [])),
    "order": lambda odd: Renamed("b", "a") if odd else Renamed("a", "b"),
}
SAYS = {
    "shape": ("weight", "[5, 3]", "[4, 3]"),
    "dtype": ("weight", "torch.float64", "torch.float32"),
    "strides": ("weight", "strides [18, 1, 6, 2]", "strides [18, 9, 3, 1]"),
    "count": ("parameter 2", "nothing"),
    "order": ("b.weight", "a.weight"),
}


@pytest.mark.parametrize("init_sync", [True, False])
@pytest.mark.parametrize("odd_rank", [0, 2])
@pytest.mark.parametrize("kind", sorted(MODELS))
@on_ranks(3)
def test_the_first_difference_is_named_on_every_rank(kind: str, odd_rank: int, init_sync: bool) -> None:
    said = error_of(lambda: DistributedDataParallel(MODELS[kind](HERE.rank == odd_rank), init_sync=init_sync))
    others = ", ".join(str(rank) for rank in range(3) if rank != odd_rank)
    assert f"rank {odd_rank}: " in said and f"ranks {others}: " in said
    assert all(words in said for words in SAYS[kind])


@on_ranks(3, error=("bucket_cap_mb 1", "bucket_cap_mb 3"))
def test_arguments_are_compared_too() -> None:
    DistributedDataParallel(mlp(), bucket_cap_mb=1 + HERE.rank)


def with_own_seed(init_sync: bool) -> tuple[list[str], float]:
    """On a rank: warnings, and how far this rank's first weight is from rank 0's."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ddp = DistributedDataParallel(fresh(seed=HERE.rank), init_sync=init_sync)
    said = [str(w.message) for w in caught if "start from different values" in str(w.message)]
    return said, float((ddp.module[0].weight - fresh(seed=0)[0].weight).abs().max())


def test_values_are_taken_from_rank_zero(trio):
    assert trio.run(with_own_seed, True) == [([], 0.0)] * 3


def test_values_that_stay_different_are_reported_everywhere(trio):
    for rank, (said, distance) in enumerate(trio.run(with_own_seed, False)):
        assert len(said) == 1 and "0.weight" in said[0] and "rank 2" in said[0]
        assert (distance > 0) is (rank > 0)


def gathered(orders: list[list[str]]) -> str:
    return error_of(check_order, dist.group.WORLD, torch.device("cpu"), orders[HERE.rank])


def test_orders_of_units_are_compared(trio):
    assert trio.run(gathered, [["a", "b"]] * 3) == [""] * 3
    for said in trio.run(gathered, [["a", "b"], ["a", "c"], ["a", "b"]]):
        assert "First difference: ranks 0, 2: b; rank 1: c" in said
    for said in trio.run(gathered, [["a"], ["a"], ["a", "b"]]):
        assert "ranks 0, 1: nothing; rank 2: b" in said
