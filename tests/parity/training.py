"""One training, twice: on ranks behind `ringdp.DistributedDataParallel`, and in one process; its models and its data.

`training.py WHICH FOLDER` is a rank on one of two hosts: it writes hashes by cell into FOLDER.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process, parameters_hash
from torch import nn
from torch.nn import functional

MODELS = ("mlp", "gpt", "conv", "unused", "bf16")
WIDTH, CONTEXT, TOKENS = 32, 16, 64
SEED = 11
SAMPLES = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.attend(self.norm(x)).chunk(3, dim=-1)
        x = x + functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.mix(x)


class GPT(nn.Module):
    """Tied weights and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.drop, self.blocks = nn.Dropout(0.1), nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.drop(self.tokens(x) + self.places.weight[: x.shape[1]])))


class Unused(nn.Module):
    """`never` gets no gradient; `sometimes` only where step + rank is odd, which the input says."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.never = nn.Linear(12, 37), nn.Linear(12, 37)
        self.sometimes, self.last = nn.Linear(37, 37), nn.Linear(37, 3)

    def forward(self, x: torch.Tensor, odd: bool) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        return self.last(hidden + torch.tanh(self.sometimes(hidden)) if odd else hidden)


def make(name: str) -> nn.Module:
    """A fresh model, the same everywhere."""
    torch.manual_seed(SEED)
    if name == "gpt":
        return GPT()
    if name == "unused":
        return Unused()
    if name == "conv":
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 9, 3), nn.BatchNorm2d(9), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(9 * 16, 5)).to(memory_format=torch.channels_last)
    mlp = nn.Sequential(nn.Linear(12, 301), nn.Tanh(), nn.Linear(301, 301), nn.Tanh(), nn.Linear(301, 3))
    return mlp.bfloat16() if name == "bf16" else mlp


def optimizer_for(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def dropout_seed(rank: int) -> int:
    return 100 + rank


def model_loss(name: str, model: nn.Module, rank: int, step: int, micro: int = 0) -> torch.Tensor:
    """The loss of one micro-batch of `rank`."""
    source = torch.Generator().manual_seed(100000 * rank + 10 * step + micro)
    if name == "gpt":
        text = torch.randint(0, TOKENS, (SAMPLES, CONTEXT + 1), generator=source)
        return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    dtype = next(model.parameters()).dtype
    if name == "conv":
        image = torch.randn(SAMPLES, 3, 8, 8, generator=source)
        return functional.cross_entropy(model(image.to(dtype)), (image.mean((1, 2, 3)) > 0).long())
    x = torch.randn(SAMPLES, 12, generator=source)
    y = x[:, :3].tanh().to(dtype)
    arguments = (x.to(dtype), (step + rank) % 2 == 1) if name == "unused" else (x.to(dtype),)
    return functional.mse_loss(model(*arguments), y)


def state_hash(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """sha256 over all parameters and all moments of Adam, in the order of the names."""
    digest = hashlib.sha256(parameters_hash(model).encode())
    inner = getattr(model, "module", model)
    for name, parameter in sorted(inner.named_parameters()):
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            flat = torch.as_tensor(value).contiguous().flatten().view(torch.uint8)
            digest.update(f"{name} {key} {value.dtype}\0".encode())
            digest.update(flat.numpy().tobytes())
    return digest.hexdigest()


STEPS = 50
BUCKETS = {"1KB": 1 / 1024, "1MB": 1.0, "25MB": 25.0}


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix. bucket: a key of BUCKETS."""

    model: str
    bucket: str
    overlap: bool

    def __str__(self) -> str:
        return f"{self.model} {self.bucket} {'overlap' if self.overlap else 'blocking'}"


def cells_between_hosts(which: str) -> list[Cell]:
    """which: "slice", a cell per model with the other axes going round, or "all"."""
    if which == "all":
        return [Cell(*axes) for axes in product(MODELS, BUCKETS, (True, False))]
    buckets = list(BUCKETS)
    return [Cell(name, buckets[n % len(buckets)], overlap=n % 2 == 0) for n, name in enumerate(MODELS)]


def on_this_rank(cell: Cell, steps: int, group: dist.ProcessGroup | None = None) -> str:
    """The state's hash after `steps` steps. Collective."""
    rank = dist.get_rank()
    model = make(cell.model)
    ddp = DistributedDataParallel(
        model,
        process_group=group,
        bucket_cap_mb=BUCKETS[cell.bucket],
        overlap=cell.overlap,
        find_unused_parameters=cell.model == "unused",
    )
    optimizer = optimizer_for(model)
    torch.manual_seed(dropout_seed(rank))
    for step in range(steps):
        optimizer.zero_grad()
        model_loss(cell.model, ddp, rank, step).backward()
        optimizer.step()
    return state_hash(model, optimizer)


@cache
def in_one_process(name: str, ranks: int, steps: int) -> str:
    """The same without any group."""
    model = make(name)
    optimizer = optimizer_for(model)

    def loss_of(model: torch.nn.Module, rank: int, step: int, micro: int) -> torch.Tensor:
        return model_loss(name, model, rank, step, micro)

    seeds = [dropout_seed(rank) for rank in range(ranks)]
    one_process(model, optimizer, loss_of, ranks=ranks, steps=steps, seeds=seeds)
    return state_hash(model, optimizer)


def main() -> None:
    """One rank."""
    which, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("ringdp")
    hashes = {str(cell): on_this_rank(cell, STEPS) for cell in cells_between_hosts(which)}
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(hashes))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
