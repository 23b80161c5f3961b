"""Ranks that disagree: a Mismatch on every rank, in time, naming both sides; no rank gets a wrong sum."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, Outcome, World
from torch.distributed import ReduceOp

LATER_S = 0.1
IN_TIME_S = 5.0  # what a busy machine may take; without notice it would be the group's minute


def all_reduce(count: int = 8, dtype: torch.dtype = torch.float32, op: Any = ReduceOp.SUM) -> Callable[..., Any]:
    return lambda group, **how: dist.all_reduce(torch.ones(count, dtype=dtype), op=op, group=group, **how)


def broadcast(count: int = 8, root: int = 0) -> Callable[..., Any]:
    return lambda group: dist.broadcast(torch.ones(count), root, group=group)


def all_gather(count: int = 4) -> Callable[..., Any]:
    return lambda group: dist.all_gather_into_tensor(torch.ones(4 * count), torch.ones(count), group=group)


def reduce_scatter(count: int = 4, op: Any = ReduceOp.SUM) -> Callable[..., Any]:
    return lambda group: dist.reduce_scatter_tensor(torch.ones(count), torch.ones(4 * count), op=op, group=group)


def barrier() -> Callable[..., Any]:
    return lambda group: dist.barrier(group=group)


def reduce(count: int = 8, root: int = 0) -> Callable[..., Any]:
    return lambda group: dist.reduce(torch.ones(count), root, group=group)


def gather(count: int = 4, root: int = 0) -> Callable[..., Any]:
    return lambda group: dist.gather(
        torch.ones(count), [torch.ones(count) for _ in range(4)] if HERE.rank == root else None, root, group
    )


def scatter(count: int = 4, root: int = 0) -> Callable[..., Any]:
    return lambda group: dist.scatter(
        torch.ones(count), [torch.ones(count) for _ in range(4)] if HERE.rank == root else None, root, group
    )


def uneven_gather(*counts: int) -> Callable[..., Any]:
    return lambda group: dist.all_gather(
        [torch.ones(count) for count in counts], torch.ones(counts[HERE.rank]), group=group
    )


def exchange(extra: int = 0) -> Callable[..., Any]:
    """all_to_all of 2 elements for every rank, `extra` more for the next one."""

    def run(group: Any) -> None:
        counts = [2 + extra * (rank == (HERE.rank + 1) % 4) for rank in range(4)]
        dist.all_to_all_single(torch.ones(8), torch.ones(sum(counts)), [2] * 4, counts, group=group)

    return run


def divided(divisor: float) -> Callable[..., Any]:
    return lambda group: group._get_backend(torch.device("cpu")).reduce_div(torch.ones(8), divisor).wait()


def in_order(*calls: Callable[..., Any]) -> Callable[..., Any]:
    """Several calls in flight at once, as buckets are."""

    def run(group: Any) -> None:
        for work in [call(group, async_op=True) for call in calls]:
            work.wait()

    return run


# name -> (what the odd rank calls, what the others call, how the odd call reads, how the others' call reads)
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], str, str]] = {
    "reduce op": (all_reduce(op=ReduceOp.MAX), all_reduce(), "all_reduce(MAX, ", "all_reduce(SUM, "),
    "dtype of the same width": (all_reduce(dtype=torch.int32), all_reduce(), "int32 x 8", "float32 x 8"),
    "dtype of another width": (all_reduce(dtype=torch.float64), all_reduce(), "float64 x 8", "float32 x 8"),
    "size": (all_reduce(9), all_reduce(8), "x 9", "x 8"),
    "size of a large tensor": (all_reduce(1 << 21), all_reduce(1 << 20), f"x {1 << 21}", f"x {1 << 20}"),
    "empty tensor": (all_reduce(0), all_reduce(8), "x 0", "x 8"),
    "order of sizes": (in_order(all_reduce(16), all_reduce()), in_order(all_reduce(), all_reduce(16)), "x 16", "x 8"),
    "order of ops": (
        in_order(all_reduce(op=ReduceOp.MIN), all_reduce()),
        in_order(all_reduce(), all_reduce(op=ReduceOp.MIN)),
        "MIN",
        "SUM",
    ),
    "all_gather for all_reduce": (all_gather(), all_reduce(), "all_gather(", "all_reduce("),
    "reduce_scatter for all_gather": (reduce_scatter(), all_gather(), "reduce_scatter(", "all_gather("),
    "barrier for all_reduce": (barrier(), all_reduce(), "barrier(", "all_reduce("),
    "broadcast for all_reduce": (broadcast(), all_reduce(), "broadcast(", "all_reduce("),
    "all_reduce for broadcast": (all_reduce(), broadcast(), "all_reduce(", "broadcast("),
    "broadcast root": (broadcast(root=1), broadcast(root=0), "root 1", "root 0"),
    "size of a broadcast": (broadcast(5), broadcast(8), "x 5", "x 8"),
    "size of an all_gather": (all_gather(5), all_gather(4), "x 5", "x 4"),
    "size of a reduce_scatter": (reduce_scatter(5), reduce_scatter(4), "x 5", "x 4"),
    "root of a reduce": (reduce(root=3), reduce(root=1), "root 3", "root 1"),
    "size of a reduce": (reduce(9), reduce(8), "x 9", "x 8"),
    "root of a gather": (gather(root=3), gather(root=1), "root 3", "root 1"),
    "size of a gather": (gather(5), gather(4), "x 5", "x 4"),
    "size of a scatter": (scatter(5), scatter(4), "x 5", "x 4"),
    "reduce for all_reduce": (reduce(), all_reduce(), "reduce(SUM, float32 x 8, root 0)", "all_reduce("),
    "all_to_all for all_reduce": (exchange(), all_reduce(), "all_to_all(", "all_reduce("),
    "all_reduce for all_to_all": (all_reduce(), exchange(), "all_reduce(", "all_to_all("),
    "splits of an all_to_all": (exchange(1), exchange(), "sends 12 bytes", "expects 8"),
    "uneven parts": (uneven_gather(1, 2, 3, 5), uneven_gather(1, 2, 3, 4), "[1, 2, 3, 5]", "[1, 2, 3, 4]"),
    "uneven for even": (uneven_gather(3, 3, 3, 4), uneven_gather(3, 3, 3, 3), "[3, 3, 3, 4]", "x 3)"),
    "divisor": (divided(3), divided(4), "divisor 3", "divisor 4"),
    "op of a reduce_scatter": (reduce_scatter(op=ReduceOp.MAX), reduce_scatter(), "MAX", "SUM"),
}


def disagree(case: str, odd: int) -> tuple[float, str, float]:
    """On a rank, in a group of its own: when it called, the error it got and when."""
    group = dist.new_group(range(HERE.size))
    usual_or_odd = CASES[case][0 if HERE.rank == odd else 1]
    dist.barrier()
    if HERE.rank == odd:
        time.sleep(LATER_S)
    called = time.monotonic()
    try:
        usual_or_odd(group)
        # A root has sent all it has to send before the others disagree: the next call tells it.
        dist.barrier(group=group)
    except dist.DistBackendError as error:
        failed, text = time.monotonic(), str(error)
    else:
        return called, "", time.monotonic()
    with pytest.raises(dist.DistBackendError) as later:
        dist.all_reduce(torch.ones(2), group=group)
    assert str(later.value).splitlines()[0] == text.splitlines()[0]
    dist.destroy_process_group(group)
    return called, text, failed


@pytest.fixture(scope="module", params=["shm", "tcp", "shm ring", "tcp ring"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    transport, *ring = request.param.split()
    with World(4, transport=transport, algorithm=ring[0] if ring else "auto") as world:
        world.join()
        yield world


@pytest.mark.parametrize("odd", [2, 0])
@pytest.mark.parametrize("case", CASES)
def test_every_rank_is_told_both_sides(world, case, odd):
    results = world.run(disagree, case, odd)
    later_call = max(called for called, _, _ in results)
    _, _, odd_says, usual_says = CASES[case]
    for rank, (_, text, failed) in enumerate(results):
        assert text, f"rank {rank} was not told"
        assert text.startswith("Mismatch: "), text
        assert odd_says in text and usual_says in text, text
        assert f"rank {odd}" in text, text
        assert failed - later_call < IN_TIME_S, f"rank {rank} was told after {failed - later_call:.2f} s"


def cross_groups() -> list[float]:
    """On a rank: ranks 0 and 1 use one group first, ranks 2 and 3 the other."""
    groups = [dist.new_group(range(4)) for _ in range(2)]
    sums = [torch.full((4,), float(1 + index)) for index in range(2)]
    order = (0, 1) if HERE.rank < 2 else (1, 0)
    for work in [dist.all_reduce(sums[index], group=groups[index], async_op=True) for index in order]:
        work.wait()
    return [float(tensor[0]) for tensor in sums]


def test_groups_used_in_crossed_order_are_no_mismatch(world):
    """Every rank makes the same calls in the same order within each group, which is all that is asked."""
    assert world.run(cross_groups) == [[4.0, 8.0]] * 4


def settings_differ() -> None:
    """On a rank: rank 1 asks for other segments."""
    options = {"segment_bytes": 4096} if HERE.rank == 1 else {}
    import ringdp

    dist.new_group(range(HERE.size), pg_options=ringdp.Options(**options))


def test_different_settings_are_named(transport_world):
    outcomes: list[Outcome] = transport_world.attempt(settings_differ)
    for outcome in outcomes:
        assert "segment_bytes=4096" in outcome.error and "segment_bytes=262144" in outcome.error, outcome.error
    assert any("Mismatch" in outcome.error for outcome in outcomes)


@pytest.fixture
def transport_world(transport: str) -> Iterator[World]:
    with World(3, transport=transport) as world:
        world.join()
        yield world
