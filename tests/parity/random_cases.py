"""Random trainings, each a pure function of its seed: ranks, a model, an optimizer, legs of steps with their options.

Every case is one that must have the bits of one process, or one with a single thing in it that must be refused.

A model is a list of parts: layers of many kinds, nested, tied and shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

INPUTS, OUTPUTS, TOKENS = 7, 3, 11
DTYPES = {"half": torch.float16, "bfloat": torch.bfloat16, "float": torch.float32, "double": torch.float64}


@dataclass(frozen=True)
class Part:
    """A layer: its kind, a number whose meaning depends on the kind, a dtype by name, the parts inside."""

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
    """The loss of a batch drawn from `seed`; `odd`: whether the layers run that run sometimes."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, INPUTS, generator=source)
    tokens = torch.randint(0, TOKENS, (samples,), generator=source)
    wanted = x[:, :OUTPUTS].tanh().to(DTYPES[dtype])
    return functional.mse_loss(model(x.to(DTYPES[dtype]), tokens, odd), wanted, reduction=reduction)


PLAIN = ("square", "wide", "strided", "norm", "tokens", "odd shapes", "tied", "again", "convolution", "channels last")
RARE = ("batch norm", "recurrent", "complex", "dropout", "hooked", "sometimes", "never")
INSIDE = ("in a row", "branches", "recomputed")
UNUSED = {"sometimes", "never"}
REFUSED = 0.12  # part of all cases


@dataclass(frozen=True)
class Leg:
    """Steps under one wrapper. The next leg wraps anew, and goes on with the values and the state of this one.

    wrapper, sharding: arguments of the wrapper and of ZeroOptimizer.
    micros, how: micro-batches per step, and how their gradients add up: "no_sync", "each" (every one is averaged), or
        with weights: "weights"; "absent": there are ranks without a loss in some steps.
    drop: how gradients are dropped before a step. rates: factors of the learning rate, by step.
    frozen: 0, or which third of the parameters need no gradient. edit: the step before which parameters are changed.
    """

    stage: int
    steps: int = 2
    micros: int = 1
    how: str = "no_sync"
    drop: str = "optimizer"
    rates: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    frozen: int = 0
    edit: int = -1
    clip: float | None = None
    wrapper: dict[str, Any] = field(default_factory=dict)
    sharding: dict[str, Any] = field(default_factory=dict)

    @property
    def weighted(self) -> bool:
        return self.how in ("weights", "absent")


@dataclass(frozen=True)
class Case:
    """path: "shm", "tcp" or "gloo". groups: of parameters in the optimizer. refusal: a key of REFUSALS, or "".

    alike: ranks run the same layers in every step. tensor_rate: the learning rate is a tensor.
    """

    seed: int
    ranks: int
    path: str
    dtype: str
    width: int
    parts: tuple[Part, ...]
    optimizer: str
    defaults: dict[str, Any]
    groups: int
    legs: tuple[Leg, ...]
    alike: bool
    tensor_rate: bool = False
    refusal: str = ""

    def kinds(self) -> set[str]:
        """The kinds of all parts."""
        return set().union(*(part.kinds() for part in self.parts))


@dataclass(frozen=True)
class Refusal:
    """What makes a case one of this kind, and what every rank must be told (a regular expression).

    stages: where it is refused. kind: of a part that is added. The rest is up to random_training.
    """

    stages: tuple[int, ...]
    says: str
    wrapper: dict[str, Any] = field(default_factory=dict)
    sharding: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    optimizer: str = ""
    path: str = ""


REFUSALS = {
    "drift of shards": Refusal((3,), "check_drift=True with zero_stage=3", {"check_drift": True}),
    "drift over gloo": Refusal((0, 1, 2), "check_drift=True needs", {"check_drift": True}, path="gloo"),
    "prefetch": Refusal((0, 1, 2), "prefetch=False with zero_stage=", {"prefetch": False}),
    "units": Refusal((0, 1, 2), r"units=\[\] with zero_stage=", {"units": []}),
    "wide gradients": Refusal((0, 1), "grad_dtype=torch.float32 with", {"grad_dtype": torch.float32}),
    "leaves in turn": Refusal((0, 3), "order='rotated' with micro_batches=2", {"micro_batches": 2, "order": "rotated"}),
    "no such stage": Refusal((4,), "zero_stage=4, must be 0, 1, 2 or 3"),
    "skipped buckets": Refusal((2, 3), "would not be sharded", {"skip_all_reduce_unused_params": True}),
    "early steps": Refusal((1,), "overlap_with_ddp=True at stage 1", sharding={"overlap_with_ddp": True}),
    "early steps, unused": Refusal(
        (2, 3), "with find_unused_parameters or static_graph", {"static_graph": True}, {"overlap_with_ddp": True}
    ),
    "early steps, clipped": Refusal((2, 3), "clip_grad_norm_ needs", sharding={"overlap_with_ddp": True}),
    "late gathers": Refusal((3,), 'gather="forward" at stage 3', sharding={"gather": "forward"}),
    "sums of rows": Refusal((1, 2, 3), "Adafactor cannot run on shards", optimizer="Adafactor"),
    "sparse": Refusal((2, 3), "sparse", kind="sparse"),
    "same memory": Refusal((1, 2, 3), "share memory", kind="same memory"),
    "unused": Refusal((0, 1, 2, 3), "did not receive grad for rank", kind="never"),
    "an optimizer of torch": Refusal((1, 2, 3), "cannot step parameters"),
    "two backward passes": Refusal((0, 1, 2, 3), "backward ran twice on one|A further backward pass needs a forward"),
    "clipped by torch": Refusal((2, 3), "is averaged and in shards"),
    "unfrozen": Refusal((0, 1, 2, 3), "was frozen when the model was wrapped"),
    "state not collected": Refusal((1, 2, 3), "has not been consolidated"),
}


def case_of(seed: int) -> Case:
    """The case of this seed."""
    draw = Random(f"random models {seed}")
    ranks, path = draw.choice((1, 2, 2, 3, 3, 3, 4)), draw.choice(("shm", "shm", "tcp", "gloo"))
    dtype = draw.choice(("float", "float", "float", "double", "bfloat", "half"))
    refusal = draw.choice(list(REFUSALS)) if draw.random() < REFUSED else ""
    parts = tuple(_part(draw, 2) for _ in range(draw.randint(1, 5)))
    kinds = set().union(*(part.kinds() for part in parts))
    stages = [draw.randrange(4) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
    optimizer = draw.choice((*OPTIMIZERS, "SGD", "Adam", "Adam", "AdamW", "AdamW"))
    defaults = {"lr": round(draw.uniform(1e-3, 2e-2), 4), **OPTIMIZERS[optimizer](draw)}
    if dtype == "half" and "eps" not in defaults and optimizer not in ("SGD", "ASGD", "Rprop"):
        defaults["eps"] = 1e-3  # 1e-8 is 0 there
    case = Case(
        seed, ranks, path, dtype, draw.randint(1, 40), parts, optimizer, defaults, draw.choice((1, 1, 2)),
        tuple(_leg(draw, stage, kinds, path) for stage in stages), alike=3 in stages,
        tensor_rate=optimizer in ("SGD", "Adam", "AdamW") and draw.random() < 0.15,
    )  # fmt: skip
    return _spoilt(draw, case, refusal) if refusal else case


def _part(draw: Random, depth: int) -> Part:
    if depth and draw.random() < 0.25:
        inner = tuple(_part(draw, depth - 1) for _ in range(draw.randint(1, 3)))
        dtype = draw.choice(("", "", "float", "bfloat", "double"))
        kind = draw.choice(INSIDE)
        return Part(kind, dtype="" if kind == "recomputed" else dtype, inner=inner)
    return Part(draw.choice(RARE if draw.random() < 0.25 else PLAIN), draw.randint(1, 9))


def _leg(draw: Random, stage: int, kinds: set[str], path: str) -> Leg:
    unused = bool(kinds & UNUSED)
    wrapper: dict[str, Any] = {}

    def maybe(chance: float, name: str, *values: Any) -> None:
        if draw.random() < chance:
            wrapper[name] = draw.choice(values)

    maybe(0.8, "bucket_cap_mb", 0, 0.0005, 0.002, 0.01, 1)
    maybe(0.3, "overlap", False)
    maybe(0.3, "gradient_as_bucket_view", True)
    maybe(0.3, "broadcast_buffers", False)
    maybe(0.2, "order", "rank")
    maybe(0.3 if "sometimes" not in kinds else 0, "static_graph", True)
    maybe(1.0 if unused and not wrapper.get("static_graph") else 0.2, "find_unused_parameters", True)
    if stage == 3:
        maybe(0.3, "prefetch", False)
        maybe(0.3, "units", [])
    elif path != "gloo":
        maybe(0.3, "check_drift", True)
    learns = wrapper.get("static_graph") or wrapper.get("find_unused_parameters")
    early = stage >= 2 and not learns and draw.random() < 0.4
    sharding: dict[str, Any] = {"overlap_with_ddp": True} if early else {}
    if stage in (1, 2) and draw.random() < 0.3:
        sharding["gather"] = "forward"
    ways = ["no_sync"] * 3 + ["weights"] + ["each"] * (stage >= 2 and not early)
    ways += ["absent"] * (stage < 3 and not wrapper.get("static_graph"))
    how = draw.choice(ways)
    keeps = not early and not unused and how != "absent"
    return Leg(
        stage, draw.randint(1, 3), draw.choice((1, 1, 2, 3)), how,
        drop=draw.choice(["optimizer", "wrapper", "module"] + ["zeros"] * keeps),
        rates=tuple(draw.choice((1.0, 0.5, 2.0)) for _ in range(3)),
        frozen=draw.choice((0, 0, 1, 2, 3)),
        edit=draw.choice((-1, -1, 0, 1)),
        clip=draw.choice((None, None, 0.01, 0.1)) if not early else None,
        wrapper=wrapper, sharding=sharding,
    )  # fmt: skip


def _spoilt(draw: Random, case: Case, name: str) -> Case:
    """One leg at a stage where this is refused, and what makes it so."""
    what = REFUSALS[name]
    stage = draw.choice(what.stages)
    path = what.path or case.path
    parts = tuple(p for p in case.parts if not p.kinds() & {*UNUSED, "again"}) or (Part("square"),)
    if what.kind:
        parts = (*parts, Part("square"), Part(what.kind, 1))
    wrapper = {"bucket_cap_mb": 0.002, **what.wrapper}
    leg = Leg(
        stage, wrapper=wrapper, sharding=dict(what.sharding), clip=0.1 if "clipped" in name else None,
        frozen=1 if name == "unfrozen" else 0,
    )  # fmt: skip
    return replace(
        case, path=path, parts=parts, legs=(leg,), refusal=name, optimizer=what.optimizer or case.optimizer,
        defaults={"lr": 0.01} if what.optimizer else case.defaults, alike=True,
    )  # fmt: skip


def _sgd(draw: Random) -> dict[str, Any]:
    momentum = draw.choice((0, 0.9))
    nesterov = bool(momentum) and draw.random() < 0.4
    dampening = 0 if nesterov else draw.choice((0, 0.1))
    return {**_common(draw), "momentum": momentum, "nesterov": nesterov, "dampening": dampening}


def _adam(draw: Random) -> dict[str, Any]:
    given = {**_common(draw), "betas": (draw.choice((0.9, 0.5)), draw.choice((0.999, 0.95)))}
    return {**given, "amsgrad": draw.random() < 0.3}


def _common(draw: Random) -> dict[str, Any]:
    return {"weight_decay": draw.choice((0, 0, 0.1)), "maximize": draw.random() < 0.2}


def _rmsprop(draw: Random) -> dict[str, Any]:
    return {**_common(draw), "momentum": draw.choice((0, 0.9)), "centered": draw.random() < 0.5}


def _adagrad(draw: Random) -> dict[str, Any]:
    return {**_common(draw), "lr_decay": draw.choice((0, 0.1)), "initial_accumulator_value": draw.choice((0, 0.1))}


def _rprop(draw: Random) -> dict[str, Any]:
    return {"maximize": draw.random() < 0.2}


OPTIMIZERS = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": _adam,
    "Adagrad": _adagrad,
    "Adadelta": _common,
    "Adamax": _common,
    "NAdam": _common,
    "RAdam": _common,
    "RMSprop": _rmsprop,
    "ASGD": _common,
    "Rprop": _rprop,
}
