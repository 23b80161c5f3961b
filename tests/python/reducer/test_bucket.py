"""Buckets: which parameters are in one, views and padding, gradients in and out, and where their memory lies."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist
from ranks import BACKENDS, HERE, on_ranks
from rig import backward, folded, gradients, reducer_of, same_bits
from ringdp import _native

make_layout = _native.load().make_layout


def random_parts(seed: int) -> list[tuple[int, int, bool]]:
    source = random.Random(seed)
    return [(source.randrange(0, 5000), source.randrange(3), source.random() < 0.1) for _ in range(60)]


@pytest.mark.parametrize("seed", range(8))
def test_every_parameter_is_in_one_bucket_of_its_kind(seed):
    parts = random_parts(seed)
    order = random.Random(seed).sample(range(len(parts)), len(parts))
    layout = make_layout(parts, order, [1000, 8000])
    assert sorted(index for bucket in layout for index in bucket) == list(range(len(parts)))
    for bucket in layout:
        assert len({parts[index][1] for index in bucket}) == 1
        assert len(bucket) == 1 or not any(parts[index][2] for index in bucket)
        positions = [order.index(index) for index in bucket]
        assert positions == sorted(positions)


@pytest.mark.parametrize("seed", range(8))
def test_buckets_stand_in_the_order_in_which_they_are_complete(seed):
    parts = random_parts(seed)
    order = list(range(len(parts)))[::-1]
    ends = [max(order.index(index) for index in bucket) for bucket in make_layout(parts, order, [3000])]
    assert ends == sorted(ends)


@pytest.mark.parametrize("limit", [0, 1, 700, 6000, 10**9])
@pytest.mark.parametrize("seed", range(4))
def test_gradients_that_share_a_bucket_may_have_to_stay_within_its_limit(seed, limit):
    parts = random_parts(seed)
    layout = make_layout(parts, range(len(parts)), [limit], hard_limits=True)
    assert sorted(index for bucket in layout for index in bucket) == list(range(len(parts)))
    assert all(len(bucket) == 1 or sum(parts[index][0] for index in bucket) <= limit for bucket in layout)
    open_at: dict[int, tuple[int, int]] = {}  # kind -> bucket, bytes; greedy: what fits goes in
    number_of = {index: number for number, bucket in enumerate(layout) for index in bucket}
    for index, (size, kind, own_bucket) in enumerate(parts):
        number, filled = open_at.get(kind, (-1, limit))
        if not own_bucket and size < limit and filled < limit and filled + size <= limit:
            assert number_of[index] == number
        if not own_bucket and size < limit:
            open_at[kind] = (number_of[index], filled + size if number_of[index] == number else size)


@pytest.mark.parametrize("limit", [0, 1, 130, 700, 10**9])
def test_a_bucket_is_full_when_it_reaches_its_limit_and_not_before(limit):
    parts = [(size, 0, False) for size in (100, 900, 50, 3000, 10, 10, 100, 2500, 1)]
    layout = [[parts[index][0] for index in bucket] for bucket in make_layout(parts, range(len(parts)), [limit])]
    for sizes in layout:
        assert sum(sizes[:-1]) < limit or len(sizes) == 1
        # A gradient that fills a bucket has it for itself.
        assert len(sizes) == 1 or max(sizes) < limit
    assert sum(sum(sizes) < limit for sizes in layout) <= 1


def test_limits_go_by_the_number_of_the_bucket():
    parts = [(10, 0, False)] * 12
    assert [len(bucket) for bucket in make_layout(parts, range(12), [10, 20, 40])] == [1, 2, 4, 4, 1]
    assert make_layout([(5, 0, False), (50, 0, False), (5, 0, False)], range(3), [9, 10]) == [[1], [0, 2]]


def test_the_number_of_buckets_is_about_bytes_over_limit():
    parts = [(4 * 1024, 0, False)] * 1000
    limit = 100 * 1024
    assert len(make_layout(parts, range(1000), [limit])) == 1000 * 4 * 1024 // limit


def test_equal_arguments_give_equal_layouts_and_no_parameters_none():
    parts = random_parts(3)
    assert make_layout(parts, range(60), [99]) == make_layout(parts, range(60), [99])
    assert make_layout([], [], [1]) == []


# Buckets: views and padding, gradients in and out, and where their memory lies.

SHAPES = [[3, 5], [], [0], [7], [2, 3, 4, 5]]


def parameters_of(dtype: torch.dtype) -> list[torch.Tensor]:
    made = [torch.zeros(shape, dtype=dtype) for shape in SHAPES]
    made[4] = made[4].contiguous(memory_format=torch.channels_last)
    made.append(torch.zeros(6, 4, dtype=dtype).t())  # dense, but not row-major
    made.append(torch.zeros(4, 6, dtype=dtype)[:, ::2])  # not dense
    return [p.requires_grad_() for p in made]


@pytest.mark.parametrize("limit", [0, 1 << 30], ids=["lone", "together"])
@pytest.mark.parametrize("as_view", [False, True], ids=["own memory", "views"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@on_ranks(3, [True] * 7)
def test_every_shape_and_stride_gets_its_mean(
    backend: str, dtype: torch.dtype, as_view: bool, limit: int
) -> list[bool]:
    """Per parameter, whether values and strides of .grad are those of one process."""
    parameters = parameters_of(dtype)
    shapes = [list(p.shape) for p in parameters]
    inputs = [gradients(rank, shapes, dtype) for rank in range(HERE.size)]
    reducer = reducer_of(parameters, backend, gradient_as_bucket_view=as_view, bucket_limits=[limit])
    backward(reducer, parameters, inputs[HERE.rank])
    right = []
    for index, parameter in enumerate(parameters):
        # d(p * g)/dp of complex numbers is conjugated.
        expected = folded([by_rank[index].conj().resolve_conj() for by_rank in inputs], HERE.size)
        dense = parameter.stride() if index != 6 else torch.empty(parameter.shape).stride()
        equal = torch.equal if dtype.is_complex else same_bits  # signs of zeros: 1 * (a - 0j) has either
        right.append(equal(parameter.grad, expected) and parameter.grad.stride() == dense)
    return right


@on_ranks(1, [([3, 1], "Double"), ([2, 0], "Float")])
def test_a_bucket_has_one_dtype() -> list[tuple[list[int], str]]:
    dtypes = [torch.float32, torch.float64, torch.float32, torch.float64]
    parameters = [torch.zeros(10, dtype=dtype, requires_grad=True) for dtype in dtypes]
    reducer = reducer_of(parameters)
    return [(bucket["indices"], bucket["dtype"]) for bucket in reducer.buckets()]


@pytest.mark.parametrize("as_view", [False, True])
@on_ranks(3, [True] * 4)
def test_gradients_that_share_memory_are_not_reduced_twice(as_view: bool) -> list[bool]:
    """Two gradients that autograd lets share memory, each in a bucket of its own, twice."""
    right = []
    for step in range(2):
        parameters = [torch.zeros(6, requires_grad=True), torch.zeros(2, 3, requires_grad=True)]
        reducer = reducer_of(parameters, bucket_limits=[0], gradient_as_bucket_view=as_view)
        inputs = [gradients(rank, [[6]], seed=step)[0] for rank in range(HERE.size)]
        reducer.prepare_for_forward()
        reducer.prepare_for_backward([])
        # Both get the gradient of the sum: the second one a view of the first one's memory.
        ((parameters[0] + parameters[1].view(6)) * inputs[HERE.rank]).sum().backward()
        mean = folded(inputs, HERE.size)
        right += [same_bits(parameters[0].grad, mean), same_bits(parameters[1].grad, mean.view(2, 3))]
    return right


@pytest.mark.parametrize("as_view", [False, True])
@on_ranks(3, (True, True))
def test_a_lone_gradient_is_nobody_elses(as_view: bool) -> tuple[bool, bool]:
    """A large gradient is reduced where it lies, also with a view of it held; a dropped one is freed."""
    parameter = torch.zeros(100_000, requires_grad=True)
    reducer = reducer_of([parameter], bucket_limits=[0], gradient_as_bucket_view=as_view)
    backward(reducer, [parameter], [torch.full((100_000,), float(HERE.rank))])
    held = parameter.grad[:10]
    for _ in range(2):
        parameter.grad.zero_()
        backward(reducer, [parameter], [torch.full((100_000,), 3.0 * HERE.rank)])
    right = bool((parameter.grad == 3).all()) and bool((held == 3).all() or as_view)
    addresses = set()
    for _ in range(10):
        parameter.grad = held = None
        backward(reducer, [parameter], [torch.ones(100_000)])
        addresses.add(parameter.grad.data_ptr())
    return right, len(addresses) <= 2  # what was dropped is free again, at the latest one step later


def of_linear(held: bool) -> tuple[bool, bool]:
    """On a rank: the mean of a linear layer's gradient, a view of what autograd makes, is right; it is the bucket."""
    layer = torch.nn.Linear(300, 200, bias=False)
    reducer = reducer_of([layer.weight], bucket_limits=[0])
    gradients: list[int] = []
    products: list[torch.Tensor] = []
    buckets: list[int] = []

    def look(gradient: torch.Tensor) -> None:
        gradients.append(gradient.data_ptr())
        if held:
            products.append(gradient._base)

    def reduce(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buckets.append(bucket.buffer().data_ptr())
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    layer.weight.register_hook(look)
    reducer.register_comm_hook(None, reduce)
    loss = layer(torch.full((4, 300), float(HERE.rank))).sum()
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([loss])
    loss.backward()
    return bool((layer.weight.grad == 12).all()), buckets == gradients


@pytest.mark.parametrize("held", [False, True])
def test_the_gradient_of_a_linear_layer_is_reduced_where_it_lies_unless_somebody_holds_it(trio, held):
    assert trio.run(of_linear, held) == [(True, not held)] * 3


# Gradients in and out: views or copies, absent ones, what does not fit.


def identity(as_view: bool) -> tuple[bool, bool, bool]:
    """On a rank: .grad is the same tensor in the second step; two parameters share storage; values are right."""
    parameters = [torch.zeros(8, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, gradient_as_bucket_view=as_view)
    backward(reducer, parameters, [torch.ones(8), torch.ones(8)])
    first = parameters[0].grad
    share = first.untyped_storage().data_ptr() == parameters[1].grad.untyped_storage().data_ptr()
    backward(reducer, parameters, [torch.ones(8), torch.ones(8)])
    return parameters[0].grad is first, share, bool((first == 2).all())


def test_views_share_the_bucket_and_copies_do_not(trio):
    assert trio.run(identity, True) == [(True, True, True)] * 3
    assert trio.run(identity, False) == [(True, False, True)] * 3


@pytest.mark.parametrize("users", [[0], [1], [2], [1, 2]])
@on_ranks(3, (True, True))
def test_absent_gradients_leave_the_bits_of_the_others(users: list[int]) -> tuple[bool, bool]:
    """A parameter that only `users` have used has the mean of those; the other parameter is as ever.

    Signs of zeros included: adding a plain zero would turn -0.0 into 0.0.
    """
    shapes = [[9], [9]]
    inputs = [gradients(rank, shapes) for rank in range(HERE.size)]
    for by_rank in inputs:
        by_rank[1][:3] = -0.0
    parameters = [torch.zeros(9, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, find_unused=True)
    own = inputs[HERE.rank]
    backward(reducer, parameters, [own[0], own[1] if HERE.rank in users else None])
    of_users = folded([inputs[rank][1] if rank in users else None for rank in range(HERE.size)], HERE.size)
    return same_bits(parameters[0].grad, folded([i[0] for i in inputs], HERE.size)), same_bits(
        parameters[1].grad, of_users
    )


@on_ranks(1, error="gradient of p0 is sparse")
def test_an_unannounced_sparse_gradient_is_named() -> None:
    """What a sparse gradient of a layer that does not announce it leads to."""
    table = torch.zeros(10, 4, requires_grad=True)
    reducer = reducer_of([table])
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    torch.nn.functional.embedding(torch.tensor([1]), table, sparse=True).sum().backward()


@on_ranks(1, error="gradient_as_bucket_view=True: the .grad of p1")
def test_a_replaced_view_is_named() -> None:
    """What a .grad that is no longer the view leads to. The replacing hook runs after the reducer's."""
    parameters = [torch.zeros(4, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, gradient_as_bucket_view=True)
    accumulator = parameters[1].expand_as(parameters[1]).grad_fn.next_functions[0][0]

    def replace(*_: object) -> None:
        parameters[1].grad = torch.ones(4)

    accumulator.register_hook(replace)
    backward(reducer, parameters, [torch.ones(4), torch.ones(4)])


@on_ranks(3, [True] * 6)
def test_views_survive_that_their_data_is_replaced() -> list[bool]:
    """Somebody sets .grad.data of views, as torch's mixed precision does; the next means are right."""
    parameters = [torch.zeros(4, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, gradient_as_bucket_view=True)
    right = []
    for step in range(3):
        inputs = [gradients(rank, [[4], [4]], seed=step) for rank in range(HERE.size)]
        for p in parameters:
            if p.grad is not None:
                p.grad.zero_()
        backward(reducer, parameters, inputs[HERE.rank])
        right += [same_bits(p.grad, folded([i[n] for i in inputs], HERE.size)) for n, p in enumerate(parameters)]
        for p in parameters:
            p.grad.data = p.grad.clone()
    return right


@on_ranks(3, [True] * 2)
def test_an_absent_complex_gradient_of_any_stride_is_a_zero() -> list[bool]:
    """Rank 1 has no gradient for a complex parameter that is stored column by column; twice."""
    parameters = [torch.zeros(5, 3, dtype=torch.complex64).t().requires_grad_()]
    parameters.append(torch.zeros(4, dtype=torch.complex64, requires_grad=True))
    reducer = reducer_of(parameters, find_unused=True)
    right = []
    for step in range(2):  # the second time the bucket holds the first mean
        inputs = [gradients(rank, [[3, 5], [4]], torch.complex64, seed=step) for rank in range(HERE.size)]
        for p in parameters:
            p.grad = None
        own = inputs[HERE.rank]
        # The gradient of the real part of p * g is the conjugate of g.
        backward(reducer, parameters, [own[0].conj() if HERE.rank != 1 else None, own[1].conj()])
        there = [i[0].resolve_conj() for rank, i in enumerate(inputs) if rank != 1]
        right.append(bool(torch.isclose(parameters[0].grad, sum(there) / 3).all()))
    return right


# Where buckets lie: in shared memory of a group that has some, else in ordinary memory.


def places(backend: str) -> tuple[bool, bool]:
    """On a rank: whether a bucket is said to be shared; whether a mean through it is right."""
    parameter = torch.zeros(5000, requires_grad=True)
    reducer = reducer_of([parameter], backend)
    by_rank = [gradients(rank, [[5000]])[0] for rank in range(HERE.size)]
    backward(reducer, [parameter], [by_rank[HERE.rank]])
    return reducer.buckets()[0]["shared"], same_bits(parameter.grad, folded(by_rank, HERE.size))


def test_a_group_with_shared_memory_lends_it(trio):
    assert trio.run(places, "ringdp") == [(True, True)] * 3


def test_others_have_ordinary_memory(world_of, trio):
    assert trio.run(places, BACKENDS[1]) == [(False, True)] * 3
    assert world_of(3, transport="tcp").run(places, "ringdp") == [(False, True)] * 3
    assert world_of(1).run(places, "ringdp") == [(False, True)]


def traffic_of_a_large_gradient(accumulated: bool) -> float:
    """On a rank: bytes read and written by the collective, per byte of a gradient that has a bucket for itself."""
    parameter = torch.zeros(200_000, requires_grad=True)
    reducer = reducer_of([parameter], bucket_limits=[0])
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if accumulated:  # before the reducer knows of a step: ordinary memory
        (parameter * 1.0).sum().backward()
    before = backend.counters()
    backward(reducer, [parameter], [torch.ones(200_000)])
    after = backend.counters()
    return sum(after[key] - before[key] for key in ("memory_bytes_read", "memory_bytes_written")) / 800_000


def test_large_gradients_are_made_in_shared_memory_and_reduced_there(world_of):
    """One pass moves 2 bytes per byte; through slots it is more."""
    pair = world_of(2)
    assert all(moved == pytest.approx(2, rel=0.01) for moved in pair.run(traffic_of_a_large_gradient, False))
    assert all(moved > 2.5 for moved in pair.run(traffic_of_a_large_gradient, True))


def tensors_outside() -> tuple[float, float]:
    """On a rank: a tensor of the gradient's size made after the step is ordinary; a full heap is no error."""
    parameter = torch.zeros(200_000, requires_grad=True)
    reducer = reducer_of([parameter], bucket_limits=[0])
    backward(reducer, [parameter], [torch.ones(200_000)])
    other = torch.ones(200_000)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend.counters()["memory_bytes_read"]
    dist.all_reduce(other)
    return float(parameter.grad[0]), (backend.counters()["memory_bytes_read"] - before) / 800_000


def test_the_scope_ends_with_the_step_and_a_full_heap_is_no_error(world_of):
    assert all(grad == 1 and read > 1.4 for grad, read in world_of(2).run(tensors_outside))
    assert all(grad == 1 for grad, _ in world_of(2, heap_bytes=1 << 19).run(tensors_outside))


LARGE, SMALL = (150_000,), (300,)


def layouts(backend):
    """The layout of large and small gradients by what is asked for, and whether means are right."""
    shapes = [SMALL, LARGE, SMALL, LARGE]

    def of(**options):
        parameters = [torch.zeros(shape, requires_grad=True) for shape in shapes]
        settings = {"bucket_limits": [8 << 20], "own_bucket_bytes": 1 << 19, **options}
        return parameters, reducer_of(parameters, backend, **settings)

    asked = {
        "default": {},
        "views": {"gradient_as_bucket_view": True},
        "as they fit": {"own_bucket_bytes": 0},
        "larger": {"own_bucket_bytes": 1 << 20},
        "leaves": {"micro_batches": 2},
        "shards": {"shard_block": 64},
    }
    parts = {name: of(**options)[1].layout() for name, options in asked.items()}
    hooked = of()[1]
    hooked.register_comm_hook(None, lambda state, bucket: None)
    parts["hook"] = hooked.layout()
    right = True
    for views in (False, True):
        parameters, reducer = of(gradient_as_bucket_view=views)
        for seed in range(2):
            given = [gradients(rank, shapes, seed=seed) for rank in range(HERE.size)]
            for parameter in parameters:
                parameter.grad = None
            backward(reducer, parameters, given[HERE.rank])
            means = [folded(by_rank, HERE.size) for by_rank in zip(*given, strict=True)]
            right &= all(same_bits(p.grad, mean) for p, mean in zip(parameters, means, strict=True))
    return parts, right


TOGETHER = [[3, 2, 1, 0]]
APART = [[3], [1], [2, 0]]


@pytest.mark.parametrize(
    ("backend", "settings", "apart"),
    [("ringdp", {}, True), ("ringdp", {"transport": "tcp"}, False), ("gloo", {}, False)],
)
def test_large_gradients_share_no_bucket_where_ranks_read_them_in_place(world_of, backend, settings, apart):
    for parts, right in world_of(2, **settings).run(layouts, backend):
        assert right
        assert parts == {
            "default": APART if apart else TOGETHER,
            "views": APART if apart else TOGETHER,
            "as they fit": TOGETHER,
            "larger": TOGETHER,
            "leaves": TOGETHER,
            "shards": TOGETHER,
            "hook": TOGETHER,
        }


def two_wrappers():
    """A parameter in two reducers, one pass of both: each takes what the other leaves, as torch's do."""
    parameter = torch.zeros(LARGE, requires_grad=True)
    one, other = (reducer_of([parameter], bucket_limits=[8 << 20], own_bucket_bytes=1 << 19) for _ in range(2))
    right = True
    for seed in range(10):
        given = [gradients(rank, [LARGE], seed=seed)[0] for rank in range(HERE.size)]
        parameter.grad = None
        for reducer in (one, other):
            reducer.prepare_for_forward()
        loss = (parameter * given[HERE.rank]).sum()
        for reducer in (one, other):
            reducer.prepare_for_backward([loss])
        loss.backward()
        mean = folded(given, HERE.size)
        right &= same_bits(parameter.grad, mean)
    return right


def test_a_gradient_that_another_reducer_reads_is_not_reduced_in_its_place(pair):
    assert pair.run(two_wrappers) == [True, True]
