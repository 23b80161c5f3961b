"""Stock DistributedDataParallel over ringdp and over gloo, in the same processes: their gradients compared."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import HERE
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
