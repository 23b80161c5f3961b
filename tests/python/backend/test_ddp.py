"""Stock DDP over the backend, and steps fused with its sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, error_of
from torch.nn.parallel import DistributedDataParallel

WIDTH = 96
BUCKET_MB = 0.02


class Products(torch.nn.Module):
    """Every gradient is the input itself, so that the test chooses the gradients."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ParameterList(torch.zeros(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        return sum((layer * given).sum() for layer, given in zip(self.layers, inputs, strict=True))


def gradients_of(rank: int, whole: bool, layers: int = 5) -> list[torch.Tensor]:
    """What this rank contributes; whole: multiples of 12, so that a third or a quarter of them is whole too."""
    source = torch.Generator().manual_seed(100 + rank)
    shape = (layers, WIDTH, WIDTH)
    if whole:
        return list(12.0 * torch.randint(-1000, 1000, shape, generator=source))
    return list(torch.randn(shape, generator=source))


def mean_by_ddp(group: dist.ProcessGroup | None, whole: bool) -> torch.Tensor:
    model = Products(5)
    ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=BUCKET_MB)
    for _ in range(2):  # buckets are laid out anew after the first
        ddp.zero_grad()
        ddp(gradients_of(HERE.rank, whole)).backward()
    return torch.stack([layer.grad for layer in model.layers])


def compare(whole: bool) -> tuple[int, list[float], list[float]]:
    """On a rank: differing elements; largest and mean distance from the fp64 mean, for ringdp and for gloo."""
    gloo = dist.new_group(range(HERE.size), backend="gloo")
    ours, theirs = mean_by_ddp(None, whole), mean_by_ddp(gloo, whole)
    exact = sum(torch.stack(gradients_of(rank, whole)).double() for rank in range(HERE.size)) / HERE.size
    differing = int((ours.view(torch.int32) != theirs.view(torch.int32)).sum())
    errors = [[float(e.max()), float(e.mean())] for e in ((ours - exact).abs(), (theirs - exact).abs())]
    dist.destroy_process_group(gloo)
    return differing, errors[0], errors[1]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("whole", [True, False])
def test_two_ranks_have_gloos_bits(world_of, transport, whole):
    for differing, _, _ in world_of(2, transport=transport).run(compare, whole):
        assert differing == 0


@pytest.mark.parametrize("size", [3, 4])
def test_whole_numbers_have_gloos_bits(world_of, size):
    for differing, _, _ in world_of(size, transport="shm").run(compare, True):
        assert differing == 0


@pytest.mark.parametrize("size", [3, 4])
def test_real_numbers_are_no_further_from_the_exact_mean_than_gloos(world_of, size):
    """Both round N - 1 times, in different orders: equally good up to what 46,080 samples can tell."""
    for _, (largest, mean), (their_largest, their_mean) in world_of(size, transport="shm").run(compare, False):
        assert mean <= their_mean * 1.02
        assert largest <= their_largest * 1.25


ADAM = (1e-3, 0.9, 0.999, 1e-8, 0.0, False, False, False)
AMSGRAD = (*ADAM[:6], True, False)


def floats(count: int) -> torch.Tensor:
    return torch.zeros(count)


def states(*counts: int) -> list[torch.Tensor]:
    return [floats(count) for count in counts]


# What is refused, gradients, parameters, pieces; of two ranks, and what fits is a device's.
CASES: list[tuple[str, torch.Tensor, torch.Tensor, list[tuple[int, list[torch.Tensor], float, Any]]]] = [
    ("tensors on cpu are not of a device", floats(64), floats(64), [(0, states(5, 5), 1.0, ADAM)]),
    ("tensors on cpu are not of a device", floats(64), floats(32), []),
    ("60 gradients cannot be divided into 2 equal parts of whole packs", floats(60), floats(60), []),
    ("16 parameters; a bucket of 64 gradients has as many, or 32", floats(64), floats(16), []),
    ("parameters must be a flat contiguous float32 tensor", floats(64), floats(64).double(), []),
    ("gradients must be a flat contiguous float32 tensor", floats(128)[::2], floats(64), []),
    ("parameters must begin at a multiple of 16 bytes", floats(64), floats(65)[1:], []),
    ("the piece at 0 must have 3 states", floats(64), floats(64), [(0, states(4, 4), 1.0, AMSGRAD)]),
    ("the states of the piece at 0 have different lengths", floats(64), floats(64), [(0, states(4, 8), 1.0, ADAM)]),
    ("the piece at 2 of 4 elements must begin", floats(64), floats(64), [(2, states(4, 4), 1.0, ADAM)]),
    ("the piece at 28 of 8 elements must", floats(64), floats(64), [(28, states(8, 8), 1.0, ADAM)]),
    (
        "the piece at 4 of 4 elements must begin at a multiple of 4 from 8 on",
        floats(64),
        floats(64),
        [(0, states(8, 8), 1.0, ADAM), (4, states(4, 4), 1.0, ADAM)],
    ),
]


def said() -> list[str]:
    """On a rank: what is said to each."""
    from ringdp import _native

    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    sink = _native.load().device_sink
    return [error_of(lambda c=case: backend.reduce_scatter_step(c[1], 2.0, sink(*c[2:]))) for case in CASES]


@pytest.fixture(scope="module")
def everything_said(world_of) -> list[str]:
    return world_of(2).run(said)[0]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_what_does_not_fit_is_named(everything_said, number):
    assert CASES[number][0] in everything_said[number]
