"""From a whole model, or one on the meta device, to shards, unit by unit: never more than one is whole in addition."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from ringdp.zero.bucket_plan import BucketPlan
from ringdp.zero.refusals import Init, has_meta
from ringdp.zero.unit_storage import Blocks, Bucket, UnitStorage
from ringdp.zero.units import Unit


class Construction:
    """Goes through a model's modules in their order. A unit's shards are made once the last of its parameters is there.

    Parameters and buffers on the meta device get memory on `device`, and the values that `init` or reset_parameters()
    gives them. That is called for one module after the other as constructors would, so the same seed gives the same
    values. A parameter that a second module shares keeps those of the first.
    """

    def __init__(
        self,
        module: nn.Module,
        units: Sequence[Unit],
        plans: Sequence[BucketPlan],
        group: dist.ProcessGroup,
        device: torch.device,
        *,
        root: int | None,
        init: Init | None,
    ) -> None:
        self._module, self._units, self._group, self._device = module, units, group, device
        self._root, self._init = root, init
        self._named = dict(module.named_parameters())
        self._name_of = {p: n for n, p in self._named.items()}
        self._plan_of = {name: (plan, place) for plan in plans for place, name in enumerate(plan.names)}
        self._plans = [[p for p in plans if p.unit == number] for number in range(len(units))]
        self._missing = [sum(len(p.names) for p in mine) for mine in self._plans]
        self._open: dict[int, dict[BucketPlan, Bucket]] = {}
        self._blocks = Blocks(group)
        self._storages: dict[int, UnitStorage] = {}
        self._made: dict[torch.Tensor, torch.Tensor] = {}  # what a module has had -> what it has instead

    @torch.no_grad()
    def run(self) -> list[UnitStorage]:
        """The units, freed."""
        for module in list(self._module.modules()):
            self._take(module)
        return [self._storages[number] for number in range(len(self._units))]

    def _take(self, module: nn.Module) -> None:
        begins = has_meta(module)
        shared = []
        for key, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            if parameter in self._made:
                shared.append((key, self._made[parameter]))
            else:
                self._place(module, key, parameter)
        for key, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.is_meta:
                made = self._made.get(buffer)
                if made is None:
                    made = self._made[buffer] = torch.empty_like(buffer, device=self._device)
                setattr(module, key, made)
        if begins:
            self._begin(module, shared)
        self._seal_complete()

    def _place(self, module: nn.Module, key: str, parameter: torch.Tensor) -> None:
        """At its first encounter."""
        name = self._name_of[parameter]
        if name not in self._plan_of:  # stays whole
            if parameter.is_meta:
                self._replace(module, key, parameter, torch.empty_like(parameter, device=self._device))
            return
        plan, place = self._plan_of[name]
        bucket = self._bucket(plan)
        view = bucket.view(place)
        if parameter.is_meta:
            bucket.parameters[place] = self._replace(module, key, parameter, view)
        else:
            view.copy_(parameter.data)
            parameter.data = view
            self._made[parameter] = parameter
        self._missing[plan.unit] -= 1

    def _replace(self, module: nn.Module, key: str, old: torch.Tensor, memory: torch.Tensor) -> nn.Parameter:
        new = nn.Parameter(memory, requires_grad=old.requires_grad)
        new.__dict__.update(old.__dict__)
        self._made[old] = new
        setattr(module, key, new)
        return new

    def _begin(self, module: nn.Module, shared: list[tuple[str, torch.Tensor]]) -> None:
        """Gives a module its first values; what it shares with an earlier one is replaced meanwhile."""
        for key, known in shared:
            scratch = torch.empty_strided(known.shape, known.stride(), dtype=known.dtype, device=known.device)
            setattr(module, key, nn.Parameter(scratch))
        if self._init is not None:
            self._init(module)
        else:
            module.reset_parameters()
        for key, known in shared:
            setattr(module, key, known)

    def _bucket(self, plan: BucketPlan) -> Bucket:
        unit = self._open.setdefault(plan.unit, {})
        if plan not in unit:
            parameters = [self._named[name] for name in plan.names]
            unit[plan] = Bucket(self._units[plan.unit].name, parameters, plan, self._device, self._group, self._blocks)
        return unit[plan]

    def _seal_complete(self) -> None:
        for number in [n for n in self._open if self._missing[n] == 0]:
            buckets = self._open.pop(number)
            for bucket in buckets.values():
                bucket.seal(self._root)
            storage = UnitStorage(number, self._units[number].name, list(buckets.values()), self._blocks)
            storage.free()
            self._storages[number] = storage
