"""Random trainings, each a pure function of its seed: ranks, a model, an optimizer, legs of steps with their options.

Every case is one that must have the bits of one process, or one with a single thing in it that must be refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from random_models import Part

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
        """Of all parts."""
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
    "no such stage": Refusal((4,), "zero_stage=4, must be 0, 1, 2 or 3"),
    "skipped buckets": Refusal((2, 3), "would not be sharded", {"skip_all_reduce_unused_params": True}),
    "early steps": Refusal((1,), "overlap_with_ddp=True at stage 1", sharding={"overlap_with_ddp": True}),
    "early steps, unused": Refusal(
        (2, 3), "with find_unused_parameters or static_graph", {"static_graph": True}, {"overlap_with_ddp": True}
    ),
    "early steps, clipped": Refusal((2, 3), "clip_grad_norm_ wants", sharding={"overlap_with_ddp": True}),
    "late gathers": Refusal((3,), 'gather="forward" at stage 3', sharding={"gather": "forward"}),
    "sums of rows": Refusal((1, 2, 3), "Adafactor cannot run on shards", optimizer="Adafactor"),
    "sparse": Refusal((2, 3), "sparse", kind="sparse"),
    "same memory": Refusal((1, 2, 3), "share memory", kind="same memory"),
    "unused": Refusal((0, 1, 2, 3), "did not receive grad for rank", kind="never"),
    "an optimizer of torch": Refusal((1, 2, 3), "steps parameters"),
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
