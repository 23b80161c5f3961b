"""The models of the comparison, their data, and the state that has to be equal: pure functions of their arguments."""

from __future__ import annotations

import hashlib

import torch
from ringdp.testing import parameters_hash
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


def loss_of(name: str, model: nn.Module, rank: int, step: int, micro: int = 0) -> torch.Tensor:
    """The loss of one micro-batch of `rank`."""
    source = torch.Generator().manual_seed(100000 * rank + 10 * step + micro)
    if name == "gpt":
        text = torch.randint(0, TOKENS, (SAMPLES, CONTEXT + 1), generator=source)
        return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    if name == "conv":
        image = torch.randn(SAMPLES, 3, 8, 8, generator=source)
        return functional.cross_entropy(model(image), (image.mean((1, 2, 3)) > 0).long())
    x = torch.randn(SAMPLES, 12, generator=source)
    y = x[:, :3].tanh()
    if name == "bf16":
        x, y = x.bfloat16(), y.bfloat16()
    arguments = (x, (step + rank) % 2 == 1) if name == "unused" else (x,)
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
