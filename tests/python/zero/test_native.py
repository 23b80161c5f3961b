"""Optimizers that run on shards; ringdp's kernels have the bits of torch's single-tensor steps."""

from __future__ import annotations

import inspect
import itertools

import numpy as np
import pytest
import torch
from ranks import on_ranks
from ringdp import _native
from ringdp.zero import native
from ringdp.zero.element_wise import ELEMENT_WISE, check_class, is_number, is_per_element

pytestmark = pytest.mark.usefixtures("one_thread")


def classes_of_torch() -> dict[str, type[torch.optim.Optimizer]]:
    found = inspect.getmembers(torch.optim, inspect.isclass)
    return {n: c for n, c in found if issubclass(c, torch.optim.Optimizer) and c is not torch.optim.Optimizer}


def test_every_class_of_torch_is_served_or_refused_with_a_reason():
    for name, found in classes_of_torch().items():
        if name in ELEMENT_WISE:
            check_class(found)
            continue
        with pytest.raises(ValueError, match=f"{name} cannot run on shards: it") as caught:
            check_class(found)
        assert "is not known" not in str(caught.value), f"{name} is new: say in classes.py what it does"


class Mine(torch.optim.SGD):
    """Of somebody else."""


def test_strangers_say_that_they_are_element_wise():
    with pytest.raises(ValueError, match="Mine cannot run on shards: it is not known"):
        check_class(Mine)
    check_class(type("Yours", (Mine,), {"element_wise": True}))


NUMBERS = {"ASGD": {"step", "eta", "mu"}, "NAdam": {"step", "mu_product"}, "AdamW": {"step"}, "Rprop": {"step"}}


@pytest.mark.parametrize("shape", [(), (1,), (3, 2)])
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_torchs_optimizers_are_told_apart(kind, shape):
    parameter = torch.nn.Parameter(torch.ones(shape))
    optimizer = getattr(torch.optim, kind)([parameter], lr=0.1)
    parameter.grad = torch.ones(shape)
    optimizer.step()
    state = {key: value for key, value in optimizer.state[parameter].items() if torch.is_tensor(value)}
    assert {key for key, value in state.items() if not is_per_element(key, value.shape, shape)} == NUMBERS[kind]


def test_numbers_are_known_by_name_or_by_their_shape():
    assert is_number("step", (1,)) and is_number("mine", ())
    assert not is_number("exp_avg", (1,)) and not is_number("exp_avg", (3, 2))


# ringdp's kernels have the bits of torch's single-tensor steps, also where gradients come block by block.

ADAM = {"lr": 1e-2}
CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.01, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", ADAM),
    ("Adam", {**ADAM, "weight_decay": 0.1, "amsgrad": True}),
    ("Adam", {**ADAM, "betas": (0.4, 0.99), "eps": 1e-6, "maximize": True}),
    ("AdamW", ADAM),
    ("AdamW", {**ADAM, "weight_decay": 0.0, "amsgrad": True, "maximize": True}),
    ("AdamW", {"lr": torch.tensor(1e-3)}),
]
# Arithmetic that torch does in tensors and numpy in its own types; steps of float32 alone tell it apart.
ODD_NUMBERS = [
    ("SGD", {"lr": torch.tensor(0.0123), "momentum": 0.9, "dampening": np.float32(0.3), "weight_decay": 0.137}),
    ("Adam", {"lr": torch.tensor(0.0123), "weight_decay": 0.137}),
    ("AdamW", {"lr": torch.tensor(0.0123), "weight_decay": 0.137}),
    ("AdamW", {"lr": np.float32(0.0123), "weight_decay": 0.137}),
    ("AdamW", {"lr": 0.0123, "weight_decay": np.float32(0.137)}),
    ("AdamW", {"lr": np.float64(0.0123), "weight_decay": 0.137}),
]
COUNT = 70_003
CUT = 3 * 1024


def gradient_of(step: int, count: int = COUNT) -> torch.Tensor:
    source = torch.Generator().manual_seed(step)
    return torch.randn(count, generator=source) * 10 ** torch.empty(count).uniform_(-8, 2, generator=source)


def start(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(99)).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    raw = [t.detach().flatten().view(torch.uint8) for t in (a, b)]
    return a.shape == b.shape and torch.equal(*raw)


def by_torch(kind: str, given: dict, steps: int, dtype: torch.dtype) -> tuple[torch.Tensor, dict]:
    whole = torch.nn.Parameter(start(dtype))
    optimizer = getattr(torch.optim, kind)([whole], **given, foreach=False, fused=False)
    for step in range(steps):
        whole.grad = gradient_of(step).to(dtype)
        optimizer.step()
    return whole, optimizer.state[whole]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kind", "given"), CASES, ids=str)
def test_pieces_have_torchs_bits(kind, given, dtype):
    expected, state = by_torch(kind, given, 6, dtype)
    flat = start(dtype)
    pieces = [torch.nn.Parameter(flat[:CUT]), torch.nn.Parameter(flat[CUT:])]
    optimizer = getattr(torch.optim, kind)(pieces, **given)
    for step in range(6):
        gradient = gradient_of(step).to(dtype)
        pieces[0].grad, pieces[1].grad = gradient[:CUT], gradient[CUT:]
        with torch.no_grad():
            native.step(optimizer)
    assert same(flat, expected)
    for key, value in state.items():
        parts = [optimizer.state[piece][key] for piece in pieces]
        assert same(torch.cat(parts), value) if value.dim() else all(same(p, value) for p in parts), key


@pytest.mark.parametrize(("kind", "given"), ODD_NUMBERS, ids=str)
def test_settings_that_are_no_plain_numbers_have_torchs_bits(kind, given):
    test_pieces_have_torchs_bits(kind, given, torch.float32)


def test_a_piece_without_gradient_is_left_alone():
    pieces = [torch.nn.Parameter(torch.ones(5)), torch.nn.Parameter(torch.ones(5))]
    optimizer = torch.optim.AdamW(pieces, lr=0.1)
    pieces[0].grad = torch.ones(5)
    with torch.no_grad():
        native.step(optimizer)
    assert not torch.equal(pieces[0], torch.ones(5)) and torch.equal(pieces[1], torch.ones(5))
    assert pieces[1] not in optimizer.state


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_the_fastest_step_is_near_and_does_not_depend_on_the_cut(kind):
    results = []
    for cut in (CUT, 5 * 1024):
        flat = start()
        pieces = [torch.nn.Parameter(flat[:cut]), torch.nn.Parameter(flat[cut:])]
        optimizer = getattr(torch.optim, kind)(pieces, lr=1e-2, fused=True)
        for step in range(4):
            gradient = gradient_of(step)
            pieces[0].grad, pieces[1].grad = gradient[:cut], gradient[cut:]
            with torch.no_grad():
                native.step(optimizer)
        results.append(flat)
    assert same(*results)
    assert torch.allclose(results[0], by_torch(kind, {"lr": 1e-2}, 4, torch.float32)[0], rtol=1e-5, atol=1e-6)


_C = _native.load()
SGD = {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0}
FLAGS = {"nesterov": False, "maximize": False, "fastest": False}


def test_every_piece_is_stepped():
    parameters = [torch.ones(3), torch.ones(50)]
    gradients = [torch.full([3], 2.0), torch.full([50], 4.0)]
    buffers = [torch.empty(3), torch.empty(50)]
    _C.sgd_steps(parameters, buffers, [True, True], **SGD, **FLAGS).run([0, 1], gradients)
    assert torch.equal(buffers[0], gradients[0]) and torch.equal(buffers[1], gradients[1])
    assert torch.allclose(parameters[0], torch.tensor(0.8)) and torch.allclose(parameters[1], torch.tensor(0.6))


def test_pieces_that_are_not_named_stay():
    parameters = [torch.ones(3), torch.ones(50)]
    steps = _C.sgd_steps(parameters, [torch.empty(3), torch.empty(50)], [True, True], **SGD, **FLAGS)
    steps.run([1], [torch.full([50], 4.0)])
    assert torch.equal(parameters[0], torch.ones(3)) and torch.allclose(parameters[1], torch.tensor(0.6))


@pytest.mark.parametrize(
    ("gradient", "buffer", "says"),
    [
        (torch.ones(4), torch.ones(3), "gradients 1 has 4 elements, its parameter 3"),
        (torch.ones(3), torch.ones(2), "momentum buffers 1 has 2 elements"),
        (torch.ones(3).double(), torch.ones(3), "must be contiguous float32"),
        (torch.ones(6)[::2], torch.ones(3), "must be contiguous float32"),
    ],
)
def test_what_does_not_fit_is_named(gradient, buffer, says):
    parameters = [torch.ones(3), torch.ones(3)]
    with pytest.raises(RuntimeError, match=says):
        steps = _C.sgd_steps(parameters, [torch.ones(3), buffer], [True, True], **SGD, **FLAGS)
        steps.run([0, 1], [torch.ones(3), gradient])
    assert torch.equal(parameters[0], torch.ones(3))


def test_lists_of_unequal_length_are_named():
    steps = _C.sgd_steps([torch.ones(3)], [torch.ones(3)], [True], **SGD, **FLAGS)
    with pytest.raises(RuntimeError, match="0 tensors of gradients for 1 parameters"):
        steps.run([0], [])
    with pytest.raises(RuntimeError, match="piece 1 of 1"):
        steps.run([0, 1], [torch.ones(3), torch.ones(3)])
    with pytest.raises(RuntimeError, match="2 flags for 1 parameters"):
        _C.sgd_steps([torch.ones(3)], [torch.ones(3)], [True, True], **SGD, **FLAGS)


def stepped(count: int, **how: bool) -> torch.Tensor:
    """Parameters after one step of Adam whose result shows the root of every gradient's square."""
    values = torch.rand(count, generator=torch.Generator().manual_seed(1)) + 0.5
    result, zeros = torch.zeros(count), [torch.zeros(count) for _ in range(2)]
    scalars = {"lr": 1.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
    flags = {"decoupled": False, "amsgrad": False, "maximize": False}
    _C.adam_steps([result], [zeros[0]], [zeros[1]], [], [1.0], **scalars, **flags, **how).run([0], [values])
    return result


def test_torchs_root_is_used_by_default():
    """The formula by torch's own operators; where torch's root is the IEEE one both steps are equal."""
    count = 100_000
    values = torch.rand(count, generator=torch.Generator().manual_seed(1)) + 0.5
    mean = torch.zeros(count).lerp_(values, 1 - 0.9)
    square = torch.zeros(count).mul_(0.999).addcmul_(values, values, value=1 - 0.999)
    denominator = (square.sqrt() / (1 - 0.999) ** 0.5).add_(1e-8)
    expected = torch.zeros(count).addcdiv_(mean, denominator, value=-1.0 / (1 - 0.9))
    assert torch.equal(stepped(count, fastest=False), expected)
    ieee = torch.equal(square.sqrt(), square.double().sqrt().float())
    assert torch.equal(stepped(count, fastest=True), expected) == ieee


LENGTHS, OFFSETS, SHARD = (1500, 40), (0, 2048), 3072  # with padding between and behind
GIVEN = {"lr": 0.05, "weight_decay": 0.1}


def optimizer_of(pieces: list[torch.Tensor]) -> torch.optim.Optimizer:
    groups = [{"params": [pieces[0]], "lr": 0.01}, {"params": [pieces[1]]}]
    return torch.optim.AdamW([{**GIVEN, **group} for group in groups])


def start_step_sink() -> list[torch.nn.Parameter]:
    source = torch.Generator().manual_seed(5)
    return [torch.nn.Parameter(torch.randn(length, generator=source)) for length in LENGTHS]


@pytest.mark.parametrize("cuts", [[], [1], [700, 1501, 2050, 2051], list(range(0, SHARD, 64))])
def test_stretches_step_as_the_whole_does(cuts):
    pieces, expected = start_step_sink(), start_step_sink()
    optimizer, reference = optimizer_of(pieces), optimizer_of(expected)
    places = {piece: (0, offset) for piece, offset in zip(pieces, OFFSETS, strict=True)}
    bounds = [0, *sorted(set(cuts) - {0}), SHARD]
    for step in range(3):
        shard = torch.randn(SHARD, generator=torch.Generator().manual_seed(step))
        (sink,) = native.sinks(optimizer, places, 1)
        for begin, end in itertools.pairwise(bounds):
            sink.take(begin, shard[begin:end])
        for piece, offset in zip(expected, OFFSETS, strict=True):
            piece.grad = shard[offset : offset + piece.numel()]
        native.step(reference)
    for piece, other in zip(pieces, expected, strict=True):
        assert torch.equal(piece, other) and piece.grad is None
        assert all(torch.equal(optimizer.state[piece][key], value) for key, value in reference.state[other].items())


def test_a_bucket_without_pieces_takes_everything_and_steps_nothing():
    pieces = start_step_sink()
    before = [piece.detach().clone() for piece in pieces]
    optimizer = optimizer_of(pieces)
    sinks = native.sinks(optimizer, {piece: (1, offset) for piece, offset in zip(pieces, OFFSETS, strict=True)}, 3)
    for number in (0, 2):
        sinks[number].take(0, torch.ones(SHARD))
    assert all(torch.equal(piece, old) for piece, old in zip(pieces, before, strict=True))


def test_pieces_that_overlap_are_named():
    pieces = start_step_sink()
    with pytest.raises(RuntimeError, match="a piece at 1499 overlaps one that ends at 1500"):
        native.sinks(optimizer_of(pieces), {pieces[0]: (0, 0), pieces[1]: (0, 1499)}, 1)


ADAM_DEVICE_SINK = (1e-3, 0.9, 0.999, 1e-8, 0.0, False, False, False)


def sink(*offsets: int) -> object:
    pieces = [(offset, [torch.zeros(4), torch.zeros(4)], 1.0, ADAM_DEVICE_SINK) for offset in offsets]
    return _C.device_sink(torch.zeros(64), pieces)


def test_it_is_known_from_those_of_the_cpu():
    assert sink(0).on_device
    assert not _C.step_sink([]).on_device


def test_it_takes_nothing_on_the_host():
    with pytest.raises(RuntimeError, match="a step on a device was given means on the host"):
        sink(0).take(0, torch.zeros(4))


@on_ranks(2)
def test_pieces_come_in_any_order() -> None:
    """What is said of pieces in order, out of order, and one over another."""
    backend = torch.distributed.group.WORLD._get_backend(torch.device("cpu"))
    found = []
    for offsets in ((0, 8), (8, 0), (0, 0)):
        with pytest.raises(RuntimeError) as error:
            backend.reduce_scatter_step(torch.zeros(64), 2.0, sink(*offsets))
        found.append(str(error.value))
    in_order, out_of_order, over_each_other = found
    assert "not of a device" in in_order and out_of_order == in_order
    assert "the piece at 0 of 4 elements must begin" in over_each_other
