"""all_reduce of sparse COO tensors against dense sums."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import HERE


def of_rank(rank: int, dtype: torch.dtype, dense_dims: int = 0) -> torch.Tensor:
    """rank + 3 entries, some of them twice, in a matrix that all ranks share; every rank has another number."""
    source = torch.Generator().manual_seed(rank)
    places = torch.randint(0, 6, (2, rank + 3), generator=source)
    values = torch.randint(-9, 9, (rank + 3, *[4] * dense_dims), generator=source).to(dtype)
    return torch.sparse_coo_tensor(places, values, (6, 6, *[4] * dense_dims))


def sums(dtype: torch.dtype, dense_dims: int) -> tuple[bool, bool]:
    """On a rank: the sum, waited for and through its Future."""
    wanted = sum(of_rank(rank, dtype, dense_dims).to_dense() for rank in range(HERE.size))
    mine, other = of_rank(HERE.rank, dtype, dense_dims), of_rank(HERE.rank, dtype, dense_dims)
    dist.all_reduce(mine)
    dist.all_reduce(other, async_op=True).get_future().wait()
    return torch.equal(mine.to_dense(), wanted), torch.equal(other.to_dense(), wanted)


def in_rank_order(values: list[float]) -> bool:
    """On a rank: whether one element, to which each contributes a value in bfloat16, is their sum in rank order."""
    mine = torch.sparse_coo_tensor([[2]], [values[HERE.rank]], (4,), dtype=torch.bfloat16)
    dist.all_reduce(mine)
    wide = torch.tensor(values, dtype=torch.bfloat16).float()
    total = wide[0]
    for value in wide[1:]:
        total = total + value
    return bool(mine.to_dense()[2] == total.bfloat16())


def refused(case: str) -> str:
    """On a rank: what has no sum."""
    calls = {
        "MAX": lambda: dist.all_reduce(of_rank(HERE.rank, torch.float32), dist.ReduceOp.MAX),
        "size": lambda: dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (4 + HERE.rank,))),
    }
    with pytest.raises((RuntimeError, ValueError)) as error:
        calls[case]()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert float(tensor) == HERE.size
    return str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("dense_dims", [0, 1])
def test_sums_equal_the_dense_ones(trio, dtype, dense_dims):
    assert trio.run(sums, dtype, dense_dims) == [(True, True)] * 3


@pytest.mark.parametrize("values", [[1e8, -1e8, 1.0, 3e-8], [256.0, 1.0, 1.0, -256.0]], ids=["order", "rounded once"])
def test_values_are_added_in_rank_order(world_of, values):
    """The first ones cancel in that order only; of the others bfloat16 keeps something only if it is rounded once."""
    assert world_of(4, transport="shm").run(in_rank_order, values) == [True] * 4


@pytest.mark.parametrize(("case", "said"), [("MAX", "use SUM"), ("size", "rank 1 has another size")])
def test_what_has_no_sum_is_refused(trio, case, said):
    for message in trio.run(refused, case):
        assert said in message, message
