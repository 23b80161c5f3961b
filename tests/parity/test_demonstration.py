"""Numbers that textbooks print, on real ranks: drift, gap, loss; unequal shards; unequal seeds; a batch in parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from demonstration import EVEN, UNEVEN, alone, on_a_rank
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from torch import nn

ROUNDING = 1e-15  # a few units in the last place of numbers around 1
LOSS = 0.179049


@pytest.fixture(scope="module")
def one_machine() -> tuple[torch.Tensor, float]:
    """Parameters and loss of the whole batch on one machine."""
    return alone()


def test_eight_replicas_follow_one_machine_for_200_steps(world_of, one_machine):
    parameters, loss = one_machine
    said = world_of(8).run(on_a_rank, EVEN, False)
    assert all(not own["after"].any() for own in said)  # drift 0
    assert float((said[0]["parameters"] - parameters).abs().max()) <= ROUNDING
    assert round(loss, 6) == LOSS and {round(own["loss"], 6) for own in said} == {LOSS}


def test_unequal_shards_need_weights(world_of, one_machine):
    parameters, _ = one_machine
    plain = world_of(8).run(on_a_rank, UNEVEN, False)[0]
    gap = float((plain["parameters"] - parameters).abs().max())
    assert gap == pytest.approx(8.05e-3, abs=5e-5) and round(plain["loss"], 6) == 0.179311
    weighted = world_of(8).run(on_a_rank, UNEVEN, True)
    assert float((weighted[0]["parameters"] - parameters).abs().max()) <= ROUNDING
    assert {round(own["loss"], 6) for own in weighted} == {LOSS}
    assert all(not own["after"].any() for own in weighted)


def test_averaging_never_repairs_a_broken_start(world_of):
    said = world_of(8).run(on_a_rank, EVEN, False, True)
    for own in said:
        assert float(own["before"][1].abs().max()) == pytest.approx(0.449, abs=5e-4)
        assert float((own["after"] - own["before"]).abs().max()) <= ROUNDING
    losses = [own["loss"] for own in said]
    assert round(min(losses), 3) == 0.236 and round(max(losses), 3) == 0.280


def shards_of_a_line() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Four shards of y = 3x + 0.5 + noise, drawn once: the batch that is compared is the batch that was trained on."""
    np.random.seed(0)
    shards = []
    for rank in range(4):
        x = np.random.randn(8).astype(np.float32) + rank
        y = 3.0 * x + 0.5 + 0.1 * np.random.randn(8)
        shards.append((torch.from_numpy(x).double()[:, None], torch.from_numpy(y).double()[:, None]))
    return shards


def fit_a_line(whole: bool) -> tuple[float, float, float, float]:
    """On a rank: gradient of (w, b) at 0, and (w, b) after one step; `whole`: one rank with the whole batch."""
    model = nn.Linear(1, 1).double()
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    ddp = DistributedDataParallel(model)
    shards = shards_of_a_line()
    x, y = (torch.cat(parts) for parts in zip(*shards, strict=True)) if whole else shards[HERE.rank]
    nn.functional.mse_loss(ddp(x), y).backward()
    gradients = (model.weight.grad.item(), model.bias.grad.item())
    torch.optim.SGD(ddp.parameters(), lr=0.1).step()
    return (*gradients, model.weight.item(), model.bias.item())


def test_the_mean_over_shards_is_the_gradient_of_the_whole_batch(world_of):
    whole = world_of(1).run(fit_a_line, True)[0]
    assert whole == pytest.approx((-24.4438, -10.2058, 2.4444, 1.0206), abs=5e-5)
    for parts in world_of(4).run(fit_a_line, False):
        assert parts == pytest.approx(whole, abs=1e-12)


def eight_times_eight(ranks: int) -> torch.Tensor:
    """On a rank: the gradient of a batch of 64, this rank's part of it being 64 / ranks."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 2)).double()
    x, y = torch.randn(64, 10).double(), torch.randn(64, 2).double()
    part = 64 // ranks
    mine = slice(HERE.rank * part, (HERE.rank + 1) * part)
    ddp = DistributedDataParallel(model)
    nn.functional.mse_loss(ddp(x[mine]), y[mine]).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_eight_ranks_of_eight_are_one_of_sixty_four(world_of):
    whole = world_of(1).run(eight_times_eight, 1)[0]
    for parts in world_of(8).run(eight_times_eight, 8):
        assert torch.allclose(parts, whole, rtol=0, atol=1e-15)
