"""Which reduce operations are refused on which dtypes, and what is said of it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from oracle import FLOAT8, NUMBERS, ops_of
from ranks import HERE

ALL = ["SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR"]


def refusals(dtype: torch.dtype) -> dict[str, str]:
    """On a rank: operation -> message, of those that are refused by the backend itself; then the group still works."""
    group, found = dist.group.WORLD, {}
    for op in ALL:
        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, op)
        try:
            group.allreduce([torch.zeros(3).to(dtype)], options).wait()
        except RuntimeError as error:
            found[op] = str(error)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert float(tensor) == HERE.size
    return found


@pytest.mark.parametrize("dtype", [*NUMBERS, *FLOAT8], ids=str)
def test_operations_without_a_meaning_are_refused_by_name(pair, dtype):
    name = str(dtype).removeprefix("torch.")
    for found in pair.run(refusals, dtype):
        assert set(found) == set(ALL) - set(ops_of(dtype))
        for op, message in found.items():
            assert message.startswith("InvalidArgument: all_reduce: "), message
            assert f"{op} of {name} has no meaning" in message
