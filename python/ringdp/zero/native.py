"""SGD, Adam and AdamW by ringdp's kernels, on the state of torch's classes.

On the CPU they are separate steps; on devices they run inside the call that sums a bucket's gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from ringdp import _native
from ringdp.zero.flat import FlatParameters

_C = _native.load()
Group = dict[str, Any]
Empty = Callable[[torch.Tensor], torch.Tensor]  # memory for the buffer of a piece
Ready = tuple[Any, list[torch.Tensor]]  # a prepared PieceSteps, and its pieces
_NUMBERS = ("lr", "weight_decay", "eps", "momentum", "dampening")
_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
# What pieces have, besides Adam's "step".
STATE: dict[type[Optimizer], tuple[str, ...]] = {SGD: ("momentum_buffer",), Adam: _MOMENTS, AdamW: _MOMENTS}
_OF_SGD = dict.fromkeys(("lr", "momentum", "dampening", "weight_decay"), float)
_OF_ADAM = dict.fromkeys(("lr", "beta1", "beta2", "eps", "weight_decay"), float)
_SETTINGS: dict[type[Optimizer], dict[str, type]] = {
    SGD: _OF_SGD | dict.fromkeys(("nesterov", "maximize", "fastest"), bool),
    Adam: _OF_ADAM | dict.fromkeys(("decoupled", "amsgrad", "maximize", "fastest"), bool),
}
_SETTINGS[AdamW] = _SETTINGS[Adam]
SETTINGS = max(map(len, _SETTINGS.values()))


def step(optimizer: Optimizer, **arguments: Any) -> None:
    """One step of every piece that has a gradient: by ringdp's kernels if they support it, else by torch.

    The bits are those of torch's single-tensor step; with fused=True those of ringdp's fastest. arguments: for the
    class's own step(), which is used if there are any.
    """
    if arguments or not serves(optimizer):
        optimizer.step(**arguments)
        return
    for group in optimizer.param_groups:
        steps, pieces = _READY[type(optimizer)](optimizer, group, torch.empty_like)
        steps.run(list(range(len(pieces))), [piece.grad for piece in pieces])


def serves(optimizer: Optimizer) -> bool:
    """Whether ringdp's kernels support this class, these settings and these pieces."""
    return type(optimizer) in _READY and all(map(_is_served, optimizer.param_groups))


def begin(
    optimizer: Optimizer, pieces: Collection[torch.Tensor], empty: Empty | None = None
) -> dict[torch.Tensor, tuple[Any, int]]:
    """Prepares a step of these pieces before their gradients arrive: per piece, a PieceSteps and its index there.

    Increments step counts, so it must be followed by run(). Only if serves(). empty: makes SGD's buffer of a piece.
    """
    found: dict[torch.Tensor, tuple[Any, int]] = {}
    for group in optimizer.param_groups:
        with gradients_for(group, pieces):
            steps, ordered = _READY[type(optimizer)](optimizer, group, empty or torch.empty_like)
        found.update((piece, (steps, number)) for number, piece in enumerate(ordered))
    return found


@contextmanager
def gradients_for(group: Group, pieces: Collection[torch.Tensor]) -> Iterator[None]:
    """Inside, these pieces of a group have a .grad, because torch's _init_group() skips pieces without one."""
    for piece in group["params"]:
        piece.grad = piece.detach() if piece in pieces else None
    try:
        yield
    finally:
        for piece in group["params"]:
            piece.grad = None


def sinks(optimizer: Optimizer, places: Mapping[torch.Tensor, tuple[int, int]], buckets: int) -> list[Any]:
    """Per bucket, a ShardSink that steps its pieces as their gradients arrive. Prepares a step, as begin().

    places: the bucket of every piece, and its offset in the shard.
    """
    placed: list[list[tuple[int, Any, int]]] = [[] for _ in range(buckets)]
    for piece, (steps, number) in begin(optimizer, places).items():
        bucket, offset = places[piece]
        placed[bucket].append((offset, steps, number))
    return [_C.step_sink(entries) for entries in placed]


def run(parts: Iterable[tuple[Any, int, torch.Tensor, int]], journal: Any = None) -> None:
    """Steps pieces: (PieceSteps, index) from begin(), the gradient, and the number in the journal, if there is one."""
    by_steps: dict[Any, list[tuple[int, torch.Tensor, int]]] = {}
    for steps, *part in parts:
        by_steps.setdefault(steps, []).append(tuple(part))
    for steps, of_steps in by_steps.items():
        indices, gradients, numbers = map(list, zip(*of_steps, strict=True))
        steps.run(indices, gradients, journal, numbers if journal is not None else [])


def make_state(optimizer: Optimizer, pieces: Collection[torch.Tensor]) -> None:
    """Makes what Adam needs for a first step of these pieces; SGD's buffers begin with that step. Only if serves()."""
    if isinstance(optimizer, SGD) or not pieces:
        return
    for group in optimizer.param_groups:
        with gradients_for(group, pieces):
            adam_state(optimizer, group)


def settings_of(kind: type[Optimizer], group: Group) -> list[float]:
    """The settings of a group in as many numbers as any class has, for step_rest()."""
    values = _settings(kind, group)
    found = [float(values[key]) for key in _SETTINGS[kind]]
    return found + [0.0] * (SETTINGS - len(found))


def step_rest(
    kind: type[Optimizer],
    settings: Sequence[float],
    arrays: Sequence[torch.Tensor | None],
    steps: float,
    gradient: torch.Tensor,
    journal: Any = None,
    number: int = 0,
) -> None:
    """Steps a piece, or what is left of it. settings: of settings_of(). arrays: it, and STATE. steps: before this one.

    For SGD, steps above 0 say that there is a momentum. journal: notes the step, of a piece of this number there.
    """
    known = {key: kind_of(value) for (key, kind_of), value in zip(_SETTINGS[kind].items(), settings, strict=False)}
    piece, *state = ([] if array is None else [array] for array in arrays)
    state += [[]] * (len(STATE[kind]) - len(state))
    if kind is SGD:
        found = _C.sgd_steps(piece, state[0], [steps == 0], **known)
    else:
        found = _C.adam_steps(piece, *state, [steps + 1], **known)
    found.run([0], [gradient], journal, [number] if journal is not None else [])


def used_state(kind: type[Optimizer], settings: Sequence[float]) -> int:
    """How many of STATE a step with these settings writes."""
    known = dict(zip(_SETTINGS[kind], settings, strict=False))
    return int(known["momentum"] != 0) if kind is SGD else 2 + int(known["amsgrad"] != 0)


def number_dtype(group: Group) -> torch.dtype:
    """Of "step" in the state that torch's optimizers make with the settings of a group."""
    wide = torch.get_default_dtype() == torch.float64 and not group["fused"]
    return torch.float64 if wide else torch.float32


def is_unusual(group: Group) -> bool:
    """Whether its settings need torch's own step."""
    betas = group.get("betas", ())
    in_tensors = any(map(torch.is_tensor, betas))
    if not group.get("fused"):  # torch's arithmetic rounds differently with tensors and numpy scalars
        in_tensors |= not all(isinstance(n, (int, float)) for n in (*betas, *(group.get(key, 0) for key in _NUMBERS)))
    return bool(in_tensors or group.get("capturable") or group.get("differentiable"))


def _is_served(group: Group) -> bool:
    on_cpu = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in group["params"])
    return on_cpu and not is_unusual(group)


def _settings(kind: type[Optimizer], group: Group) -> dict[str, Any]:
    return sgd_settings(group) if kind is SGD else {**adam_settings(group), "fastest": bool(group["fused"])}


def sgd_settings(group: Group) -> dict[str, Any]:
    """The settings of a group, as the kernel takes them."""
    numbers = {key: float(group[key]) for key in ("lr", "momentum", "dampening", "weight_decay")}
    return {**numbers, "nesterov": group["nesterov"], "maximize": group["maximize"], "fastest": bool(group["fused"])}


def _sgd(optimizer: Any, group: Group, empty: Empty) -> Ready:
    pieces: list[torch.Tensor] = []
    buffers: list[Any] = []
    optimizer._init_group(group, pieces, [], buffers)
    first = [b is None for b in buffers] if group["momentum"] else [True] * len(pieces)
    buffers = [empty(p) if b is None else b for p, b in zip(pieces, buffers, strict=False)]
    for piece, buffer in zip(pieces, buffers, strict=False):
        optimizer.state[piece]["momentum_buffer"] = buffer
    return _C.sgd_steps(pieces, buffers, first, **sgd_settings(group)), pieces


@dataclass
class AdamState:
    """The state of the pieces of a group that have gradients, one entry per piece; created if there was none."""

    pieces: list[torch.Tensor] = field(default_factory=list)
    exp_avg: list[torch.Tensor] = field(default_factory=list)
    exp_avg_sq: list[torch.Tensor] = field(default_factory=list)
    max_exp_avg_sq: list[torch.Tensor] = field(default_factory=list)  # with amsgrad
    steps: list[torch.Tensor] = field(default_factory=list)  # so far, one number per piece


def adam_state(optimizer: Any, group: Group) -> AdamState:
    """The state that torch's own step would use."""
    found = AdamState()
    optimizer._init_group(group, found.pieces, [], found.exp_avg, found.exp_avg_sq, found.max_exp_avg_sq, found.steps)
    return found


def adam_settings(group: Group) -> dict[str, Any]:
    """The settings of a group, in the order in which the kernels take them."""
    beta1, beta2 = group["betas"]
    return {
        "lr": float(group["lr"]),
        "beta1": float(beta1),
        "beta2": float(beta2),
        "eps": float(group["eps"]),
        "weight_decay": float(group["weight_decay"]),
        "decoupled": bool(group["decoupled_weight_decay"]),
        "amsgrad": bool(group["amsgrad"]),
        "maximize": bool(group["maximize"]),
    }


def _adam(optimizer: Any, group: Group, empty: Empty) -> Ready:
    del empty  # torch makes what is missing
    state = adam_state(optimizer, group)
    for count in state.steps:
        count += 1
    steps = _C.adam_steps(
        state.pieces,
        state.exp_avg,
        state.exp_avg_sq,
        state.max_exp_avg_sq,
        [float(count) for count in state.steps],
        **_settings(Adam, group),
    )
    return steps, state.pieces


_READY: dict[type[Optimizer], Callable[[Any, Group, Empty], Ready]] = {
    SGD: _sgd,
    Adam: _adam,
    AdamW: _adam,
}


StepCounts = dict[torch.Tensor, tuple[int, float]]  # state["step"] -> its version, and the value that it had then


class DeviceSteps:
    """Adam and AdamW of one set of flat parameters on a device, inside the call that sums a bucket's gradients.

    optimizer: the inner one. whole: returns the ZeroOptimizer. in_float32: gradients are float32.
    """

    def __init__(
        self, flat: FlatParameters, optimizer: Optimizer, whole: Callable[[], Any], *, in_float32: bool
    ) -> None:
        self._flat, self._optimizer, self._whole, self._in_float32 = flat, optimizer, whole, in_float32
        self._counts: StepCounts = {}

    def why_not(self) -> str:
        """Why the device cannot step buckets, equal on all ranks; "" if it can.

        Collective if it is the group's first call on the device.
        """
        kind, groups = type(self._optimizer), self._optimizer.param_groups
        if kind not in (Adam, AdamW):
            return f"{kind.__name__} has no kernel on devices, only Adam and AdamW have"
        if not all(group["fused"] for group in groups):
            return "without fused=True steps have the bits of torch's own on that device"
        if any(map(is_unusual, groups)):
            return "betas in tensors, capturable and differentiable need torch's step"
        if not self._in_float32 or any(p.dtype != torch.float32 for p in self._flat.parameters):
            return "not all parameters and gradients are float32"
        stepped = {id(p) for group in self._whole().param_groups for p in group["params"]}
        if not all(id(p) in stepped for p in self._flat.parameters):
            return "parameters of the wrapper are missing in the optimizer's groups"
        device = self._flat.device
        backend = self._whole().process_group._get_backend(device)
        if not hasattr(backend, "why_no_step"):
            return f"tensors on {device} are carried by {backend.name()}, not by ringdp"
        return str(backend.why_no_step(device))

    def sinks(self) -> list[Any]:
        """Per bucket, the sink that steps it. Increments step counts. Only if why_not() is ""."""
        places = self._flat.places()
        entries: list[list[tuple[Any, ...]]] = [[] for _ in range(len(self._flat))]
        known, self._counts = self._counts, {}
        for group in self._optimizer.param_groups:
            with gradients_for(group, places):
                state = adam_state(self._optimizer, group)
            settings = tuple(adam_settings(group).values())
            lists = [state.exp_avg, state.exp_avg_sq, *([state.max_exp_avg_sq] if group["amsgrad"] else [])]
            for piece, number, *own in zip(state.pieces, self._count(state.steps, known), *lists, strict=True):
                bucket, offset = places[piece]
                entries[bucket].append((offset, own, number, settings))
        return [_C.device_sink(self._flat.kept(bucket), pieces) for bucket, pieces in enumerate(entries)]

    def _count(self, steps: Sequence[torch.Tensor], known: StepCounts) -> list[float]:
        """Increments the step counts; returns them without reading the device, unless other code has changed them."""
        values = []
        for step in steps:
            version, value = known.get(step, (-1, 0.0))
            values.append((value if version == step._version else float(step)) + 1)
        if steps:
            torch._foreach_add_(list(steps), 1)
        self._counts.update((step, (step._version, value)) for step, value in zip(steps, values, strict=True))
        return values
