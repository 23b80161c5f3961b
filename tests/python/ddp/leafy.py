"""On a rank, and in the test's process: models whose steps have a fixed number of micro-batches (leaves)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import ringdp
import torch
from ranks import HERE, group_of
from ringdp import _native
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process, parameters_hash
from torch import Tensor, nn

_C = _native.load()
STEPS = 3


class Branching(nn.Module):
    """Dropout, BatchNorm, a layer that only some leaves use, one that none uses, and random numbers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)
        self.sometimes, self.never = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, leaf: int) -> Tensor:
        h = nn.functional.dropout(torch.tanh(self.norm(self.first(x))), 0.3)
        h = h * (1 + random.random()) + float(np.random.rand())
        return self.last(self.sometimes(h) if leaf in (1, 2, 5) else h)


class Tied(nn.Module):
    """A language model's input and output share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.mix, self.norm = nn.Embedding(11, 8), nn.Linear(8, 8, bias=False), nn.LayerNorm(8)

    def forward(self, x: Tensor, leaf: int) -> Tensor:
        ids = (x.float().abs() * 7).long() % 11
        return self.norm(torch.relu(self.mix(self.tokens(ids)))) @ self.tokens.weight.T


class Plain(nn.Sequential):
    def __init__(self, width: int = 33) -> None:
        super().__init__(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))

    def forward(self, x: Tensor, leaf: int) -> Tensor:
        return super().forward(x)


MODELS = {"branching": Branching, "tied": Tied, "plain": Plain, "wide": lambda: Plain(999)}


def made(model: str, dtype: str = "float32") -> nn.Module:
    torch.manual_seed(3)
    return MODELS[model]().to(getattr(torch, dtype))


def samples(leaf: int, step: int) -> int:
    return 2 + (3 * leaf + step) % 4


def loss_of(model: nn.Module, rank: int, step: int, leaf: int, how: str = "mean") -> Tensor:
    """A function of step and leaf only."""
    source = torch.Generator().manual_seed(1000 * step + leaf)
    x = torch.randn(samples(leaf, step), 6, generator=source).to(next(model.parameters()).dtype)
    loss = model(x, leaf).square()
    return loss.mean() if how == "mean" else loss.sum()


def summed(model: nn.Module, rank: int, step: int, leaf: int) -> Tensor:
    return loss_of(model, rank, step, leaf, "sum")


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def optimizer_of(ddp: DistributedDataParallel) -> Any:
    """On a rank: the same, in shards if the wrapper has a ZeRO stage."""
    if ddp.reducer.zero_stage > 0:
        return ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1e-2)
    return optimizer_for(ddp)


def state_hash(model: nn.Module) -> str:
    """Of parameters and buffers."""
    module = getattr(model, "module", model)
    return parameters_hash(model) + " " + str([buffer.double().sum().item() for buffer in module.buffers()])


def in_one_process(
    model: str, micro_batches: int, dtype: str = "float32", *, weighted: bool = False, clip: float = 0
) -> str:
    module = made(model, dtype)
    optimizer, loss = optimizer_for(module), summed if weighted else loss_of
    weights = samples if weighted else None

    def clipped(step: int) -> None:
        if clip:
            ringdp.clip_grad_norm_(module.parameters(), clip)

    one_process(
        module, optimizer, loss, steps=STEPS, micro_batches=micro_batches, weights=weights, on_gradients=clipped
    )
    return state_hash(module)


def allotment(kind: str, micro_batches: int, ranks: int) -> list[list[int]]:
    """Which leaves each rank runs, in which order."""
    if kind == "buddy":
        return _C.allot_leaves(_C.even_shares(micro_batches, ranks))
    if kind == "last rank only":
        return [[]] * (ranks - 1) + [list(range(micro_batches))]
    source = random.Random(f"{kind} {micro_batches} {ranks}")
    leaves: list[list[int]] = [[] for _ in range(ranks)]
    for leaf in source.sample(range(micro_batches), micro_batches):
        leaves[source.randrange(ranks)].append(leaf)
    return leaves


def train(
    model: str,
    micro_batches: int,
    dtype: str = "float32",
    kind: str = "buddy",
    backend: str = "ringdp",
    weighted: bool = False,
    clip: float = 0,
    **arguments: Any,
) -> str:
    """On a rank: the hash after some steps."""
    arguments.setdefault("bucket_cap_mb", 0.001)
    ddp = DistributedDataParallel(
        made(model, dtype), process_group=group_of(backend), micro_batches=micro_batches, **arguments
    )
    optimizer = optimizer_of(ddp)
    for step in range(STEPS):
        for leaf in allotment(kind, micro_batches, HERE.size)[HERE.rank]:
            with ringdp.leaf(step, leaf):
                if weighted:
                    ddp.backward(summed(ddp, HERE.rank, step, leaf), weight=samples(leaf, step))
                else:
                    loss_of(ddp, HERE.rank, step, leaf).backward()
        if clip:
            ddp.finish_step()
            ringdp.clip_grad_norm_(ddp.parameters(), clip)
        optimizer.step()
        if step != 1:  # a mean replaces the one before, cleared or not
            optimizer.zero_grad()
    return state_hash(ddp)
