"""Collectives that compute have the bits of the oracle, also of sparse tensors."""

from __future__ import annotations

import pytest
import ringdp
import torch
import torch.distributed as dist
from oracle import (
    COMPLEX,
    FLOAT8,
    FLOATS,
    LARGE,
    NUMBERS,
    SIZES,
    Cell,
    cells_of,
    every_rank,
    fold,
    of_one_call,
    ops_of,
    same_bits,
    small_integers,
    unwritten,
)
from ranks import HERE, error_of, on_ranks


def operation(name: str) -> dist.ReduceOp:
    return getattr(dist.ReduceOp, name)


def all_reduces(dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: what differs from the oracle."""
    wrong, inputs = [], every_rank("all_reduce", count, dtype)
    for op in ops_of(dtype):
        mine = inputs[HERE.rank].clone()
        dist.all_reduce(mine, op=operation(op))
        if not same_bits(mine, fold(inputs, op)):
            wrong.append(op)
    return wrong


def reduces(dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: to every root; the others keep what they had."""
    wrong, inputs = [], every_rank("reduce", count, dtype)
    for op in ops_of(dtype):
        want = fold(inputs, op)
        for root in range(HERE.size):
            mine = inputs[HERE.rank].clone()
            dist.reduce(mine, root, op=operation(op))
            if not same_bits(mine, want if HERE.rank == root else inputs[HERE.rank]):
                wrong.append(f"{op} to {root}")
    return wrong


def reduce_scatters(dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: list and flat form; what differs from the oracle."""
    wrong, inputs = [], every_rank("reduce_scatter", count * HERE.size, dtype)
    own = [tensor.tensor_split(HERE.size)[HERE.rank] for tensor in inputs]
    for op in ops_of(dtype):
        want = fold(own, op)
        mine, listed, flat = inputs[HERE.rank].clone(), unwritten(count, dtype), unwritten(count, dtype)
        dist.reduce_scatter(listed, list(mine.tensor_split(HERE.size)), op=operation(op))
        dist.reduce_scatter_tensor(flat, mine, op=operation(op))
        if not same_bits(listed, want) or not same_bits(flat, want):
            wrong.append(op)
        if not same_bits(mine, inputs[HERE.rank]):
            wrong.append(f"{op}: the input was written to")
    return wrong


def uneven_reduce_scatters(dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: every rank's part has another size, rank 0's none."""
    counts = [rank * count for rank in range(HERE.size)]
    wrong, inputs = [], every_rank("uneven", sum(counts), dtype)
    own = [tensor.split(counts)[HERE.rank] for tensor in inputs]
    for op in ops_of(dtype):
        part = unwritten(counts[HERE.rank], dtype)
        dist.reduce_scatter(part, list(inputs[HERE.rank].clone().split(counts)), op=operation(op))
        if not same_bits(part, fold(own, op)):
            wrong.append(op)
    return wrong


def coalesced(dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: tensors of all sizes in one call, through the process group."""
    if not (sizes := of_one_call(count)):
        return []
    group = dist.group.WORLD
    inputs = [every_rank("coalesced", size, dtype) for size in sizes]
    sums = [of_all[HERE.rank].clone() for of_all in inputs]
    dist.all_reduce_coalesced(sums)
    wholes = [torch.cat([of_all[HERE.rank]] * HERE.size) for of_all in inputs]
    parts = [unwritten(len(of_all[0]), dtype) for of_all in inputs]
    group.reduce_scatter_tensor_coalesced(parts, wholes).wait()
    wanted = [fold(of_all, "SUM") for of_all in inputs]
    return [
        f"{what} of {len(want)}"
        for what, results in (("all_reduce", sums), ("reduce_scatter", parts))
        for got, want in zip(results, wanted, strict=True)
        if not same_bits(got, want)
    ]


def premultiplied(dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: PREMUL_SUM with a number and with a tensor; the product is rounded to the dtype."""
    wrong, inputs = [], every_rank("premul", count, dtype)
    want = fold([tensor * (1.5 + rank) for rank, tensor in enumerate(inputs)], "SUM")
    for factor in (1.5 + HERE.rank, torch.tensor([1.5 + HERE.rank])):
        mine = inputs[HERE.rank].clone()
        dist.all_reduce(mine, op=dist._make_nccl_premul_sum(factor))
        if not same_bits(mine, want):
            wrong.append(f"with {factor}")
    return wrong


def divided(dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: the capabilities reduce_div and reduce_scatter_div with several divisors."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    wrong, inputs = [], every_rank("div", count * HERE.size, dtype)
    for divisor in (1.0, 3.0, 7.5, -0.3):
        want = fold(inputs, "AVG", divisor)
        mine, part = inputs[HERE.rank].clone(), unwritten(count, dtype)
        backend.reduce_scatter_div(part, mine, divisor).wait()
        backend.reduce_div(mine, divisor, async_op=False).wait()
        if not same_bits(mine, want):
            wrong.append(f"reduce_div by {divisor}")
        if not same_bits(part, want[HERE.rank * count : (HERE.rank + 1) * count]):
            wrong.append(f"reduce_scatter_div by {divisor}")
    return wrong


def in_shared_memory(dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: an all_reduce in one pass over the tensors of all ranks, where they share memory."""
    inputs = every_rank("shared", count, dtype)
    mine = ringdp.empty(count, dtype=dtype, fallback=True)
    mine.copy_(inputs[HERE.rank])
    dist.all_reduce(mine)
    return [] if same_bits(mine, fold(inputs, "SUM")) else ["SUM"]


def differences(calls: str, cells: list[Cell]) -> list[str]:
    """On a rank: what differs, of all cells."""
    return [f"{what}: {dtype} x {count}" for dtype, count in cells for what in globals()[calls](dtype, count)]


@pytest.mark.parametrize("calls", ["all_reduces", "reduces", "reduce_scatters", "uneven_reduce_scatters", "coalesced"])
def test_bits_of_the_serial_oracle(world, place, calls):
    assert world.run(differences, calls, cells_of(place, NUMBERS)) == [[]] * world.size


@pytest.mark.parametrize("calls", ["premultiplied", "divided"])
def test_bits_of_scaled_sums(world, place, calls):
    assert world.run(differences, calls, cells_of(place, [*FLOATS, *COMPLEX])) == [[]] * world.size


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (5, {"transport": "shm"}),
        (5, {"transport": "tcp"}),
        (4, {"algorithm": "halving"}),
        (5, {"algorithm": "exchange"}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "calls", ["all_reduces", "reduces", "reduce_scatters", "coalesced", "divided", "premultiplied", "in_shared_memory"]
)
def test_bits_of_the_balanced_tree(world_of, ranks, settings, calls):
    dtypes = [*FLOATS, *COMPLEX, *([] if calls in ("divided", "premultiplied") else [torch.int32])]
    cells = [(dtype, count) for dtype in dtypes for count in (5, 4099)]
    world = world_of(ranks, order="tree", **settings)
    assert world.run(differences, calls, [*cells, (torch.float32, LARGE)]) == [[]] * ranks


@on_ranks(2)
def test_sums_keep_subnormals_whatever_the_mode_of_a_thread() -> None:
    """Else ranks of which one flushes to zero would end with different sums of the same tensors."""
    tiny = torch.full((1000,), 1e-40)
    mine, want = tiny.clone(), tiny + tiny
    torch.set_flush_denormal(HERE.rank == 1)
    try:
        dist.all_reduce(mine)
    finally:
        torch.set_flush_denormal(False)
    assert same_bits(mine, want)


@on_ranks(2, [6.0] * 4)
def test_factors_are_numbers_whatever_their_shape() -> list[float]:
    """A single number, premultiplied by factors of several shapes."""
    found = []
    for factor in (2.0, torch.tensor(2.0), torch.tensor([2.0]), torch.tensor([[2.0]])):
        number = torch.tensor(float(HERE.rank + 1))
        dist.all_reduce(number, op=dist._make_nccl_premul_sum(factor))
        assert number.shape == ()
        found.append(float(number))
    return found


def tree_sums(sizes: list[int]) -> list[str]:
    """On a rank: whole numbers, whose sums are the same in the tree's order."""
    wrong = []
    for count in sizes:
        inputs = [small_integers("tree", rank, count, torch.float32) for rank in range(HERE.size)]
        want = fold(inputs, "SUM")
        for root in range(HERE.size):
            mine, there = inputs[HERE.rank].clone(), inputs[HERE.rank].clone()
            dist.all_reduce(mine)
            dist.reduce(there, root)
            if not same_bits(mine, want) or (HERE.rank == root and not same_bits(there, mine)):
                wrong.append(f"{count} to {root}")
    return wrong


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_tree_adds_up(world_of, transport):
    assert world_of(4, algorithm="tree", transport=transport).run(tree_sums, SIZES) == [[]] * 4


@on_ranks(2, False)
def test_other_backends_lack_the_capability() -> bool:
    """Whether gloo's backend has what ringdp's offers."""
    return hasattr(dist.new_group(backend="gloo")._get_backend(torch.device("cpu")), "reduce_div")


ALL = ["SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR"]


@pytest.mark.parametrize("dtype", [*NUMBERS, *FLOAT8], ids=str)
@on_ranks(2)
def test_operations_without_a_meaning_are_refused_by_name(dtype: torch.dtype) -> None:
    """By the backend itself; then the group still works."""
    group = dist.group.WORLD
    for op in ALL:
        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, op)
        said = error_of(lambda o=options: group.allreduce([torch.zeros(3).to(dtype)], o).wait())
        assert (op in ops_of(dtype)) == (said == ""), said
        if said:
            assert said.startswith("InvalidArgument: all_reduce: "), said
            assert f"{op} of {str(dtype).removeprefix('torch.')} is not supported" in said
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert float(tensor) == HERE.size


def of_rank(rank: int, dtype: torch.dtype, dense_dims: int = 0) -> torch.Tensor:
    """rank + 3 entries, some of them twice, in a matrix that all ranks share; every rank has another number."""
    source = torch.Generator().manual_seed(rank)
    places = torch.randint(0, 6, (2, rank + 3), generator=source)
    values = torch.randint(-9, 9, (rank + 3, *[4] * dense_dims), generator=source).to(dtype)
    return torch.sparse_coo_tensor(places, values, (6, 6, *[4] * dense_dims))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("dense_dims", [0, 1])
@on_ranks(3, (True, True))
def test_sums_equal_the_dense_ones(dtype: torch.dtype, dense_dims: int) -> tuple[bool, bool]:
    """The sum, waited for and through its Future."""
    wanted = sum(of_rank(rank, dtype, dense_dims).to_dense() for rank in range(HERE.size))
    mine, other = of_rank(HERE.rank, dtype, dense_dims), of_rank(HERE.rank, dtype, dense_dims)
    dist.all_reduce(mine)
    dist.all_reduce(other, async_op=True).get_future().wait()
    return torch.equal(mine.to_dense(), wanted), torch.equal(other.to_dense(), wanted)


@pytest.mark.parametrize("values", [[1e8, -1e8, 1.0, 3e-8], [256.0, 1.0, 1.0, -256.0]], ids=["order", "rounded once"])
@on_ranks(4, True, transport="shm")
def test_values_are_added_in_rank_order(values: list[float]) -> bool:
    """Whether one element, to which each contributes a value in bfloat16, is their sum in rank order.

    The first values cancel in that order only; of the others bfloat16 keeps something only if it is rounded once.
    """
    mine = torch.sparse_coo_tensor([[2]], [values[HERE.rank]], (4,), dtype=torch.bfloat16)
    dist.all_reduce(mine)
    wide = torch.tensor(values, dtype=torch.bfloat16).float()
    total = wide[0]
    for value in wide[1:]:
        total = total + value
    return bool(mine.to_dense()[2] == total.bfloat16())


@pytest.mark.parametrize(("case", "said"), [("MAX", "use SUM"), ("size", "rank 1 has another size")])
@on_ranks(3)
def test_what_has_no_sum_is_refused(case: str, said: str) -> None:
    calls = {
        "MAX": lambda: dist.all_reduce(of_rank(HERE.rank, torch.float32), dist.ReduceOp.MAX),
        "size": lambda: dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (4 + HERE.rank,))),
    }
    with pytest.raises((RuntimeError, ValueError), match=said):
        calls[case]()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert float(tensor) == HERE.size
