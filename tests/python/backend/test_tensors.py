"""Tensors as users have them: not contiguous, overlapping, of the wrong kind."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import HERE


def ramp(rank: int) -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4) + 100 * rank


def total() -> torch.Tensor:
    return sum(ramp(rank) for rank in range(HERE.size))


def strided() -> list[bool]:
    """On a rank: transposed, every other column, expanded into memory of its own, with a gradient."""
    transposed = ramp(HERE.rank).t()
    dist.all_reduce(transposed)
    memory = torch.zeros(3, 8)
    every_other = memory[:, ::2]
    every_other.copy_(ramp(HERE.rank))
    memory[:, 1::2] = -1
    dist.all_reduce(every_other)
    sent = ramp(HERE.rank).t()
    dist.broadcast(sent, HERE.size - 1)
    parameter = torch.nn.Parameter(ramp(HERE.rank))
    with torch.no_grad():
        dist.all_reduce(parameter)
    gathered = [torch.zeros(4, 3).t() for _ in range(HERE.size)]
    dist.all_gather(gathered, ramp(HERE.rank).t().contiguous().t())
    scattered = torch.zeros(4, 3).t()
    dist.reduce_scatter(scattered, [ramp(HERE.rank).t().contiguous().t() + part for part in range(HERE.size)])
    return [
        torch.equal(transposed, total().t()),
        torch.equal(every_other, total()) and bool((memory[:, 1::2] == -1).all()),
        torch.equal(sent, ramp(HERE.size - 1).t()),
        torch.equal(parameter, total()) and parameter.requires_grad,
        all(torch.equal(tensor, ramp(rank)) for rank, tensor in enumerate(gathered)),
        torch.equal(scattered, total() + HERE.size * HERE.rank),
    ]


def aliased() -> list[bool]:
    """On a rank: outputs that share memory with inputs."""
    n, count = HERE.size, 1000
    mine = torch.arange(float(count)) + HERE.rank
    wanted = torch.cat([torch.arange(float(count)) + rank for rank in range(n)])
    in_place = torch.zeros(n * count)
    in_place[HERE.rank * count : (HERE.rank + 1) * count] = mine
    dist.all_gather_into_tensor(in_place, in_place[HERE.rank * count : (HERE.rank + 1) * count])
    slices = torch.zeros(n * count)
    dist.all_gather(list(slices.tensor_split(n)), mine)
    elsewhere = torch.zeros(n * count)
    next_rank = (HERE.rank + 1) % n  # the input lies where another rank's part arrives
    elsewhere[next_rank * count : (next_rank + 1) * count] = mine
    dist.all_gather_into_tensor(elsewhere, elsewhere[next_rank * count : (next_rank + 1) * count])
    own = wanted.clone()
    dist.reduce_scatter_tensor(own[HERE.rank * count : (HERE.rank + 1) * count], own)
    other = wanted.clone()
    dist.reduce_scatter_tensor(other[next_rank * count : (next_rank + 1) * count], other)
    part = n * wanted[HERE.rank * count : (HERE.rank + 1) * count]
    return [
        torch.equal(in_place, wanted),
        torch.equal(slices, wanted),
        torch.equal(elsewhere, wanted),
        torch.equal(own[HERE.rank * count : (HERE.rank + 1) * count], part),
        torch.equal(other[next_rank * count : (next_rank + 1) * count], part),
    ]


def buffers(count: int) -> list[torch.Tensor]:
    return [torch.ones(count) for _ in range(HERE.size)]


def three_lists(count: int) -> list[torch.Tensor] | None:
    return buffers(count) if HERE.rank == 0 else None


def split_six(received: list[int]) -> None:
    dist.all_to_all_single(torch.ones(6), torch.ones(6), received, [2, 2, 2])


# what is called -> what the error must say
REFUSED = {
    "float8": (lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e5m2)), "SUM of float8_e5m2 has no meaning"),
    "AVG of bool": (lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG), "AVG of bool"),
    "expanded sum": (lambda: dist.all_reduce(torch.ones(1).expand(3)), "share memory"),
    "expanded part": (lambda: dist.scatter(torch.ones(1).expand(3), three_lists(3)), "share memory"),
    "expanded message": (lambda: dist.recv(torch.ones(1).expand(3), (HERE.rank + 1) % HERE.size), "share memory"),
    "sparse bool": (lambda: dist.all_reduce(torch.eye(2).bool().to_sparse()), "cannot add Bool"),
    "BAND": (lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND), "BAND of float32"),
    "broadcast root": (lambda: dist.broadcast(torch.ones(2), HERE.size), "root"),
    "gather output": (lambda: dist.all_gather_into_tensor(torch.ones(5), torch.ones(2)), "5"),
    "gather list": (lambda: dist.all_gather(buffers(2)[1:], torch.ones(2)), "output tensors"),
    "gather sizes": (lambda: dist.all_gather(buffers(3), torch.ones(2)), "3 elements, wanted 2"),
    "scatter input": (lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(5)), "5"),
    "scatter list": (lambda: dist.reduce_scatter(torch.ones(2), buffers(2)[1:]), "input tensors"),
    "scatter root": (lambda: dist.scatter(torch.ones(1), None, src=HERE.size), "rank"),
    "all_to_all list": (lambda: dist.all_to_all(buffers(1)[1:], buffers(1)), "output tensors"),
    "all_to_all rows": (lambda: dist.all_to_all_single(torch.ones(7), torch.ones(7)), "7 rows"),
    "all_to_all sum": (
        lambda: dist.all_to_all_single(torch.ones(6), torch.ones(6), [1, 2, 4], [2, 2, 2]),
        "add up to 7",
    ),
    "all_to_all split": (
        lambda: dist.all_to_all_single(torch.ones(6), torch.ones(6), [7, 1, -2], [2, 2, 2]),
        "negative",
    ),
}


def refused(name: str) -> tuple[str, float]:
    """On a rank: the error of a call; a sum that shows that the group still works."""
    message = ""
    try:
        REFUSED[name][0]()
    except (RuntimeError, ValueError) as error:
        message = str(error)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return message, float(tensor)


def complex_numbers() -> complex:
    """On a rank: torch hands complex tensors over as pairs of reals."""
    tensor = torch.full((3,), 1 + 2j * HERE.rank)
    dist.all_reduce(tensor)
    return complex(tensor[-1])


def conjugates() -> list[bool]:
    """On a rank: lazily conjugated and negated views hold other bits than their elements; past torch's own handling."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    number = torch.full((3,), 1 + 2j * HERE.rank)
    summed, minus = number.clone().conj(), number.clone().conj().imag
    backend.allreduce([summed], dist.AllreduceOptions()).wait()
    backend.broadcast([minus], dist.BroadcastOptions()).wait()
    total = torch.full((3,), HERE.size - 2j * sum(range(HERE.size)))
    return [summed.is_conj() and torch.equal(summed, total), minus.is_neg() and torch.equal(minus, torch.zeros(3))]


def test_complex_sums_are_sums_of_pairs(trio):
    assert trio.run(complex_numbers) == [3 + 6j] * 3


def test_conjugate_and_negative_views(trio):
    assert trio.run(conjugates) == [[True] * 2] * 3


def expanded_source() -> bool:
    """On a rank: an expanded tensor can be sent, as nothing is written to it."""
    tensor = torch.ones(1).expand(3) if HERE.rank == 1 else torch.zeros(3)
    dist.broadcast(tensor, 1)
    gathered = torch.zeros(3 * HERE.size)
    dist.all_gather_into_tensor(gathered, torch.ones(1).expand(3))
    return bool((tensor == 1).all() and (gathered == 1).all())


def test_what_is_only_read_may_be_expanded(trio):
    assert trio.run(expanded_source) == [True] * 3


def test_any_strides(trio):
    assert trio.run(strided) == [[True] * 6] * 3


def test_overlapping_memory(trio):
    assert trio.run(aliased) == [[True] * 5] * 3


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_says_so_and_harms_nothing(world_of, name):
    wanted = REFUSED[name][1]
    for message, works in world_of(3, transport="shm").run(refused, name):
        assert wanted.lower() in message.lower(), message
        assert works == 3.0
