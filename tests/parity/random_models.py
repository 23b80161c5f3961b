"""Random models: layers of many kinds, nested, tied and shared as a list of parts says; and what they are fed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

INPUTS, OUTPUTS, TOKENS = 7, 3, 11
DTYPES = {"half": torch.float16, "bfloat": torch.bfloat16, "float": torch.float32, "double": torch.float64}


@dataclass(frozen=True)
class Part:
    """A layer: its kind, a number that means what the kind wants, a dtype by name, the parts inside."""

    kind: str
    number: int = 0
    dtype: str = ""
    inner: tuple[Part, ...] = ()

    def kinds(self) -> set[str]:
        """Its own and those inside."""
        return {self.kind}.union(*(part.kinds() for part in self.inner))


class Around(nn.Module):
    """A module of one argument with a residual connection. All parts take (x, tokens, odd)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, tokens: Tensor, odd: bool) -> Tensor:
        return x + torch.tanh(self.inner(x))


class Convolution(nn.Module):
    def __init__(self, channels: int, dimensions: int) -> None:
        super().__init__()
        kind = nn.Conv1d if dimensions == 1 else nn.Conv2d
        self.up, self.down = kind(1, channels, 3, padding=1), kind(channels, 1, 1)
        if dimensions == 2:
            self.to(memory_format=torch.channels_last)
        self.dimensions = dimensions

    def forward(self, x: Tensor) -> Tensor:
        line = x.unsqueeze(1) if self.dimensions == 1 else x[:, None, None]
        return self.down(torch.relu(self.up(line))).flatten(1)


class Tokens(nn.Module):
    def __init__(self, width: int, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, width, sparse=sparse)

    def forward(self, x: Tensor, tokens: Tensor, odd: bool) -> Tensor:
        return x + self.table(tokens)


class OddShapes(nn.Module):
    """A scalar, one element, none, and ones in front."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scalar, self.single = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(1))
        self.nothing, self.row = nn.Parameter(torch.empty(0, 3)), nn.Parameter(torch.zeros(1, 1, width))

    def forward(self, x: Tensor, tokens: Tensor, odd: bool) -> Tensor:
        return x * self.scalar + self.single + self.row[0] + self.nothing.sum()


class Complex(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(width, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        turned = self.turn * x.float()
        return (turned.real + turned.imag).to(x.dtype)


class Sometimes(nn.Module):
    """Run where the input says so, or never."""

    def __init__(self, width: int, never: bool) -> None:
        super().__init__()
        self.layer, self.never = nn.Linear(width, width), never

    def forward(self, x: Tensor, tokens: Tensor, odd: bool) -> Tensor:
        return x + torch.tanh(self.layer(x)) if odd and not self.never else x


class Inside(nn.Module):
    """Other parts, run one after the other in a dtype, or recomputed in backward, or side by side."""

    def __init__(self, parts: list[nn.Module], how: str, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.parts, self.how, self.dtype = nn.ModuleList(parts), how, dtype
        self.gain = nn.Parameter(torch.ones(()))

    def _run(self, x: Tensor, tokens: Tensor, odd: bool) -> Tensor:
        if self.how == "branches":
            return torch.stack([part(x, tokens, odd) for part in self.parts]).mean(0)
        for part in self.parts:
            x = part(x, tokens, odd)
        return x

    def forward(self, x: Tensor, tokens: Tensor, odd: bool) -> Tensor:
        given = x.to(self.dtype) if self.dtype else x
        if self.how == "recomputed":
            return x + checkpoint(self._run, given, tokens, odd, use_reentrant=False) * self.gain
        return x + (self._run(given, tokens, odd) * self.gain).to(x.dtype)


def hooked(layer: nn.Linear) -> nn.Linear:
    """Its weight's gradient is changed before it is accumulated."""
    layer.weight.register_hook(lambda gradient: gradient * 0.5)
    return layer


def transposed(layer: nn.Linear) -> nn.Linear:
    """Its weight lies in memory by columns."""
    layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    return layer


class Net(nn.Module):
    def __init__(self, width: int, parts: tuple[Part, ...]) -> None:
        super().__init__()
        self.enter = nn.Linear(INPUTS, width)
        self.parts = nn.ModuleList(_Builder(width).several(parts))
        self.leave = nn.Linear(width, OUTPUTS)

    def forward(self, x: Tensor, tokens: Tensor, odd: bool) -> Tensor:
        x = self.enter(x)
        for part in self.parts:
            x = part(x, tokens, odd)
        return self.leave(x)


class _Builder:
    """Makes parts, and knows those it has made: a part may be another one again, or have its weight."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._made: dict[torch.dtype, list[nn.Module]] = {}
        self._squares: dict[torch.dtype, list[nn.Linear]] = {}

    def several(self, parts: tuple[Part, ...]) -> list[nn.Module]:
        return [self.one(part) for part in parts]

    def one(self, part: Part) -> nn.Module:
        made = self._made.setdefault(torch.get_default_dtype(), [])
        if part.kind == "again" and made:
            return made[part.number % len(made)]
        module = self._inside(part) if part.inner else self._simple(part)
        self._made[torch.get_default_dtype()].append(module)
        return module

    def _inside(self, part: Part) -> nn.Module:
        if not part.dtype:
            return Inside(self.several(part.inner), part.kind, None)
        with default_dtype(DTYPES[part.dtype]):
            return Inside(self.several(part.inner), part.kind, DTYPES[part.dtype])

    def _square(self, part: Part) -> nn.Linear:
        layer = nn.Linear(self._width, self._width, bias=part.number % 2 == 0)
        known = self._squares.setdefault(layer.weight.dtype, [])
        if part.kind == "tied" and known:
            layer.weight = known[part.number % len(known)].weight
        if part.kind == "same memory" and known:
            layer.weight = nn.Parameter(known[-1].weight.data)
        known.append(layer)
        return layer

    def _simple(self, part: Part) -> nn.Module:
        width, number = self._width, part.number
        makers: dict[str, Callable[[], nn.Module]] = {
            "wide": lambda: Around(nn.Sequential(nn.Linear(width, number), nn.ReLU(), nn.Linear(number, width))),
            "strided": lambda: Around(transposed(nn.Linear(width, width))),
            "hooked": lambda: Around(hooked(nn.Linear(width, width))),
            "norm": lambda: Around(nn.LayerNorm(width, elementwise_affine=number % 3 > 0, bias=number % 3 > 1)),
            "batch norm": lambda: Around(nn.BatchNorm1d(width)),
            "convolution": lambda: Around(Convolution(number, 1)),
            "channels last": lambda: Around(Convolution(number, 2)),
            "tokens": lambda: Tokens(width, sparse=False),
            "sparse": lambda: Tokens(width, sparse=True),
            "odd shapes": lambda: OddShapes(width),
            "recurrent": lambda: Around(nn.GRUCell(width, width)),
            "complex": lambda: Around(Complex(width)),
            "dropout": lambda: Around(nn.Dropout(0.3)),
            "sometimes": lambda: Sometimes(width, never=False),
            "never": lambda: Sometimes(width, never=True),
        }
        return makers.get(part.kind, lambda: Around(self._square(part)))()


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """In which parameters are made inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def build(seed: int, dtype: str, width: int, parts: tuple[Part, ...]) -> Net:
    """The model, its values drawn from `seed`."""
    torch.manual_seed(seed)
    with default_dtype(DTYPES[dtype]):
        return Net(width, parts)


def loss_of(model: nn.Module, dtype: str, seed: int, samples: int, odd: bool, reduction: str) -> Tensor:
    """Of a batch that `seed` says; `odd`: whether the layers run that run sometimes."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, INPUTS, generator=source)
    tokens = torch.randint(0, TOKENS, (samples,), generator=source)
    wanted = x[:, :OUTPUTS].tanh().to(DTYPES[dtype])
    return functional.mse_loss(model(x.to(DTYPES[dtype]), tokens, odd), wanted, reduction=reduction)
