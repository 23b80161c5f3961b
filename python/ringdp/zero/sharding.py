"""The part of the wrapper that shards: ZeRO stages, shards, and memory."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo
from torch.distributed.utils import _sync_module_states

from ringdp.ddp.agreement import check_models
from ringdp.ddp.settings import forget
from ringdp.elastic.leaf import check_outside
from ringdp.zero import registry
from ringdp.zero.memory import Memory, memory_of
from ringdp.zero.prefetch import Gathered
from ringdp.zero.refusals import Init, check_module
from ringdp.zero.sharded_model import ShardedModel
from ringdp.zero.units import is_sharded, units_of

_SYNC_BYTES = 250 << 20  # torch's


class Sharding:
    """A mixin of DistributedDataParallel, which provides module, reducer, process_group and _modes."""

    _optimizer: weakref.ref[Any] | None = None
    sharded_model: ShardedModel | None = None  # at stage 3

    @property
    def zero_stage(self) -> int:
        """0: nothing is sharded; 1: the optimizer's state; 2: gradients, too; 3: and parameters."""
        return self._modes.zero_stage

    @property
    def compresses(self) -> bool:
        """Whether gradients travel as codes."""
        return self._modes.compress is not None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; from stage 2 on it also drops this rank's shards of gradients, or zeroes them.

        `module.zero_grad()` of the inner module does so before a forward pass, but not between that and its backward.
        """
        if self.zero_stage < 2:
            super().zero_grad(set_to_none)
        elif set_to_none:
            super().zero_grad()
            self.reducer.drop_shards()
        else:
            self.check_keeps_gradients("zero_grad(set_to_none=False)")
            with self.reducer.stand_ins.hidden():
                super().zero_grad(set_to_none=False)
            self.reducer.zero_shards()

    def abandon_backward(self) -> None:
        """After a backward pass that ended with an exception on all ranks: discards it, and drops all gradients.

        Training can go on with the next forward pass. Collective. RuntimeError if the pass has already stepped
        parameters (overlap_with_ddp).
        """
        self._refuse_with_compression(
            "abandon_backward()", "ranks may have sent unlike codes: load a checkpoint into a new wrapper"
        )
        optimizer = self._live_optimizer()
        if optimizer is not None:
            optimizer.check_whole()
        if self.reducer.leaf_steps is not None:
            self.reducer.leaf_steps.abandon_step()
        dist.barrier(group=self.process_group)  # the pass's collectives are over on every rank
        self.reducer.reset()
        forget(self.reducer)
        self.zero_grad()

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """The module's state dict with whole tensors that share no memory with the model. Collective at stage 3."""
        if self.sharded_model is not None:
            return self.sharded_model.full_state_dict()
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}

    def memory(self) -> Memory:
        """Bytes on this rank by kind, with the state of the wrapper's `ZeroOptimizer` if there is one. Print it."""
        optimizer = self._live_optimizer()
        return memory_of([], None, self) if optimizer is None else optimizer.memory()

    def gathers(self) -> Gathered:
        """The units that the latest passes gathered, and seconds of waiting. Print it. ValueError below stage 3."""
        return self._sharded("gathers").gathers()

    def gathered(self, part: torch.nn.Module | None = None, writes: bool = False) -> AbstractContextManager[None]:
        """Inside, the parameters of `part` (default: of the model) are whole and can be read. Collective.

        Changes are lost, unless `writes=True`: then all ranks take the values of rank 0. ValueError below stage 3.
        """
        return self._sharded("gathered").gathered(part, writes=writes)

    def gathered_bytes(self) -> int:
        """Bytes of gathered units at stage 3: the two largest, one in use and one being gathered."""
        return self.sharded_model.gathered_bytes() if self.sharded_model is not None else 0

    def take_optimizer(self, optimizer: Any) -> None:
        """Registers the `ZeroOptimizer` of this model. From stage 2 on there can be only one (ValueError)."""
        if self.zero_stage >= 2 and self._live_optimizer() is not None:
            raise ValueError(
                f"ZeroOptimizer: this wrapper (zero_stage={self.zero_stage}) has one already: put all parameters into "
                "one ZeroOptimizer with several param groups"
            )
        self._optimizer = weakref.ref(optimizer)

    def check_keeps_gradients(self, wanted_by: str) -> None:
        """RuntimeError if the optimizer steps inside the backward pass, which keeps no gradients."""
        if self.reducer.leaf_steps is not None:
            self.reducer.leaf_steps.check_averaged(wanted_by)
        optimizer = self._live_optimizer()
        if optimizer is not None:
            optimizer.check_keeps_gradients(wanted_by)

    def averaged_parameters(self) -> list[torch.Tensor]:
        """Parameters whose gradients are averaged: the reducer's, and those of delay_all_reduce_named_params."""
        return [*self.reducer.parameters, *self._delay_all_reduce_params]

    def shard_layout(self) -> Any:
        """Which elements of which gradient each rank owns, from stage 2 on."""
        return self.reducer.shard_layout

    def bucket_bytes(self) -> list[int]:
        """Bytes of each bucket while it is filled and reduced, from stage 2 on."""
        layout = self.shard_layout()
        return [layout.padded(bucket) * dtype.itemsize for bucket, dtype in enumerate(self.bucket_dtypes())]

    def bucket_dtypes(self) -> list[torch.dtype]:
        """The dtype of each bucket's gradients, from stage 2 on; equal on all ranks."""
        wide, parameters = self._modes.grad_dtype, self.reducer.parameters
        return [wide or parameters[members[0]].dtype for members in self.reducer.layout()]

    def _update_process_group(self, new_process_group: dist.ProcessGroup) -> None:
        """As torch's; NotImplementedError from stage 1 on."""
        if self.zero_stage:
            raise NotImplementedError(
                f"DistributedDataParallel._update_process_group: with zero_stage={self.zero_stage} the shards are cut "
                "for the ranks of the group: use regroup(), or save with ringdp.checkpoint, and load into a wrapper "
                "over the new group"
            )
        self._refuse_with_compression("another group", "a rank's residuals are of this one")
        self._modes.check_group(new_process_group, self.device)
        if self._modes.micro_batches is not None:
            self.reducer.leaf_steps.leave_group()
        super()._update_process_group(new_process_group)

    def regroup(self, group: dist.ProcessGroup) -> None:
        """Goes on in another group, whatever the number of its ranks; micro-batches of this rank stay. Collective.

        For micro_batches=M, between micro-batches. Every rank of `group` calls it, also those that were in another
        group or in none. No values are sent: their parameters, buffers and optimizers must be equal, but for what a
        ZeroOptimizer has in shards, whose own regroup() follows. ValueError without micro_batches, RuntimeError at
        zero_stage=3 without a ZeroOptimizer, and with a mean in shards that was not used.
        """
        if self._modes.micro_batches is None:
            raise ValueError("DistributedDataParallel.regroup: it is for micro_batches=M")
        if self.zero_stage == 3 and self._live_optimizer() is None:
            raise RuntimeError(
                "DistributedDataParallel.regroup: zero_stage=3 without a ZeroOptimizer, whose regroup() cuts the shards"
            )
        if self.zero_stage >= 2 and self.reducer.leaf_steps.has_unused_mean():
            raise RuntimeError(
                "DistributedDataParallel.regroup: with a mean that no optimizer has used in shards, which would be "
                "lost: call optimizer.step() or zero_grad() before"
            )
        check_outside("the group is to change")
        if self.reducer.leaf_steps.holds_sums_of_others():
            raise NotImplementedError(
                "DistributedDataParallel.regroup: shard_leaves=True in the middle of a step, whose sums lie on the "
                "ranks of the old group: end the step, or leave shard_leaves out"
            )
        self._modes.check_group(group, self.device)
        self.reducer.leaf_steps.regroup()
        self.process_group = group
        self.reducer._update_process_group(group)
        self.reducer.leaf_steps.make_group_of_sums()

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.zero_stage >= 2:
            self._begin_pass()
        return super()._pre_forward(*inputs, **kwargs)

    @_disable_dynamo
    def _begin_pass(self) -> None:
        optimizer = self._live_optimizer()
        if optimizer is not None:
            optimizer.begin_forward()
        if torch.is_grad_enabled():
            self.reducer.begin_pass()

    def _live_optimizer(self) -> Any | None:
        return self._optimizer() if self._optimizer is not None else None

    def _register_shards(self) -> None:
        if self.zero_stage >= 1:
            delayed = {id(parameter) for parameter in self._delay_all_reduce_params}  # torch counts them as ignored
            # A parameter with several names is averaged unless all of them are ignored.
            named = self.module.named_parameters(remove_duplicate=False)
            registry.add(self, [p for n, p in named if n not in self.parameters_to_ignore or id(p) in delayed])

    def _sharded(self, method: str) -> ShardedModel:
        if self.sharded_model is None:
            raise ValueError(
                f"DistributedDataParallel.{method}: with zero_stage={self.zero_stage} parameters are not in shards: "
                "it is for zero_stage=3"
            )
        return self.sharded_model

    def _shard_parameters(
        self,
        module: torch.nn.Module,
        arguments: dict[str, Any],
        settings: Sequence[str],
        units: Sequence[Any] | None,
        init: Init | None,
    ) -> None:
        """Before the constructor of torch's class. `arguments`: all of its arguments."""
        group = arguments["process_group"]
        if group is None:
            mesh = arguments.get("device_mesh")
            group = mesh.get_group(mesh_dim=0) if mesh is not None else dist.group.WORLD
        ignored = frozenset(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        check_module(module, init, ignored)
        plan = units_of(module, units, ignored)
        named = {n: p for n, p in module.named_parameters() if n not in ignored and is_sharded(p)}
        real = {n: p for n, p in named.items() if not p.is_meta}
        device = _device_for(real, arguments["device_ids"])
        described = [*settings, *(f"unit {unit}" for unit in plan)]
        values_stay = not arguments["init_sync"] and len(real) == len(named)
        self._modes.check_group(group, device)
        check_models(group, device, list(named), list(named.values()), described, compare_values=values_stay)
        root = 0 if arguments["init_sync"] else None
        prefetch = self._modes.prefetch
        replaced = [parameter for parameter in module.parameters() if parameter.is_meta]
        self.sharded_model = ShardedModel(module, plan, group, device, root=root, init=init, prefetch=prefetch)
        registry.add(self, replaced)  # an optimizer that was made before has them
        if arguments["init_sync"]:
            whole = ignored | self.sharded_model.sharded_names
            buffers = (
                arguments.get("broadcast_buffers") is not False or arguments.get("forward_sync_buffers") is not None
            )
            _sync_module_states(module, group, _SYNC_BYTES, 0, whole, buffers)


def _device_for(real: dict[str, torch.Tensor], device_ids: Sequence[Any] | None) -> torch.device:
    """The device of shards."""
    if real:
        return next(iter(real.values())).device
    if not device_ids:
        return torch.device("cpu")
    return torch.device(torch.accelerator.current_accelerator().type, torch.device(device_ids[0]).index)
