"""Whether training fits before anything is allocated: `ringdp.preflight(model, optimizer, batch)`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ringdp.text.units import byte_size, counted
from ringdp.tools.planner import formulas, units
from ringdp.tools.planner.fake_memory import Loss, Maker, default_loss, pass_memory, state_bytes
from ringdp.tools.planner.memory import STAGES, fit_sentence
from ringdp.zero.units import units_of


def bytes_per_rank() -> int:
    """Memory of the current CUDA device; without one, this machine's memory divided among its ranks."""
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return whole // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def world_size() -> int:
    """Ranks of the default group, else what torchrun says, else 1."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


_BUCKET = 8 << 20  # of gradients, from stage 2 on: the wrapper's default


class DoesNotFit(MemoryError):
    """Training does not fit; the message names the stages and numbers of ranks that do."""


@dataclass(frozen=True)
class Holding:
    """Bytes on a rank at the moment that needs most, by kind.

    buckets: gradients that are being reduced, in addition to .grad. gathered: units that stage 3 makes whole.
    activations: what forward keeps and backward makes on its way.
    """

    parameters: float
    gradients: float
    state: float
    master: float
    buckets: float
    gathered: float
    activations: float

    @property
    def total(self) -> float:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class Preflight:
    """What was counted. by_stage: at `ranks`; fewest_ranks: that fit, None where no number does."""

    ranks: int
    stage: int
    device_bytes: float
    by_stage: Mapping[int, Holding]
    fewest_ranks: Mapping[int, float | None]

    @property
    def fits(self) -> bool:
        """All of it, at this stage on these ranks."""
        return self.by_stage[self.stage].total <= self.device_bytes

    def __str__(self) -> str:
        names = [field.name for field in fields(Holding)]
        lines = [f"{counted(self.ranks, 'rank')} with {byte_size(self.device_bytes)} each, per rank:"]
        lines.append("stage  " + "".join(f"{name:>13}" for name in names) + f"{'total':>13}  fits from")
        for stage, held in self.by_stage.items():
            cells = "".join(f"{byte_size(getattr(held, name)):>13}" for name in names)
            fewest = self.fewest_ranks[stage]
            lines.append(f"{stage:>5}  {cells}{byte_size(held.total):>13}  {'no ranks' if fewest is None else fewest}")
        return "\n".join(lines)


def preflight(
    model: nn.Module,
    optimizer: Optimizer | Maker,
    batch: Any,
    *,
    device_bytes: float | str | None = None,
    ranks: int | None = None,
    stage: int = 0,
    loss: Loss = default_loss,
    master_dtype: torch.dtype | None = None,
    gradient_as_bucket_view: bool = False,
    activation_bytes: float | None = None,
    optimizer_bytes: float | None = None,
) -> Preflight:
    """Counts what a rank of `ranks` holds at ZeRO stage `stage`; DoesNotFit when that is more than a device has.

    model: anywhere, also under torch.device("meta"); optimizer: an instance, a class, or a function of parameters;
    batch: of one rank, given to the model as the arguments it is, and never computed. loss(model, batch): what is
    differentiated; by default all that the model returns is added up. device_bytes: bytes, or text as "80GB"; by
    default this device's (without one, this machine's memory per local rank). ranks: by default the group's, else
    torchrun's. activation_bytes, optimizer_bytes: instead of counting, for models and optimizers that need values.
    Nothing of the model's size is allocated. ValueError for arguments that make no sense, CannotCount where a
    model or an optimizer cannot run without values.
    """
    room = units.size(device_bytes) if isinstance(device_bytes, str) else device_bytes
    room = bytes_per_rank() if room is None else room
    ranks = world_size() if ranks is None else ranks
    if stage not in STAGES:
        raise ValueError(f"preflight: stage={stage!r}, must be 0, 1, 2 or 3")
    if ranks < 1 or not room > 0:
        raise ValueError(f"preflight: ranks={ranks}, device_bytes={room:g}: both must be above 0")
    counted = _counted(model, optimizer, master_dtype, optimizer_bytes)
    activations = pass_memory(model, batch, loss).peak if activation_bytes is None else activation_bytes
    found = _judged(counted, _Around(model, gradient_as_bucket_view, activations), room, ranks, stage)
    if not found.fits:
        raise DoesNotFit(_refusal(found))
    return found


@dataclass(frozen=True)
class _Counted:
    """Bytes of one whole copy."""

    parameters: int
    gradients: int
    state: float
    master: int


def _counted(
    model: nn.Module, optimizer: Optimizer | Maker, master_dtype: torch.dtype | None, optimizer_bytes: float | None
) -> _Counted:
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    masters = [p for p in trained if master_dtype is not None and p.dtype != master_dtype]
    stepped = [torch.empty_like(p, dtype=master_dtype or p.dtype, device="meta") for p in trained]
    for shape in stepped:
        shape.requires_grad_(True)
    return _Counted(
        parameters=sum(p.nbytes for p in parameters),
        gradients=sum(p.nbytes for p in trained),
        state=state_bytes(optimizer, stepped) if optimizer_bytes is None else optimizer_bytes,
        master=sum(p.numel() * master_dtype.itemsize for p in masters) if master_dtype is not None else 0,
    )


class _Around:
    """What a rank holds in addition to its share of parameters, gradients and state."""

    def __init__(self, model: nn.Module, views: bool, activations: float) -> None:
        self.activations = activations
        sizes = sorted((p.nbytes for p in model.parameters() if p.requires_grad), reverse=True)
        self._gradients = sum(sizes)
        self._views = views
        self._two_buckets = min(self._gradients, sum(max(_BUCKET, size) for size in sizes[:2]))
        self._two_units = two_units_bytes(model)

    def buckets(self, stage: int) -> float:
        """Gradients on their way."""
        if stage < 2:
            return 0 if self._views else self._gradients
        return self._two_buckets if stage == 2 else self._two_units

    def gathered(self, stage: int) -> float:
        """Units that are whole for a while."""
        return self._two_units if stage == 3 else 0


def two_units_bytes(model: nn.Module) -> int:
    """Bytes of the two largest units of stage 3, gathered."""
    largest = sorted((unit.elements for unit in units_of(model)), reverse=True)[:2]
    return sum(largest) * max((p.element_size() for p in model.parameters()), default=0)


def _judged(counted: _Counted, around: _Around, room: float, ranks: int, stage: int) -> Preflight:
    by_stage, fewest = {}, {}
    for at in STAGES:
        by_stage[at] = _holding(counted, around, at, ranks)
        whole = _holding(counted, around, at, None).total
        fewest[at] = formulas.min_ranks(whole, _holding(counted, around, at, 1).total - whole, room)
    return Preflight(ranks, stage, room, by_stage, fewest)


def _holding(counted: _Counted, around: _Around, stage: int, ranks: int | None) -> Holding:
    """On each of `ranks`; None: on each of infinitely many."""
    part = 0.0 if ranks is None else 1 / ranks
    return Holding(
        parameters=counted.parameters * (part if stage >= 3 else 1),
        gradients=counted.gradients * (part if stage >= 2 else 1),
        state=counted.state * (part if stage >= 1 else 1),
        master=counted.master * (part if stage >= 1 else 1),
        buckets=around.buckets(stage),
        gathered=around.gathered(stage),
        activations=around.activations,
    )


def _refusal(found: Preflight) -> str:
    held = found.by_stage[found.stage]
    largest = max(fields(held), key=lambda field: getattr(held, field.name)).name
    return (
        f"preflight: stage {found.stage} on {counted(found.ranks, 'rank')} needs {byte_size(held.total)} per rank, "
        "a device has"
        f" {byte_size(found.device_bytes)} (most of it {largest}, {byte_size(getattr(held, largest))}): it"
        f" {fit_sentence(dict(found.fewest_ranks))}"
    )
