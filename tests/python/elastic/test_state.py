"""The state of a rank that trains, as one that joins has it: the same bits, or an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, error_of
from ringdp.elastic.state import receive, send
from torch import nn


class Odd(nn.Module):
    """Parameters and buffers of many kinds, one of them not in state_dict(), and one empty."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.small = nn.Parameter(torch.randn(5).bfloat16())
        self.tall = nn.Parameter(torch.randn(4, 6).t())
        self.register_buffer("seen", torch.randint(9, (3,)), persistent=False)
        self.register_buffer("nothing", torch.empty(0, 2))
        self.register_buffer("gaps", torch.randn(6, 8).t()[:3])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.conv(x.contiguous(memory_format=torch.channels_last)))
        return h.square().mean() + self.small.float().sum() + (self.tall * 2).square().sum()


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "two groups": lambda p: torch.optim.Adam([{"params": p[:2], "lr": 0.5}, {"params": p[2:]}], lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


def step(model: Odd, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3, 8, 8)).backward()
    optimizer.step()
    scheduler.step()
    model.seen.add_(1)


def bits(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> list[str]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for number, of_parameter in enumerate(optimizer.state.values()):
        tensors |= {f"{number} {name}": value for name, value in of_parameter.items() if torch.is_tensor(value)}
    said = [f"{name} {t.dtype} {t.stride()} {t.detach().double().tolist()}" for name, t in sorted(tensors.items())]
    return [*said, str(optimizer.state_dict()["param_groups"]), str(scheduler.state_dict())]


def hand_on(kind: str, steps: int) -> tuple[list[str], list[str]]:
    """Rank 0 has trained, rank 1 has not; what each has after the transfer, and after one more step."""
    torch.manual_seed(HERE.rank)
    model = Odd()
    optimizer = OPTIMIZERS[kind](list(model.parameters()))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    if HERE.rank == 0:
        for _ in range(steps):
            step(model, optimizer, scheduler)
        send([model, optimizer, scheduler], 1)
    else:
        receive([model, optimizer, scheduler], 0)
    given = bits(model, optimizer, scheduler)
    step(model, optimizer, scheduler)
    return given, bits(model, optimizer, scheduler)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_one_that_joins_has_all_bits_and_goes_on_with_them(world_of, kind, steps):
    (given, after), (got, after_got) = world_of(2).run(hand_on, kind, steps)
    assert got == given
    assert after_got == after


def refused(what: str) -> str:
    """What rank 1 says."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(3).bfloat16())]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    if HERE.rank == 0:
        optimizer.state[parameters[0]]["momentum_buffer"] = torch.tensor([0.1, 0.2, 0.3])  # wider than the parameter
        if what == "changed on its way":
            original = dist.send
            dist.send = lambda tensor, to: original(torch.zeros_like(tensor) if tensor.nbytes == 12 else tensor, to)
        send([optimizer], 1)
        if what == "changed on its way":
            dist.send = original
        return ""
    return error_of(receive, [optimizer], 0)


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("another type", "a SGD has another state after load_state_dict() than the one that it was given"),
        ("changed on its way", "the state that rank 0 has sent has changed on its way"),
    ],
)
def test_what_would_be_other_bits_is_an_error(world_of, what, error):
    assert error in world_of(2).run(refused, what)[1]
