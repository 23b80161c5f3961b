"""Stage 3: a model whose parameters are in shards, built unit by unit, gathered on demand, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ringdp.ddp.agreement import check_order
from ringdp.elastic.leaf import check_outside, running
from ringdp.zero.followers import Followers
from ringdp.zero.prefetch import Gathered, PrefetchSchedule, UnitHooks, in_backward
from ringdp.zero.refusals import Init, has_meta, refuse_copy
from ringdp.zero.unit_storage import Blocks, Bucket, BucketPlan, UnitStorage, bucket_plans
from ringdp.zero.units import Unit


class Construction:
    """Visits a model's modules in their order, and shards a unit when it has visited the last of its parameters.

    Parameters and buffers on the meta device get memory on `device`, and the values that `init` or reset_parameters()
    gives them. Modules are initialized in the order of their constructors, so the same seed gives the same values. A
    parameter that a second module shares keeps the values of the first.
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
        self.blocks = Blocks(group, device)
        self._storages: dict[int, UnitStorage] = {}
        self._made: dict[torch.Tensor, torch.Tensor] = {}  # parameter or buffer of the given model -> its replacement

    @torch.no_grad()
    def run(self) -> list[UnitStorage]:
        """All units, sharded and with their memory freed."""
        for module in list(self._module.modules()):
            self._take(module)
        return [self._storages[number] for number in range(len(self._units))]

    def _take(self, module: nn.Module) -> None:
        needs_values = has_meta(module)
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
        if needs_values:
            self._initialize(module, shared)
        self._shard_complete_units()

    def _place(self, module: nn.Module, key: str, parameter: torch.Tensor) -> None:
        """Moves a parameter that is met for the first time into its bucket."""
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

    def _initialize(self, module: nn.Module, shared: list[tuple[str, torch.Tensor]]) -> None:
        """Initializes a module; scratch tensors stand in for parameters that it shares with an earlier one."""
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
            unit[plan] = Bucket(self._units[plan.unit].name, parameters, plan, self._device, self._group, self.blocks)
        return unit[plan]

    def _shard_complete_units(self) -> None:
        for number in [n for n in self._open if self._missing[n] == 0]:
            buckets = self._open.pop(number)
            for bucket in buckets.values():
                bucket.write_shard(self._root)
            storage = UnitStorage(number, self._units[number].name, list(buckets.values()), self.blocks)
            storage.free()
            self._storages[number] = storage


Place = tuple[Bucket, int]


class StateHooks:
    """The state dict hooks on the modules of one model.

    state_dict() is refused while parameters are freed; with keep_vars=True it contains the freed parameters themselves.
    load_state_dict() of a whole dict works as usual: a parameter gets memory of its own while its module loads, and
    every rank keeps its part. Not collective.
    prepare_write: called with the name of what is about to write parameters; raises if they must not be written now.
    """

    __reduce_ex__ = refuse_copy

    def __init__(
        self,
        module: nn.Module,
        buckets: Sequence[Bucket],
        is_whole: Callable[[], bool],
        prepare_write: Callable[[str], None],
    ) -> None:
        self._is_whole, self._prepare_write = is_whole, prepare_write
        self._place_of: dict[int, Place] = {id(p): (b, n) for b in buckets for n, p in enumerate(b.parameters)}
        self._loans: dict[nn.Module, list[Place]] = {}
        self.loads = 0  # of modules
        module.register_state_dict_pre_hook(self._before_saving)
        for part in module.modules():
            if any(id(p) in self._place_of for p in part.parameters(recurse=False)):
                part.register_load_state_dict_pre_hook(self._before_loading)
                part.register_load_state_dict_post_hook(self._after_loading)

    def _before_saving(self, _: nn.Module, __: str, keep_vars: bool) -> None:
        if not (keep_vars or self._is_whole()):
            raise RuntimeError(
                "DistributedDataParallel: state_dict() at zero_stage=3, where parameters are in shards: call "
                "ddp.full_state_dict() on all ranks, or save the shards with ringdp.checkpoint"
            )

    def _before_loading(
        self, module: nn.Module, state: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any], *_: object
    ) -> None:
        self._prepare_write("load_state_dict()")
        if metadata.get("assign_to_params_buffers"):
            raise NotImplementedError(
                "DistributedDataParallel: load_state_dict(assign=True) at zero_stage=3 would replace parameters that "
                "are in shards: leave assign out, values are copied"
            )
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            value = state.get(prefix + key)
            if id(parameter) in self._place_of and torch.is_tensor(value) and _fits(value, parameter):
                bucket, position = place = self._place_of[id(parameter)]
                loans = self._loans.setdefault(module, [])
                if place not in loans:  # it may have two names here
                    bucket.lend_memory(position)
                    loans.append(place)

    def _after_loading(self, module: nn.Module, _: object) -> None:
        self.loads += 1
        for bucket, position in self._loans.pop(module, []):
            bucket.keep_part(position)


def _fits(value: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether torch will copy this value into this parameter; it refuses other shapes."""
    return value.shape == parameter.shape or (parameter.dim() == 0 and value.dim() == 1)


class ShardedModel:
    """Shards the parameters of `module` at construction, which is collective.

    root: the rank whose values all ranks get; None: each rank keeps its own. Attributes `trainable`: buckets of the
    parameters that get gradients, in about the order in which these are complete; `frozen`: of the other parameters.
    All buckets of a kind share one layout. why_fixed: set by an optimizer whose shards are kept elsewhere, too.
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
        self.why_fixed = ""  # why shards cannot be written; '' if they can
        plans = bucket_plans(units, dict(module.named_parameters()), group.size())
        construction = Construction(module, units, plans, group, device, root=root, init=init)
        self.units, self._blocks = construction.run(), construction.blocks
        buckets = [bucket for unit in self.units for bucket in unit.buckets]
        buckets.sort(key=lambda bucket: bucket.plan.number)
        self.trainable = [b for b in buckets if b.plan.trainable]
        self.frozen = [b for b in buckets if not b.plan.trainable]
        self.sharded_names = frozenset(name for b in buckets for name in b.plan.names)
        self._followers, self._in_leaf = Followers(group, device), False
        self._schedule = PrefetchSchedule(self.units, group.size(), prefetch, self._followers.announce)
        needed_by: dict[nn.Module, list[UnitStorage]] = {}
        for unit, storage in zip(units, self.units, strict=True):
            for name in unit.modules:
                storages = needed_by.setdefault(module.get_submodule(name), [])
                if storage not in storages:
                    storages.append(storage)
        self._hooks = UnitHooks(needed_by, self._schedule, self._begin_backward, self.check_order)
        self._state_hooks = StateHooks(module, buckets, self.is_whole, self._prepare_write)

    def regroup(self, group: dist.ProcessGroup, trainable: Any, frozen: Any = None) -> None:
        """In another group all parameters are freed, and shards have their new sizes, without values. Not collective.

        trainable, frozen: the layouts there. What an interrupted pass has left is dropped.
        """
        self._group = group
        self._blocks.regroup(group)
        for unit in self.units:
            unit.recut({True: trainable, False: frozen}, group)
        self._followers, self._in_leaf = Followers(group, self._device), False
        self._state_hooks.loads = 0  # ranks that join have loaded nothing
        self._schedule.regroup(group.size(), self._followers.announce)
        self._hooks.forget()

    def check_free(self) -> None:
        """RuntimeError names a parameter whose .data was assigned while it was freed."""
        for unit in self.units:
            for bucket in unit.buckets if not unit.has_memory else ():
                bucket.check_free()

    def begin_forward(self) -> None:
        """Call before the model is called; inside a leaf other ranks may have none (follow())."""
        self._in_leaf = running() is not None
        if self._in_leaf and not in_backward():
            self._followers.begin_pass(backward=False)
        self._hooks.begin_forward()

    def _begin_backward(self) -> None:
        if self._in_leaf:
            self._followers.begin_pass(backward=True)

    def check_order(self) -> None:
        """Collective; call when a pass ends. RuntimeError on every rank if ranks have gathered different units."""
        order = self._schedule.running_order()
        self._followers.end_pass(order)
        self._check_order(order)

    def _check_order(self, order: Sequence[int]) -> None:
        loads = f"load_state_dict() of {self._state_hooks.loads} modules"
        check_order(self._group, self._device, [*(self.units[n].name for n in order), loads])

    def follow(self, *, in_leaf: bool = False) -> int:
        """With micro_batches, at the end of a step: takes part in what ranks that still have leaves gather. Collective.

        With shard_leaves also at the end of each leaf (in_leaf). Returns once no rank has a pass left: how many ranks
        have ended a leaf, and not the step.
        """
        self._hooks.drop_leftovers()
        for backward in self._followers.passes(in_leaf=in_leaf):
            for number in self._followers.units():
                self.units[number].start()
                self.units[number].free()
            if self._followers.ended:
                order = self._followers.order()
                self._schedule.expect(order, backward=backward)
                self._check_order(order)
        return self._followers.in_leaves

    def end_forward(self) -> None:
        """Call when the model has returned. As check_order(); then frees units that were prefetched but not used."""
        self.check_order()
        if self._hooks.idle:
            self._schedule.end()

    def check_unpinned(self, what: str) -> None:
        """RuntimeError inside gathered(): whole parameters would not follow the shards that `what` writes."""
        pinned = next((unit.name for unit in self.units if unit.pins), None)
        if pinned is not None:
            raise RuntimeError(
                f"DistributedDataParallel: {what} while unit {pinned} is gathered(): leave the context first"
            )

    def _prepare_write(self, what: str) -> None:
        self._check_not_fixed(what)
        self.check_unpinned(what)
        self._hooks.drop_leftovers()

    def _check_not_fixed(self, what: str) -> None:
        if self.why_fixed:
            raise RuntimeError(f"DistributedDataParallel: {what} {self.why_fixed}")

    def gathers(self) -> Gathered:
        """What the latest forward and backward pass have gathered."""
        return self._schedule.latest()

    def is_whole(self) -> bool:
        """Whether every parameter can be read."""
        return all(unit.pins for unit in self.units)

    @contextmanager
    def gathered(self, part: nn.Module | None = None, *, writes: bool = False) -> Iterator[None]:
        """Inside, the parameters of `part` (default: of the model) can be read. Collective.

        With `writes`, all ranks keep the values that rank 0 has at the end; otherwise what was written is lost.
        """
        check_outside("gathered()")
        if writes:
            self._check_not_fixed("gathered(writes=True)")
        wanted = {id(p) for p in (self._module if part is None else part).parameters()}
        units = [u for u in self.units if any(id(p) in wanted for b in u.buckets for p in b.parameters)]
        self._hooks.drop_leftovers()
        for unit in units:
            self._schedule.pin(unit)
        try:
            yield
            for bucket in [b for unit in units for b in unit.buckets] if writes else ():
                bucket.restore_views()
                bucket.write_shard(0)
        finally:
            for unit in units:
                self._schedule.unpin(unit)

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """The module's state dict with copies of whole tensors. Collective; one unit is gathered at a time."""
        check_outside("full_state_dict()")
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
        """Bytes of the two largest units, one in use and one that is being gathered; a rank's part of shared ones."""
        largest = sum(sorted((unit.nbytes for unit in self.units), reverse=True)[:2])
        return largest if self._blocks.shared is None else ceil(largest / self._group.size())

    def shard_bytes(self) -> int:
        """Bytes of this rank's shards, padding included."""
        return sum(bucket.shard.nbytes for unit in self.units for bucket in unit.buckets)

    def useful_bytes(self) -> int:
        """Bytes of this rank's shards without padding."""
        return sum(bucket.useful_bytes for unit in self.units for bucket in unit.buckets)


def _copy(value: object) -> object:
    return value.detach().clone() if torch.is_tensor(value) else value
