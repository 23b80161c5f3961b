"""One training of quality.py, in this process: a method on a problem, with a learning rate and a seed.

The ranks of a method with compress=... are played by ringdp.testing.one_process, which has the bits of as many
processes; the workers of a ringdp.DiLoCo are all played by this process, with the bits of any number of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import ringdp
import torch
from ringdp.compress import Codes
from ringdp.examples.gpt import Shape, learning_rate, set_rate
from ringdp.examples.gpt_task import Task
from ringdp.testing import one_process
from torch import Tensor, nn

SHAPE = Shape(context=64, dim=64, layers=2)
HELD_OUT = 512  # sequences: so many that the difference of two trainings is not that of their choice
GPT, QUADRATIC = "gpt", "quadratic"


@dataclass(frozen=True)
class Case:
    """method: of METHODS. batch: samples of each rank in a step of the GPT. outer: more arguments of ringdp.DiLoCo.

    Two equal cases have the same outcome.
    """

    part: str
    problem: str
    method: str
    rate: float
    seed: int
    steps: int
    ranks: int
    batch: int
    outer: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Method:
    """How ranks train. optimizer: of SGD, AdamW and OneBitAdam. local: arguments of ringdp.DiLoCo, None without it.

    muon: inside of DiLoCo.
    """

    optimizer: str = "sgd"
    compress: Any = None
    local: dict[str, Any] | None = None
    muon: bool = False


def _with_and_without(name: str, make: Callable[[bool], Any]) -> dict[str, Method]:
    return {name: Method(compress=make(True)), f"{name}-no-feedback": Method(compress=make(False))}


def _local(every: int, **others: Any) -> Method:
    muon = others.pop("muon", False)
    return Method("adamw", local={"every": every, **others}, muon=muon)


# part -> its methods; the others are compared with the first
METHODS: dict[str, dict[str, Method]] = {
    "compress": {
        "float32": Method(),
        **_with_and_without("int8", partial(Codes, "int8")),
        **_with_and_without("fp8", partial(Codes, "fp8")),
        **_with_and_without("sign", partial(Codes, "sign")),
        **_with_and_without("powersgd-1", lambda feedback: ringdp.PowerSGD(1, feedback=feedback)),
        **_with_and_without("powersgd-4", lambda feedback: ringdp.PowerSGD(4, feedback=feedback)),
        **_with_and_without("topk", lambda feedback: ringdp.TopK(0.05, feedback=feedback)),
    },
    "adam": {
        "adamw": Method("adamw"),
        "adamw-int8": Method("adamw", "int8"),
        "adamw-sign": Method("adamw", "sign"),
        "adamw-powersgd-4": Method("adamw", ringdp.PowerSGD(4)),
        "one-bit": Method("one-bit", "sign"),
        "one-bit-int8": Method("one-bit", "int8"),
    },
    "local": {
        "ddp": Method("adamw"),
        "diloco-10": _local(10),
        "diloco-50": _local(50),
        "diloco-50-muon": _local(50, muon=True),
        "diloco-50-int4": _local(50, compress="int4"),
        "diloco-10-topk": _local(10, compress="topk"),
        "diloco-50-topk": _local(50, compress="topk"),
    },
}
WHOLE_SHARE = 0.2  # of the steps of OneBitAdam, at its beginning


class Problem(Protocol):
    """What is trained."""

    def model(self) -> nn.Module:
        """The same for all methods."""

    def loss(self, model: nn.Module, rank: int, step: int) -> Tensor:
        """Of the rank's samples in that step."""

    def held_out_loss(self, model: nn.Module) -> float:
        """The result."""


@dataclass
class Quadratic:
    """Squared distances to the targets of the ranks, weighted by 1 to 0.1; noise moves the targets in every step.

    The optimum is the mean of the targets. In each element one rank's target is far from those of the others, so that
    the mean of signs is 0 elsewhere.
    """

    ranks: int
    seed: int
    weights: Tensor = field(init=False)
    targets: Tensor = field(init=False)

    def __post_init__(self) -> None:
        source = torch.Generator().manual_seed(self.seed)
        rows, columns = 32, 64
        self.weights = 10 ** -torch.rand(rows, columns, generator=source)
        common = 3 * torch.randn(rows, columns, generator=source)
        far = torch.randint(self.ranks, (rows, columns), generator=source)
        apart = self.ranks * nn.functional.one_hot(far, self.ranks).permute(2, 0, 1) - 1
        self.targets = common + apart

    def model(self) -> nn.Module:
        """A point, as a matrix."""
        made = nn.Module()
        made.point = nn.Parameter(torch.zeros_like(self.weights))
        return made

    def loss(self, model: nn.Module, rank: int, step: int) -> Tensor:
        """With noise."""
        source = torch.Generator().manual_seed((self.seed << 32) + 1000 * step + rank)
        return self._distance(model, self.targets[rank] + 0.3 * torch.randn(self.weights.shape, generator=source))

    @torch.no_grad()
    def held_out_loss(self, model: nn.Module) -> float:
        """Without noise, the mean over ranks."""
        return sum(self._distance(model, target).item() for target in self.targets) / self.ranks

    def _distance(self, model: nn.Module, target: Tensor) -> Tensor:
        return (self.weights * (model.point - target).square()).sum() / 2


def problem_of(case: Case) -> Problem:
    """By its name."""
    return (
        Quadratic(case.ranks, case.seed)
        if case.problem == QUADRATIC
        else Task(SHAPE, case.batch, case.ranks, case.seed, HELD_OUT)
    )


@dataclass(frozen=True)
class Outcome:
    """The loss at the end, infinite where it is not a number; and seconds of a step."""

    loss: float
    step_seconds: float


def train(case: Case) -> Outcome:
    """The learning rate grows in the first 5 % of the steps and falls along a cosine afterwards."""
    torch.set_num_threads(1)
    method, problem = METHODS[case.part][case.method], problem_of(case)
    model = problem.model()
    begun = time.perf_counter()
    (_train_local if method.local is not None else _train_ranks)(case, method, problem, model)
    seconds = (time.perf_counter() - begun) / case.steps
    loss = problem.held_out_loss(model)
    return Outcome(loss if math.isfinite(loss) else math.inf, seconds)


def _train_ranks(case: Case, method: Method, problem: Problem, model: nn.Module) -> None:
    optimizer: torch.optim.Optimizer
    if method.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=case.rate, momentum=0.9)
    elif method.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=case.rate)
    else:
        optimizer = ringdp.OneBitAdam(model, lr=case.rate, freeze=max(1, round(WHOLE_SHARE * case.steps)))
    one_process(
        model,
        optimizer,
        lambda model, rank, step, _micro: problem.loss(model, rank, step),
        ranks=case.ranks,
        steps=case.steps,
        on_gradients=lambda step: set_rate(optimizer, learning_rate(step, case.steps, case.rate, 1)),
        compress=method.compress,
    )


def _train_local(case: Case, method: Method, problem: Problem, model: nn.Module) -> None:
    def inner(parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
        if not method.muon:
            return [torch.optim.AdamW(parameters, lr=case.rate)]
        named = dict(model.named_parameters())
        matrices = [p for name, p in named.items() if p.ndim == 2 and name.startswith("blocks.")]
        others = [p for p in parameters if all(p is not matrix for matrix in matrices)]
        muon = torch.optim.Muon(matrices, lr=case.rate, weight_decay=1e-2, adjust_lr_fn="match_rms_adamw")
        return [muon, torch.optim.AdamW(others, lr=case.rate)]

    local = ringdp.DiLoCo(model, inner, workers=case.ranks, **(method.local or {}), **dict(case.outer))
    for step in range(case.steps):
        for optimizer in local.optimizers():
            set_rate(optimizer, learning_rate(step, case.steps, case.rate, 1))
        for worker in local.workers():
            with local.worker(worker):
                problem.loss(model, worker, step).backward()
        local.step()
    with local.outer():
        values = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)
