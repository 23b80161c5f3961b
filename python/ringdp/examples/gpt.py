"""A small GPT: token and position embeddings, pre-norm blocks, output projection tied to the embedding.

Shapes: B sequences, T tokens, D model width, V vocabulary. All stock torch; nothing here knows about ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; `context` is the longest sequence in tokens."""

    vocabulary: int = 256
    context: int = 128
    dim: int = 256
    layers: int = 4
    heads: int = 4
    dropout: float = 0.0


class Attention(nn.Module):
    """Causal multi-head self-attention, [B, T, D] -> [B, T, D]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.qkv = nn.Linear(shape.dim, 3 * shape.dim)
        self.out = nn.Linear(shape.dim, shape.dim)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each token with the ones before it; x is [B, T, D]."""
        batch, tokens, dim = x.shape
        heads = self.qkv(x).view(batch, tokens, 3, self.heads, dim // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, dim))
        return projected


class Block(nn.Module):
    """One pre-norm transformer block, [B, T, D] -> [B, T, D]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(shape.dim), nn.LayerNorm(shape.dim)
        self.attention = Attention(shape)
        self.up, self.down = nn.Linear(shape.dim, 4 * shape.dim), nn.Linear(4 * shape.dim, shape.dim)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and MLP, each added to its input."""
        x = x + self.dropout(self.attention(self.norm_attention(x)))
        mlp: Tensor = self.down(functional.gelu(self.up(self.norm_mlp(x))))
        return x + self.dropout(mlp)


class GPT(nn.Module):
    """Tokens [B, T] of int64 -> logits [B, T, V]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token = nn.Embedding(shape.vocabulary, shape.dim)
        self.position = nn.Embedding(shape.context, shape.dim)
        blocks = [Block(shape) for _ in range(shape.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(shape.dim)
        self.apply(_initialise)
        for block in blocks:
            for last in (block.attention.out, block.down):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * shape.layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at every position; T may be anything up to `shape.context`."""
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.token.weight)


def _initialise(module: nn.Module) -> None:
    """GPT-2's start: weights from a narrow normal, biases zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def next_token_loss(model: nn.Module, windows: Tensor) -> Tensor:
    """Mean cross entropy in nats per token; windows is [B, T + 1] of any integer type."""
    windows = windows.long()
    logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def sample(model: GPT, prompt: bytes, count: int, seed: int, temperature: float = 0.8) -> bytes:
    """The prompt (not empty) and `count` sampled bytes. Model mode and global RNG stay as they are."""
    generator = torch.Generator().manual_seed(seed)
    was_training = model.training
    model.eval()
    tokens = torch.tensor(list(prompt)).unsqueeze(0)
    for _ in range(count):
        logits = model(tokens[:, -model.shape.context :])[0, -1]
        chosen = torch.multinomial(functional.softmax(logits / temperature, dim=-1), 1, generator=generator)
        tokens = torch.cat([tokens, chosen.unsqueeze(0)], dim=1)
    model.train(was_training)
    return bytes(tokens[0].tolist())
