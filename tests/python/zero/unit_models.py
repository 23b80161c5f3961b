"""Models for stage 3, and a wrapper with its optimizer over one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import fresh, group_of, loss_of
from torch import nn
from torch.utils.checkpoint import checkpoint
from zero_rig import ADAMW

WIDTH = 40


class Block(nn.Module):
    """A residual block with a Sequential inside, which stays part of its unit."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(self.norm(x))


class Stack(nn.Module):
    """Blocks between two layers, run as `how` says."""

    def __init__(self, how: Callable[..., torch.Tensor] = lambda block, x: block(x), blocks: int = 3) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))  # of the root: its unit encloses the others
        self.first = nn.Linear(12, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.last = nn.Linear(WIDTH, 3)
        self._how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) * self.scale
        for block in self.blocks:
            x = self._how(block, x)
        return self.last(x)


def reentrant(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x, use_reentrant=True)


def recomputed(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x, use_reentrant=False)


class Segment(Stack):
    """Several units in one checkpoint."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self._reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) * self.scale
        run = nn.Sequential.forward
        return self.last(checkpoint(run, self.blocks, x, use_reentrant=self._reentrant))


class Tied(nn.Module):
    """The last layer's weight is the first one's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.back = nn.Linear(WIDTH, WIDTH, bias=False)
        self.back.weight = self.blocks[0].mix[0].weight
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(self.back(x))


class Twice(Stack):
    """Each block is called twice, and its input is used again beside it: sums of three terms."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) * self.scale
        start = x
        for block in self.blocks:
            x = block(x) + 0.5 * block(x * 0.3) + 0.1 * x + start
        return self.last(x)


class Frozen(Stack):
    """One block is frozen, and half of another one; there is an integer parameter, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].requires_grad_(False)
        self.blocks[2].mix[0].requires_grad_(False)
        self.steps = nn.Parameter(torch.arange(5), requires_grad=False)
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.shift * self.steps.sum()


class Mixed(Block):
    """float32 and bfloat16 in one unit."""

    def __init__(self) -> None:
        super().__init__()
        self.mix[2].bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.mix[1](self.mix[0](self.norm(x)))
        return x + self.mix[2](hidden.bfloat16()).float()


class Strided(Stack):
    """A weight that is stored transposed; steps in place on what units return."""

    def __init__(self) -> None:
        super().__init__()
        self.first.weight = nn.Parameter(self.first.weight.detach().t().contiguous().t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x.mul_(self.scale).relu_()
        for block in self.blocks:
            x = block(x).tanh_()
        return self.last(x)


def types() -> nn.Module:
    stack = Stack(lambda block, x: block(x.to(block.norm.weight.dtype)).float())
    stack.blocks[0].double()
    stack.blocks[1] = Mixed()
    return stack


MODELS: dict[str, Callable[[], Any]] = {
    "stack": Stack,
    "reentrant": lambda: Stack(reentrant),
    "recomputed": lambda: Stack(recomputed),
    "segment reentrant": lambda: Segment(True),
    "segment recomputed": lambda: Segment(False),
    "tied": Tied,
    "twice": Twice,
    "frozen": Frozen,
    "types": types,
    "strided": Strided,
}


def made(kind: str, backend: str = "ringdp", **arguments: Any) -> tuple[Any, ZeroOptimizer]:
    ddp = DistributedDataParallel(fresh(MODELS[kind]), process_group=group_of(backend), zero_stage=3, **arguments)
    trainable = [p for p in ddp.parameters() if p.requires_grad]
    return ddp, ZeroOptimizer(trainable, torch.optim.AdamW, **ADAMW)


def alone(kind: str, count: int, **arguments: Any) -> tuple[Any, torch.optim.Optimizer]:
    plain = fresh(MODELS[kind])
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], **ADAMW)
    one_process(plain, optimizer, loss_of, ranks=HERE.size, steps=count, **arguments)
    return plain, optimizer
