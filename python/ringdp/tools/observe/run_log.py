"""`ringdp.RunLog`: records a training run in a file, of which `ringdp report` makes a page."""

from __future__ import annotations

import json
import math
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Stock
from torch.optim import Optimizer

from ringdp.ddp.timeline import StepTimes
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.gather_objects import gather_objects
from ringdp.innermost import innermost
from ringdp.tools.pages.run_file import IN_FORMULA
from ringdp.tools.planner.fake_memory import CannotCount, held_bytes
from ringdp.tools.planner.preflight import preflight
from ringdp.zero.memory import Memory
from ringdp.zero.optimizer import ZeroOptimizer

Phases = tuple[float, float, float]


@dataclass
class History:
    """losses: one per step. validation: (steps done, loss). step_seconds: of each step, without what was left out.

    phases: of each step the seconds of its last forward pass, of its backward pass, and of waiting for gradients after
    it, on this rank; None where no gradients were exchanged, or where the wrapper keeps no times.
    """

    losses: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    phases: list[Phases | None] = field(default_factory=list)


def memory_of(ddp: Stock, optimizer: Optimizer) -> Memory | None:
    """What training holds now; None where an optimizer hides another's state, as torch's ZeroRedundancyOptimizer."""
    if isinstance(optimizer, ZeroOptimizer):
        return optimizer.memory()
    if hasattr(optimizer, "optim"):
        return None
    state = held_bytes(optimizer)
    if isinstance(ddp, DistributedDataParallel):
        return replace(ddp.memory(), state=state)
    gradients = sum(p.grad.nbytes for p in ddp.parameters() if p.grad is not None)
    return Memory(
        parameters=sum(p.nbytes for p in ddp.parameters()),
        gradients=gradients,
        state=state,
        buckets=0 if ddp.gradient_as_bucket_view else gradients,
    )


def formula_of(module: nn.Module, optimizer: Optimizer, held: Memory, ranks: int) -> dict[str, float] | None:
    """Bytes by kind that `ringdp.preflight` predicts for the optimizer's stage; None where it needs values."""
    sharded = isinstance(optimizer, ZeroOptimizer)
    given: Any = optimizer.optim if sharded else optimizer
    try:
        found = preflight(
            module,
            given,
            None,
            device_bytes=math.inf,
            ranks=ranks,
            stage=optimizer.stage if sharded else 0,
            master_dtype=torch.float32 if held.master else None,
            activation_bytes=0.0,
        )
    except CannotCount:
        return None
    return {kind: getattr(found.by_stage[found.stage], kind) for kind in IN_FORMULA}


OVERLAP = ("step", "forward", "backward", "wait", "communication", "exposed", "overlap", "verdict")


class RunLog:
    """Keeps a run's losses and times; write() adds memory, overlap and links. Make one on every rank.

        log = ringdp.RunLog(ddp, optimizer, items_per_step=32 * ranks, unit="samples")
        for batch in loader:
            ...
            optimizer.step()
            log.step(loss)
        log.write("run.json")

    ddp: of ringdp or torch, which keeps no times of its buckets; over any backend, of which ringdp says how it reaches
    its peers. TypeError for another wrapper. items_per_step: of all ranks; default: steps are counted. settings: what
    the page should list. Memory is counted once, after the optimizer's first step. step() costs about ten microseconds
    per bucket.
    """

    def __init__(
        self,
        ddp: Stock,
        optimizer: Optimizer,
        *,
        items_per_step: float = 1,
        unit: str = "steps",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """See the class. ValueError for items_per_step that is not a number above 0."""
        if not isinstance(ddp, Stock):
            raise TypeError(f"RunLog: {type(ddp).__name__} is not a DistributedDataParallel of ringdp or of torch")
        if not 0 < items_per_step < math.inf:
            raise ValueError(f"RunLog: items_per_step={items_per_step!r}, must be a number above 0")
        self._ddp, self._optimizer = ddp, innermost(optimizer)
        self._items, self._unit, self._settings = items_per_step, unit, dict(settings or {})
        self._history = History()
        self._pending: list[torch.Tensor | float] = []
        self._memory: Memory | None = None
        self._origin = origin()
        self._optimizer.register_step_post_hook(self._count_memory)
        self._step_seen = self._step_now()
        self.leave_out()

    def step(self, loss: torch.Tensor | float) -> None:
        """After each optimizer step. loss: this rank's; a tensor's value is not read before it is asked for."""
        now = time.perf_counter()
        self._history.step_seconds.append(now - self._began)
        self._history.phases.append(self._phases())
        self._pending.append(loss.detach().clone() if isinstance(loss, torch.Tensor) else loss)
        self._began = time.perf_counter()

    def validation(self, loss: torch.Tensor | float) -> None:
        """A validation loss after the steps so far; rank 0's is written. The time since the latest step is left out."""
        self._history.validation.append((len(self._history.step_seconds), float(loss)))
        self.leave_out()

    def leave_out(self) -> None:
        """The time since the latest step belongs to no step: call it after a checkpoint, for example."""
        self._began = time.perf_counter()

    @property
    def history(self) -> History:
        """The history so far, on this rank."""
        self._history.losses += map(float, self._pending)
        self._pending.clear()
        return self._history

    def state_dict(self) -> dict[str, Any]:
        """The history as plain numbers, for a checkpoint."""
        return asdict(self.history)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint. ValueError for a history with other fields, as another release may have."""
        if state.keys() != asdict(History()).keys():
            raise ValueError(f"RunLog: a history has {', '.join(asdict(History()))}, not {', '.join(state)}")
        self._history, self._pending = History(**state), []
        self.leave_out()

    @property
    def memory(self) -> Memory | None:
        """Memory of this rank after the optimizer's first step; None before it."""
        return self._memory

    def report(self) -> dict[str, Any]:
        """All of it, ready for JSON: training losses are means over the ranks, the rest is this rank's. Collective.

        A loss that is not finite is None. ValueError on every rank when no step was logged, or ranks have logged
        different numbers of steps.
        """
        validation = [(step, _finite(loss)) for step, loss in self._history.validation]
        history = {**self.state_dict(), "losses": self._mean_losses(), "validation": validation}
        group = self._ddp.process_group
        return {
            "origin": self._origin,
            "backend": group._get_backend(self._ddp.device).name(),
            "world": group.size(),
            "items_per_step": self._items,
            "unit": self._unit,
            "history": history,
            "observed": self._observed(),
            "settings": {name: _plain(value) for name, value in self._settings.items()},
        }

    def write(self, file: str | Path) -> None:
        """Rank 0 writes report() for `ringdp report FILE`, and makes its folder. Collective; OSError on rank 0."""
        found = self.report()
        if self._ddp.process_group.rank() == 0:
            write_json(found, Path(file))

    def _mean_losses(self) -> list[float | None]:
        everyone: list[list[float]] = gather_objects(self.history.losses, self._ddp.process_group)
        counts = [len(losses) for losses in everyone]
        if len(set(counts)) > 1 or not counts[0]:
            raise ValueError(f"RunLog: the ranks have logged {counts} steps; there must be some, on every rank as many")
        return [_finite(sum(losses) / len(losses)) for losses in zip(*everyone, strict=True)]

    def _observed(self) -> dict[str, Any]:
        module, held = self._ddp.module, self._memory
        formula = None if held is None else formula_of(module, self._optimizer, held, self._ddp.process_group.size())
        return {
            "parameters": sum(p.numel() for p in module.parameters()),
            "memory": None if held is None else asdict(held),
            "formula": formula,
            "overlap": self._overlap(),
            "links": links_of(self._ddp.process_group, self._ddp.device),
        }

    def _overlap(self) -> dict[str, Any] | None:
        times = self._times()
        if times is None or not times.step:
            return None
        return {
            **{name: getattr(times, name) for name in OVERLAP},
            "buckets": [asdict(bucket) for bucket in times.buckets],
        }

    def _times(self) -> StepTimes | None:
        return self._ddp.times() if isinstance(self._ddp, DistributedDataParallel) else None

    def _step_now(self) -> int:
        times = self._times()
        return times.step if times is not None else 0

    def _phases(self) -> Phases | None:
        times = self._times()
        if times is None or times.step == self._step_seen:
            return None
        self._step_seen = times.step
        return times.forward, times.backward, times.wait

    def _count_memory(self, *_: Any) -> None:
        if self._memory is None:  # a hook cannot take itself away while torch goes through them
            self._memory = memory_of(self._ddp, self._optimizer)


def origin() -> dict[str, str]:
    """Of this process: the time now, its host, and the command that started it."""
    now = datetime.now().astimezone().isoformat(" ", "seconds")
    return {"began": now, "host": socket.gethostname(), "command": shlex.join(sys.orig_argv)}


def links_of(group: dist.ProcessGroup, device: torch.device) -> list[str]:
    """How bytes reach each peer and which plan runs, with reasons; empty where the backend does not say."""
    backend: Any = group._get_backend(device)
    return backend.describe().splitlines() if hasattr(backend, "describe") else []


def write_json(report: Mapping[str, Any], file: Path) -> None:
    """Writes the file atomically: a reader sees all of it, or the previous one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.draft")
    draft.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    draft.replace(file)


def _finite(value: float) -> float | None:
    """None for numbers that JSON cannot represent."""
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    known = isinstance(value, str | int | None) or (isinstance(value, float) and math.isfinite(value))
    return value if known else str(value)
