"""The reducer as it is made, its buckets by order of arrival, what it tells about itself, and its errors."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from ranks import BACKENDS, HERE, error_of, on_ranks
from rig import backward, folded, gradients, reducer_of, same_bits

MIB = 1 << 20


def first_layout() -> tuple[list[list[int]], int]:
    """On a rank: buckets of the first step, and how many collectives it takes."""
    parameters = [torch.zeros(MIB // 8, requires_grad=True) for _ in range(12)]  # half a MiB each
    reducer = reducer_of(parameters, bucket_limits=[MIB, 2 * MIB])
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend.counters()["collectives"]
    backward(reducer, parameters, [torch.ones(MIB // 8)] * 12)
    collectives = backend.counters()["collectives"] - before
    return [bucket["indices"] for bucket in reducer.buckets()], collectives


def test_buckets_serve_from_the_first_step_in_reverse_order(trio):
    layout = [[11, 10], [9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]
    assert trio.run(first_layout) == [(layout, len(layout))] * 3


@on_ranks(3, [[1, 3], [0], [2]])
def test_a_layout_that_is_given_stays() -> list[list[int]]:
    """Buckets of a layout that is given, after a step in another order."""
    parameters = [torch.zeros(4, requires_grad=True) for _ in range(4)]
    reducer = reducer_of(parameters, layout=[[1, 3], [0], [2]], bucket_limits=[1])
    for _ in range(2):
        backward(reducer, parameters, [torch.ones(4)] * 4)
    return reducer.layout()


@on_ranks(3, True)
def test_nothing_is_left_behind() -> bool:
    """A reducer leaves no hook and no cycle behind."""
    parameter = torch.zeros(4, requires_grad=True)
    reducer = reducer_of([parameter])
    backward(reducer, [parameter], [torch.ones(4)])
    gone = weakref.ref(reducer)
    del reducer
    gc.collect()
    parameter.grad = None
    (parameter * float(HERE.rank)).sum().backward()
    return gone() is None and parameter.grad.tolist() == [float(HERE.rank)] * 4


@on_ranks(1, error="before training loop starts")
def test_a_graph_cannot_become_static_later() -> None:
    parameter = torch.zeros(4, requires_grad=True)
    reducer = reducer_of([parameter])
    backward(reducer, [parameter], [torch.ones(4)])
    reducer.set_static_graph()


# Buckets by order of arrival: once, with gradients moved along; resets and other groups.

SHAPES = [[10]] * 6


def in_order(order: list[int], as_view: bool) -> tuple[list[bool], list[list[int]], bool]:
    """On a rank: whether each forward pass rebuilt; the layout; whether views were carried over with their values."""
    parameters = [torch.zeros(shape, requires_grad=True) for shape in SHAPES]
    reducer = reducer_of(parameters, bucket_limits=[80], gradient_as_bucket_view=as_view)
    rebuilt, kept = [], True
    for _ in range(3):
        before = [None if p.grad is None else p.grad.clone() for p in parameters]
        reducer.prepare_for_forward()
        rebuilt.append(reducer.rebuild_buckets())
        kept = kept and all(b is None or same_bits(p.grad, b) for p, b in zip(parameters, before, strict=True))
        reducer.prepare_for_backward([])
        for index in order:
            parameters[index].grad = None
            (parameters[index] * 2.0).sum().backward()
        kept = kept and all(bool((p.grad == 2).all()) for p in parameters)
    return rebuilt, [bucket["indices"] for bucket in reducer.buckets()], kept


@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]])
def test_buckets_follow_the_first_arrival_once(trio, order, as_view):
    buckets = [order[0:2], order[2:4], order[4:6]]
    assert trio.run(in_order, order, as_view) == [([False, True, False], buckets, True)] * 3


@on_ranks(2, [False] * 3)
def test_the_search_for_unused_parameters_keeps_the_layout() -> list[bool]:
    parameters = [torch.zeros(4, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, find_unused=True)
    rebuilt = []
    for _ in range(3):
        reducer.prepare_for_forward()
        rebuilt.append(reducer.rebuild_buckets())
        loss = (parameters[0] * 1.0).sum()
        reducer.prepare_for_backward([loss])
        loss.backward()
    return rebuilt


@on_ranks(3, True)
def test_a_reducer_moves_to_another_group() -> bool:
    """A failed step is forgotten; two of three ranks go on in a group of their own."""
    parameters = [torch.zeros(shape, requires_grad=True) for shape in SHAPES]
    reducer = reducer_of(parameters)
    backward(reducer, parameters, gradients(HERE.rank, SHAPES))
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    (parameters[0] * 1.0).sum().backward()  # not finished
    pair = dist.new_group([0, 2])
    if HERE.rank == 1:
        return True
    reducer.reset()
    reducer.set_group(pair)
    inputs = [gradients(rank, SHAPES, seed=5) for rank in (0, 2)]
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = None
        backward(reducer, parameters, inputs[HERE.rank // 2])
    right = all(same_bits(p.grad, folded([g[i] for g in inputs], 2)) for i, p in enumerate(parameters))
    # torch hashes how many groups a rank is in into the names of some: it has to be the same on all for later tests.
    dist.destroy_process_group(pair)
    return right


# Gradients arrive in another order on each rank; buckets are laid out as on rank 0.

COUNT = 5


def layouts(backend: str) -> tuple[list[int], list[list[int]], bool]:
    """On a rank: its own order of arrival; the buckets after the rebuild; whether the mean is still right."""
    parameters = [torch.zeros(10, requires_grad=True) for _ in range(COUNT)]
    reducer = reducer_of(parameters, backend, bucket_limits=[80])
    inputs = [gradients(rank, [[10]] * COUNT) for rank in range(HERE.size)]
    own_order = [(index * 2 + HERE.rank) % COUNT for index in range(COUNT)]
    arrival: list[int] = []
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = None
        reducer.prepare_for_forward()
        reducer.rebuild_buckets()
        reducer.prepare_for_backward([])
        for index in own_order:
            (parameters[index] * inputs[HERE.rank][index]).sum().backward()
        arrival = arrival or reducer.arrival_order()
    right = all(
        same_bits(p.grad, folded([by_rank[index] for by_rank in inputs], HERE.size))
        for index, p in enumerate(parameters)
    )
    return arrival, [bucket["indices"] for bucket in reducer.buckets()], right


@pytest.mark.parametrize("backend", BACKENDS)
def test_rank_zeros_order_is_everybodys(trio, backend):
    outcomes = trio.run(layouts, backend)
    assert len({tuple(arrival) for arrival, _, _ in outcomes}) == 3
    first = outcomes[0][0]
    for _, buckets, right in outcomes:
        assert buckets == [first[0:2], first[2:4], first[4:5]]
        assert right


# What a reducer tells about itself: bytes, memory, order, numbers.


def facts(backend: str) -> tuple[list[tuple[int, int]], dict[str, int], list[int], str]:
    parameters = [torch.zeros(shape, requires_grad=True) for shape in ([5], [7], [6])]
    reducer = reducer_of(parameters, backend, bucket_limits=[40])
    backward(reducer, parameters, [torch.ones(5), torch.ones(7), torch.ones(6)])
    sizes = [(bucket["bytes"], bucket["memory_bytes"]) for bucket in reducer.buckets()]
    return sizes, reducer.stats(), sorted(reducer.arrival_order()), reducer.mean_name()


def test_bytes_are_those_of_the_gradients_and_of_the_memory(trio):
    numbers = {"rebuilt": 0, "unused_changed": 0, "launched": 2}
    # The last one holds one gradient, which is reduced where it lies.
    assert trio.run(facts, "ringdp") == [([(52, 52), (20, 0)], numbers, [0, 1, 2], "fused")] * 3
    # Exchanged shards: memory is a multiple of three elements.
    assert trio.run(facts, "gloo") == [([(52, 60), (20, 0)], numbers, [0, 1, 2], "exchanged")] * 3


@on_ranks(2, [0, 0, 1])
def test_a_graph_that_changes_is_noticed() -> list[int]:
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, find_unused=True)
    changed = []
    for used in ([0], [0], [1]):
        loss = sum(parameters[index].sum() for index in used)
        reducer.prepare_for_forward()
        reducer.prepare_for_backward([loss])
        loss.backward()
        changed.append(reducer.stats()["unused_changed"])
    return changed


# Error messages name parameters, and keep the words that users and tests look for.


def unfinished(find_unused: bool, static: bool, count: int) -> str:
    """On a rank: what the next forward pass says when the first of `count` parameters got no gradient."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(count)]
    reducer = reducer_of(parameters, find_unused=find_unused)
    if static:
        reducer.set_static_graph()
        reducer.prepare_for_forward()
        reducer.prepare_for_backward([])
        sum((p * 1.0).sum() for p in parameters).backward()
        reducer.delay_all_reduce()
    reducer.prepare_for_forward()
    used = (parameters[-1] * 1.0).sum()
    reducer.prepare_for_backward([used + sum((p * 0.0).sum() for p in parameters)])
    used.backward()
    return error_of(reducer.rebuild_buckets)


KEY = "Expected to have finished reduction in the prior iteration"
OUTPUTS = "`forward` function outputs participate in calculating loss"


@pytest.mark.parametrize(
    ("find_unused", "static", "wanted", "unwanted"),
    [
        (False, False, ["passing the keyword argument `find_unused_parameters=True`", OUTPUTS], ["is enabled"]),
        (True, False, ["Since `find_unused_parameters=True` is enabled", OUTPUTS], ["passing the keyword"]),
        (False, True, ["not compatible with static_graph"], ["passing the keyword"]),
    ],
)
def test_unfinished_steps_name_parameters_and_the_way_out(world_of, find_unused, static, wanted, unwanted):
    said = world_of(1).run(unfinished, find_unused, static, 2)[0]
    assert KEY in said and "did not receive grad for rank 0: p0" in said
    assert all(words in said for words in wanted) and not any(words in said for words in unwanted)


def test_long_lists_are_cut(world_of):
    said = world_of(1).run(unfinished, False, False, 80)[0]
    assert "p0, p1" in said and "and 29 more" in said


@on_ranks(1, True)
def test_nothing_is_said_when_nothing_is_open() -> bool:
    parameters = [torch.zeros(2, requires_grad=True)]
    reducer = reducer_of(parameters)
    for _ in range(3):
        backward(reducer, parameters, [torch.ones(2)])
    reducer.check_finished()
    return True
