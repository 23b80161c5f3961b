"""A model whose parameters are in shards: its units, whole again on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from ringdp.ddp.agreement import check_order
from ringdp.zero.bucket_plan import bucket_plans
from ringdp.zero.construction import Construction
from ringdp.zero.gathers import Gathered, Schedule
from ringdp.zero.module_state import StateHooks
from ringdp.zero.refusals import Init
from ringdp.zero.unit_hooks import UnitHooks
from ringdp.zero.unit_storage import UnitStorage
from ringdp.zero.units import Unit


class ShardedModel:
    """Shards the parameters of `module` when it is made. Collective, as all its methods but those that only report.

    root: the rank whose values count; None: everybody's own. `trainable`: buckets of the parameters that get gradients,
    in about the order in which those are complete; `frozen`: of the others. Each kind has one layout.
    """

    def __init__(
        self,
        module: nn.Module,
        units: Sequence[Unit],
        group: dist.ProcessGroup,
        device: torch.device,
        *,
        root: int | None,
        init: Init | None,
        prefetch: bool,
    ) -> None:
        self._module, self._group, self._device = module, group, device
        plans = bucket_plans(units, dict(module.named_parameters()), group.size())
        self.units = Construction(module, units, plans, group, device, root=root, init=init).run()
        buckets = [bucket for unit in self.units for bucket in unit.buckets]
        buckets.sort(key=lambda bucket: bucket.plan.number)
        self.trainable = [b for b in buckets if b.plan.trainable]
        self.frozen = [b for b in buckets if not b.plan.trainable]
        self.sharded_names = frozenset(name for b in buckets for name in b.plan.names)
        self._schedule = Schedule(self.units, group.size(), prefetch)
        needed_by: dict[nn.Module, list[UnitStorage]] = {}
        for unit, storage in zip(units, self.units, strict=True):
            for name in unit.modules:
                storages = needed_by.setdefault(module.get_submodule(name), [])
                if storage not in storages:
                    storages.append(storage)
        self._hooks = UnitHooks(needed_by, self._schedule, self.check_order)
        StateHooks(module, buckets, self.is_whole, self._settle_for_writing)  # which the module keeps

    def begin_forward(self) -> None:
        """The model is about to be called."""
        self._hooks.begin_forward()

    def check_order(self) -> None:
        """Collective, when a pass ends. RuntimeError on every rank when they have gathered different units."""
        check_order(self._group, self._device, [self.units[n].name for n in self._schedule.running_order()])

    def end_forward(self) -> None:
        """The model has returned. As check_order(); what was on its way in vain is freed."""
        self.check_order()
        if self._hooks.idle:
            self._schedule.end()

    def check_unpinned(self, what: str) -> None:
        """RuntimeError inside gathered(): parameters are read from there, not from the shards that `what` writes."""
        pinned = next((unit.name for unit in self.units if unit.pins), None)
        if pinned is not None:
            raise RuntimeError(
                f"DistributedDataParallel: {what} while unit {pinned} is gathered(): leave the context first"
            )

    def _settle_for_writing(self, what: str) -> None:
        self.check_unpinned(what)
        self._hooks.drop_leftovers()

    def gathers(self) -> Gathered:
        """Of the latest passes."""
        return self._schedule.latest()

    def is_whole(self) -> bool:
        """Whether every parameter can be read."""
        return all(unit.pins for unit in self.units)

    @contextmanager
    def gathered(self, part: nn.Module | None = None, *, writes: bool = False) -> Iterator[None]:
        """Inside, the parameters of `part` (default: of the model) can be read; with `writes` rank 0's are kept."""
        wanted = {id(p) for p in (self._module if part is None else part).parameters()}
        units = [u for u in self.units if any(id(p) in wanted for b in u.buckets for p in b.parameters)]
        self._hooks.drop_leftovers()
        for unit in units:
            self._schedule.pin(unit)
        try:
            yield
            for bucket in [b for unit in units for b in unit.buckets] if writes else ():
                bucket.recall()
                bucket.seal(0)
        finally:
            for unit in units:
                self._schedule.unpin(unit)

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """The module's state dict with whole tensors; one unit is whole at a time, beside the result."""
        self._hooks.drop_leftovers()
        found = self._module.state_dict(keep_vars=True)
        whole: dict[int, torch.Tensor] = {}
        for unit in self.units:
            self._schedule.pin(unit)
            try:
                whole.update((id(p), p.detach().clone()) for bucket in unit.buckets for p in bucket.parameters)
            finally:
                self._schedule.unpin(unit)
        return {name: whole[id(v)] if id(v) in whole else _copy(v) for name, v in found.items()}

    def gathered_bytes(self) -> int:
        """Memory of the largest unit and of one more on its way."""
        return sum(sorted((unit.nbytes for unit in self.units), reverse=True)[:2])

    def shard_bytes(self) -> int:
        """Memory of this rank's shards, padding included."""
        return sum(bucket.shard.nbytes for unit in self.units for bucket in unit.buckets)

    def useful_bytes(self) -> int:
        """Of that, what holds parameters."""
        return sum(bucket.useful_bytes for unit in self.units for bucket in unit.buckets)


def _copy(value: object) -> object:
    return value.detach().clone() if torch.is_tensor(value) else value
