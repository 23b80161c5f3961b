"""A small GPT, the text it is trained on, and its data-parallel wrapper and optimizer.

The model: token and position embeddings, pre-norm blocks, output projection tied to the embedding. Shapes: B sequences,
T tokens, D model width, V vocabulary.

The text is real and on every machine: the .py files of Python's standard library. All ranks read it for themselves; the
order of files and the split depend on paths and contents only, so equal installations give equal text.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as Stock
from torch.optim import AdamW, Optimizer
from torch.utils.data import BatchSampler, DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import ringdp


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


VOCABULARY = 256
VALIDATION_SHARE = 0.05
_SKIPPED = {"site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class Corpus:
    """Text as uint8 tensors of one dimension; `digest` is a sha256 over all of it in reading order."""

    train: Tensor
    validation: Tensor
    files: int
    digest: str


def read_corpus(folder: Path, limit: int = 0) -> Corpus:
    """All .py files under `folder`; with a limit, until that many bytes, some to validate, are there."""
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    digest = hashlib.sha256()
    size = files = 0
    for path in _python_files(folder):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(text)}\0".encode())
        digest.update(text)
        parts[_is_validation(text)].append(text)
        files += 1
        size += len(text)
        if limit and size >= limit and parts[True]:
            break
    return Corpus(_tensor(parts[False]), _tensor(parts[True]), files, digest.hexdigest())


class Windows(Dataset[Tensor]):
    """Windows of uint8 [length + 1], back to back: the last byte of one is the first of the next."""

    def __init__(self, text: Tensor, length: int, name: str) -> None:
        self._text, self._length = text, length
        if len(text) <= length:
            raise ValueError(
                f"the {name} text has {len(text)} bytes, too few for --seq {length}: "
                "take more text or shorter sequences"
            )

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._length

    def __getitem__(self, index: int) -> Tensor:
        start = index * self._length
        return self._text[start : start + self._length + 1]


def check_same_text(corpus: Corpus) -> None:
    """Collective. Unless all ranks have read the same text, each raises RuntimeError with the odd ones."""
    mine = (corpus.digest, len(corpus.train) + len(corpus.validation), os.uname().nodename)
    of_ranks: list[tuple[str, int, str]] = [mine] * dist.get_world_size()
    dist.all_gather_object(of_ranks, mine)
    others = [rank for rank, (digest, _, _) in enumerate(of_ranks) if digest != of_ranks[0][0]]
    if others:
        sides = "; ".join(f"rank {rank} on {of_ranks[rank][2]}: {of_ranks[rank][1]} bytes" for rank in [0, *others])
        raise RuntimeError(f"the ranks read different text ({sides}): use the same Python everywhere, or one --corpus")


def _python_files(folder: Path) -> list[Path]:
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _SKIPPED)
        found += [Path(place, name) for name in names if name.endswith(".py")]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _is_validation(text: bytes) -> bool:
    """By contents, so that two copies of one file are on the same side of the split."""
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") < VALIDATION_SHARE * 2**32


def _tensor(texts: list[bytes]) -> Tensor:
    text = bytearray(b"\n".join(texts))
    return torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


class Feed:
    """Endless micro-batches [batch, length + 1] of one rank; each is a pure function of its step."""

    def __init__(self, windows: Dataset[Tensor], batch: int, rank: int, world: int, seed: int) -> None:
        self._windows = windows
        self._sampler: DistributedSampler[Tensor] = DistributedSampler(
            windows, num_replicas=world, rank=rank, shuffle=True, seed=seed, drop_last=True
        )
        self._batches = BatchSampler(self._sampler, batch, drop_last=True)
        if len(self._batches) == 0:
            raise ValueError(
                f"{len(windows)} training sequences are not one batch of {batch} for each of {world} ranks: "  # type: ignore[arg-type]
                "take a smaller --batch, a shorter --seq or more text"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Steps until every sequence was seen once, but for a rest that fills no batch on every rank."""
        return len(self._batches)

    def starting_at(self, step: int) -> Iterator[Tensor]:
        """The micro-batches of `step`, `step` + 1, ... without end."""
        epoch, done = divmod(step, self.steps_per_epoch)
        while True:
            self._sampler.set_epoch(epoch)
            # The loader draws a seed when iterated; its own generator keeps that out of the RNG dropout uses.
            yield from DataLoader(self._windows, batch_sampler=list(self._batches)[done:], generator=torch.Generator())
            epoch, done = epoch + 1, 0


KINDS = ("ringdp", "stock")
ZERO_STAGES = (0, 1, 2, 3)


def data_parallel(model: nn.Module, kind: str, group: dist.ProcessGroup | None = None, zero_stage: int = 0) -> Stock:
    """`model` behind the class of that kind, with gradients as views of its buckets. Collective."""
    if kind == "stock":
        return Stock(model, process_group=group, gradient_as_bucket_view=True)
    # The head reads the embedding's weight, so both belong to what is gathered for the whole forward pass.
    units = {"units": [Block]} if zero_stage == 3 else {}
    return ringdp.DistributedDataParallel(
        model, process_group=group, gradient_as_bucket_view=True, zero_stage=zero_stage, **units
    )


def adamw(ddp: nn.Module, rate: float, zero_stage: int = 0) -> Optimizer:
    """AdamW of a wrapped model, in shards from stage 1 on. Collective there."""
    if zero_stage == 0:
        return AdamW(ddp.parameters(), lr=rate)
    return ringdp.ZeroOptimizer(ddp.parameters(), optimizer_class=AdamW, lr=rate)


def with_whole_parameters(ddp: nn.Module, model: nn.Module, fresh: Callable[[], nn.Module]) -> nn.Module:
    """`model`; where its parameters are in shards (stage 3), a fresh one that has all of them. Collective there."""
    if getattr(ddp, "zero_stage", 0) < 3:
        return model
    whole = fresh()
    whole.load_state_dict(ddp.full_state_dict())
    return whole


def name_of(kind: str, zero_stage: int = 0) -> str:
    """For titles."""
    if kind == "stock":
        return "stock DDP"
    return f"ringdp's DDP at zero_stage={zero_stage}" if zero_stage else "ringdp's DDP"


WARM_UP_SHARE = 0.05
FLOOR_SHARE = 0.1


def warm_up_steps(steps: int) -> int:
    """Steps of the linear warm-up: 5 % of the run, at least one."""
    return max(1, round(WARM_UP_SHARE * steps))


def learning_rate(step: int, steps: int, rate_of_one: float, world: int) -> float:
    """The rate of step 0..steps-1. The linear rule: N times the samples per step, so N times the rate."""
    peak = rate_of_one * world
    warm_up = warm_up_steps(steps)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    way = (step - warm_up) / max(1, steps - warm_up)
    return peak * (FLOOR_SHARE + (1 - FLOOR_SHARE) * 0.5 * (1 + math.cos(math.pi * way)))


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Every parameter group takes this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
