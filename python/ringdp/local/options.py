"""What a `ringdp.DiLoCo` is given, and what it refuses by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ringdp.checkpoint.holder import HasHolder
from ringdp.checkpoint.holders import unwrapped
from ringdp.compress.codec import NAMES
from ringdp.local.schedule import Schedule
from ringdp.text.arguments import check_flag, check_number, check_whole_number

_OUTER_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Options:
    """Equal on all ranks. See `ringdp.DiLoCo`."""

    workers: int
    every: int
    outer_lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    start: int = 0
    fragments: int = 1
    delay: int = 0
    alpha: float = 0.0
    compress: str | None = None
    seed: int = 0
    quorum: int | None = None
    grace: float = 0.0
    rounds: int | None = None

    def check(self, ranks: int) -> None:
        """ValueError or NotImplementedError names what is refused, the same on all ranks."""
        for name, least in (("workers", 1), ("every", 1), ("start", 0), ("fragments", 1), ("delay", 0)):
            check_whole_number(f"DiLoCo: {name}", getattr(self, name), least)
        check_whole_number("DiLoCo: seed", self.seed)
        check_flag("DiLoCo: nesterov", self.nesterov)
        if self.workers < ranks:
            raise ValueError(
                f"DiLoCo: workers={self.workers} on {ranks} ranks: each rank plays at least one worker; use more "
                "workers, or a group= of fewer ranks"
            )
        if self.fragments > self.every:
            raise ValueError(
                f"DiLoCo: fragments={self.fragments} with every={self.every}: one fragment leaves at a time, so there "
                "are at most as many as steps"
            )
        if self.delay >= self.every:
            raise ValueError(
                f"DiLoCo: delay={self.delay} with every={self.every}: a fragment arrives before it leaves again"
            )
        for name, fits, what in (
            ("outer_lr", lambda value: 0 < value < math.inf, "above 0 and finite"),
            ("momentum", lambda value: 0 <= value < 1, "at least 0 and below 1"),
            ("alpha", lambda value: 0 <= value < 1, "at least 0 and below 1, as with 1 nobody would take what arrives"),
        ):
            check_number(f"DiLoCo: {name}", getattr(self, name), fits, what)
        if self.compress not in NAMES:
            raise NotImplementedError(
                f"DiLoCo: compress={self.compress!r}: there are {', '.join(map(repr, NAMES))}; signs, fp8 codes "
                "and other shares are not there"
            )
        self._check_quorum()

    def _check_quorum(self) -> None:
        if self.quorum is None:
            for name, value, unset in (("grace", self.grace, 0.0), ("rounds", self.rounds, None)):
                if value != unset:
                    raise ValueError(f"DiLoCo: {name}={value!r} without quorum=: all workers wait for all")
            return
        if not isinstance(self.quorum, int) or isinstance(self.quorum, bool) or not 1 <= self.quorum <= self.workers:
            raise ValueError(f"DiLoCo: quorum={self.quorum!r}, must be a whole number from 1 to workers={self.workers}")
        is_time = lambda value: 0 <= value < math.inf  # noqa: E731
        check_number("DiLoCo: grace", self.grace, is_time, "seconds, at least 0 and finite")
        check_rounds(self.rounds, 1)
        for name, value, unset, why in (
            ("start", self.start, 0, "synchronous steps wait for all workers"),
            ("fragments", self.fragments, 1, "workers do not meet after the same steps"),
            ("delay", self.delay, 0, "a worker waits for the outer step that takes it, which others do not"),
            ("alpha", self.alpha, 0, "workers go on from the outer parameters"),
        ):
            if value != unset:
                raise NotImplementedError(
                    f"DiLoCo: {name}={value!r} with quorum={self.quorum}: {why}; leave {name}= out"
                )

    @property
    def schedule(self) -> Schedule:
        """When fragments leave and arrive."""
        return Schedule(self.every, self.fragments, self.delay, self.start)

    def lines(self) -> list[str]:
        """One each, to be compared between ranks."""
        return [f"{name}={value!r}" for name, value in vars(self).items()]


def check_rounds(rounds: int | None, least: int) -> None:
    """ValueError where that is not so many outer steps at least."""
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < least:
        raise ValueError(
            f"DiLoCo: rounds={rounds!r}, must be a whole number of at least {least}: with quorum= workers stop after "
            "so many outer steps in all, as they do not make equally many steps"
        )


def trained(model: nn.Module, start: int) -> dict[str, nn.Parameter]:
    """The parameters that need gradients, by name. TypeError or ValueError names what no worker can have of its own."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"DiLoCo: the model is a {type(model).__name__}, must be a torch.nn.Module")
    for layer in model.modules():  # also inside of what torch.compile returns
        if isinstance(layer, DistributedDataParallel):
            raise TypeError(
                f"DiLoCo: the model is or has a {type(layer).__name__}, which averages gradients in every step: give "
                "the module in it; start=STEPS makes the first steps synchronous"
            )
    model = unwrapped(model)  # by torch.compile
    for name, layer in model.named_modules():
        if isinstance(layer, nn.SyncBatchNorm):
            raise ValueError(f"DiLoCo: {name} is a SyncBatchNorm, which communicates in every pass: use BatchNorm")
        if start and getattr(layer, "sparse", False) is True:
            raise ValueError(f"DiLoCo: {name} has sparse gradients, and start={start} averages them: use sparse=False")
    found = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not sum(parameter.numel() for parameter in found.values()):
        raise ValueError("DiLoCo: no parameter of the model requires a gradient: there is nothing to train")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise ValueError(f"DiLoCo: parameter {name} is a DTensor: shards are not there; every rank holds all of it")
        if parameter.is_meta:
            raise ValueError(f"DiLoCo: parameter {name} is on the meta device: give it values first")
    for name, parameter in found.items():
        if parameter.dtype not in _OUTER_DTYPES:
            raise ValueError(
                f"DiLoCo: parameter {name} is {str(parameter.dtype).removeprefix('torch.')}: outer parameters are "
                "float32, for parameters of float32, bfloat16 or float16"
            )
    devices = {parameter.device for parameter in found.values()}
    if len(devices) > 1:
        raise ValueError(f"DiLoCo: parameters are on {', '.join(sorted(map(str, devices)))}: use one device")
    _check_own_memory(found)
    return found


def _check_own_memory(parameters: Mapping[str, nn.Parameter]) -> None:
    """ValueError names two that share memory, which the copies of other workers would not."""
    spans = sorted((p.data_ptr(), p.data_ptr() + _extent(p), name) for name, p in parameters.items() if p.numel())
    for (_, end, one), (begin, _, other) in pairwise(spans):
        if begin < end:
            raise ValueError(
                f"DiLoCo: parameters {one} and {other} are different ones in the same memory: tie them by assigning "
                "one parameter to both modules"
            )


def _extent(parameter: Tensor) -> int:
    steps = zip(parameter.shape, parameter.stride(), strict=True)
    return parameter.element_size() * (1 + sum((size - 1) * stride for size, stride in steps))


def check_apart(by_worker: Sequence[Sequence[Optimizer]]) -> None:
    """ValueError names what the inner optimizers of two workers have in common: it would be stepped for both."""
    seen: set[int] = set()
    for optimizers in by_worker:
        own: set[int] = set()
        for optimizer in optimizers:
            kind = type(optimizer).__name__
            tensors = [(f"the same tensor as {n} of a {kind}", v) for g in optimizer.param_groups for n, v in g.items()]
            held = [(f"the same {kind}", optimizer), *((what, v) for what, v in tensors if isinstance(v, Tensor))]
            for what, value in held:
                if id(value) in seen:
                    raise ValueError(f"DiLoCo: inner has given two workers {what}: make a new one in each call")
                own.add(id(value))
        seen |= own


def check_inner(optimizers: Sequence[Optimizer], parameters: Sequence[nn.Parameter]) -> None:
    """TypeError or ValueError names an inner optimizer that no worker can have of its own."""
    known = set(map(id, parameters))
    if not optimizers:
        raise TypeError("DiLoCo: inner has given no optimizer: it returns one, or several in a list")
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        if isinstance(optimizer, HasHolder):
            raise TypeError(f"DiLoCo: inner has given a {kind}, which shards its state over ranks: use torch.optim")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"DiLoCo: inner has given a {kind}, must be a torch.optim.Optimizer or a list of them")
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise TypeError(f"DiLoCo: inner has given a {kind}, whose step needs a closure: use another optimizer")
        if any(id(parameter) not in known for group in optimizer.param_groups for parameter in group["params"]):
            raise ValueError(
                f"DiLoCo: inner has given a {kind} of parameters that are not trained ones of the model: workers have "
                "no copies of these; inner is called with the parameters"
            )
