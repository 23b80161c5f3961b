"""Buckets: views strided as the parameters, complex numbers, lengths, padding, zero elements."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import BACKENDS, HERE
from rig import backward, folded, gradients, reducer_of, same_bits

SHAPES = [[3, 5], [], [0], [7], [2, 3, 4, 5]]


def parameters_of(dtype: torch.dtype) -> list[torch.Tensor]:
    made = [torch.zeros(shape, dtype=dtype) for shape in SHAPES]
    made[4] = made[4].contiguous(memory_format=torch.channels_last)
    made.append(torch.zeros(6, 4, dtype=dtype).t())  # dense, but not row-major
    made.append(torch.zeros(4, 6, dtype=dtype)[:, ::2])  # not dense
    return [p.requires_grad_() for p in made]


def mean_of_shapes(backend: str, dtype: torch.dtype, as_view: bool, limit: int) -> list[bool]:
    """On a rank: per parameter, whether values and strides of .grad are those of one process."""
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


@pytest.mark.parametrize("limit", [0, 1 << 30], ids=["lone", "together"])
@pytest.mark.parametrize("as_view", [False, True], ids=["own memory", "views"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_shape_and_stride_gets_its_mean(trio, backend, dtype, as_view, limit):
    assert trio.run(mean_of_shapes, backend, dtype, as_view, limit) == [[True] * 7] * 3


def dtypes_of_buckets() -> list[tuple[list[int], str]]:
    dtypes = [torch.float32, torch.float64, torch.float32, torch.float64]
    parameters = [torch.zeros(10, dtype=dtype, requires_grad=True) for dtype in dtypes]
    reducer = reducer_of(parameters)
    return [(bucket["indices"], bucket["dtype"]) for bucket in reducer.buckets()]


def test_a_bucket_has_one_dtype(world_of):
    assert world_of(1).run(dtypes_of_buckets) == [[([3, 1], "Double"), ([2, 0], "Float")]]


def one_storage(as_view: bool) -> list[bool]:
    """On a rank: two gradients that autograd lets share memory, each in a bucket of its own, twice."""
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
def test_gradients_that_share_memory_are_not_reduced_twice(trio, as_view):
    assert trio.run(one_storage, as_view) == [[True] * 4] * 3


def kept_alive(as_view: bool) -> tuple[bool, bool]:
    """On a rank: a large gradient is reduced where it lies, also with a view of it held; a dropped one is freed."""
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


@pytest.mark.parametrize("as_view", [False, True])
def test_a_lone_gradient_is_nobody_elses(trio, as_view):
    assert trio.run(kept_alive, as_view) == [(True, True)] * 3


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
