"""`ringdp.ZeroOptimizer`: torch's ZeroRedundancyOptimizer with equal shards and the unsharded optimizer's bits."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from ringdp.zero import groups, registry, state_hooks
from ringdp.zero.arguments import (
    check_averaged,
    check_choices,
    check_gather,
    check_group,
    check_leaves,
    check_overlap,
    check_parameters,
    group_for,
)
from ringdp.zero.flat import FlatParameters, bucketed
from ringdp.zero.gradients import Gradients, ShardedGradients, WholeGradients
from ringdp.zero.groups import PieceState
from ringdp.zero.in_flight import GathersInForward, InFlightGathers
from ringdp.zero.memory import Memory, memory_of
from ringdp.zero.native import DeviceSteps
from ringdp.zero.regroup import Settings
from ringdp.zero.regrouped import Regrouped
from ringdp.zero.shared_shards import SharedShards
from ringdp.zero.state import consolidated, first_state, numbered, restored
from ringdp.zero.steps import BucketSteps, StepsInBackward, WholeStep
from ringdp.zero.unit_storage import ShardedParameters

if TYPE_CHECKING:
    from ringdp.checkpoint import Holder

_BUCKET_BYTES = 25 << 20


class ZeroOptimizer(Regrouped, Optimizer):
    """Each rank holds the optimizer state of 1/N of the parameters' elements, steps these, and gathers the rest.

    params, optimizer_class, process_group, **defaults: as for torch's ZeroRedundancyOptimizer. The class must be
    element-wise; others are refused by name. SGD, Adam and AdamW of float32 parameters on the CPU run in C++ with the
    bits of torch's single-tensor step. `fused=True` selects ringdp's fastest step, whose bits do not depend on the
    number of ranks either: on the CPU, and for Adam and AdamW with overlap_with_ddp on devices whose ranks share
    memory. Everything else is stepped by torch, piece by piece: a piece is the part of one parameter that this rank
    owns. `describe()` says which step is used.
    parameters_as_bucket_view: accepted; parameters always are views of flat buckets.
    overlap_with_ddp: from stage 2 on, steps bucket by bucket inside the backward pass, with the settings that the param
        groups have when it begins; step() waits for the last gathers. Every synchronised pass is a step, so accumulate
        under no_sync(). Clipping and loss scaling, which need all gradients first, are refused; so is shard_grads().
    master_dtype: torch.float32 keeps and steps a float32 copy of this rank's part of 16-bit parameters.
    gather: "step" waits in step() until this rank has all parts: a bucket is gathered while the next is stepped.
        "forward" returns while buckets are being gathered: the next forward pass waits module by module. Reading a
        parameter before then raises an error that names it, unless `wait()` has been called. For stages 1 and 2.

    Over a `ringdp.DistributedDataParallel` it works at that wrapper's zero_stage; over torch's, or no wrapper at all,
    it is stage 1. Collective: the constructor, step, add_param_group, consolidate_state_dict.
    """

    steps_shards = True  # so that registry.py does not refuse it

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[Optimizer],
        process_group: dist.ProcessGroup | None = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        *,
        master_dtype: torch.dtype | None = None,
        gather: Literal["step", "forward"] = "step",
        **defaults: Any,
    ) -> None:
        """See the class. ValueError, TypeError or NotImplementedError names what is refused; nothing is changed."""
        del parameters_as_bucket_view
        check_choices(optimizer_class, master_dtype)
        # A throw-away optimizer checks the defaults and completes them.
        complete = optimizer_class([torch.nn.Parameter(torch.empty(0))], **defaults).defaults
        self._ready = False
        super().__init__(params, complete)
        self._class, self._arguments, self._master_dtype = optimizer_class, defaults, master_dtype
        self._wrapper = registry.one_wrapper_of(self._parameters())
        self.process_group = group_for(process_group, self._wrapper)
        self._flats: list[FlatParameters] = []
        self._sources: list[Gradients] = []
        self._consolidated: dict[str, Any] | None = None
        self._unstepped: dict[int, dict[str, Any]] = {}  # loaded state of parameters that no rank steps
        self._init_regroups()
        self._begun_with: list[groups.Group] | None = None  # settings, while a backward pass has stepped with them
        check_overlap(overlap_with_ddp, self._wrapper)
        check_gather(gather, self._wrapper)
        check_leaves(overlap_with_ddp, gather, self._wrapper)
        self._start()
        self._gathers_in_flight = GathersInForward(self._wrapper.module) if gather == "forward" else InFlightGathers()
        self._stepping = self._steps_in_backward() if overlap_with_ddp else self._whole_step()
        self._ready = True

    @property
    def stage(self) -> int:
        """The wrapper's zero_stage; 1 without a ringdp wrapper."""
        return self._wrapper.zero_stage if self._wrapper is not None else 1

    @property
    def steps_in_backward(self) -> bool:
        """Whether parameters change while the backward pass runs: overlap_with_ddp."""
        return isinstance(self._stepping, StepsInBackward)

    @property
    def optim(self) -> Optimizer:
        """The optimizer of `optimizer_class` that steps this rank's pieces; the name is torch's."""
        return self._optimizer

    @property
    def state(self) -> PieceState:
        """The state of the pieces that this rank steps. Changes, and a new value, take effect in the next step."""
        return PieceState(self._optimizer, self._why_fixed())

    @state.setter
    def state(self, values: Mapping[Any, Any]) -> None:
        if self._ready:  # torch's class sets an empty one first
            self.state.take(values)
            self._consolidated = None

    def describe(self) -> str:
        """How buckets are stepped. Before the first pass it is collective if a device steps them (overlap_with_ddp)."""
        return self._stepping.describe()

    @property
    def exposed(self) -> float:
        """Seconds that this rank has waited so far for other ranks' parameters, in step() or in forward passes."""
        return self._gathers_in_flight.exposed

    def wait(self) -> None:
        """With gather="forward": waits until all parameters can be read."""
        self._gathers_in_flight.wait()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None, **kwargs: Any) -> float | None:
        """Steps this rank's part and sends it to all ranks, bucket by bucket. kwargs: of `optimizer_class.step`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_wrapper()
        if self._next is not None:
            self._next.check()
        if self._begun_with is not None:
            groups.check_settings(self._begun_with, self.param_groups)
        self._stepping.run(**kwargs)
        self._begun_with = None
        if self._next is not None:
            self._next.run(**kwargs)
        if self._later is not None:
            self._later.hide()
        groups.copy_settings(self._optimizer.param_groups, self.param_groups)  # some classes change settings in step()
        return loss

    def __getstate__(self) -> dict[str, Any]:
        raise NotImplementedError(
            "ZeroOptimizer: its pieces belong to this rank's process, so it cannot be copied or pickled: make one for "
            "the other model, and hand the state over by consolidate_state_dict() and load_state_dict()"
        )

    def join_hook(self, **_: Any) -> None:
        """NotImplementedError: torch's Join is not supported."""
        raise NotImplementedError(
            "ZeroOptimizer: torch's Join shadows the steps of ranks without inputs, but every rank steps its part: "
            "such ranks call ddp.backward(None, weight=0) and optimizer.step() instead"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; from stage 2 on it also drops this rank's shards of gradients, or zeroes them."""
        if set_to_none or self.stage < 2:
            super().zero_grad(set_to_none)
        else:
            self.check_keeps_gradients("zero_grad(set_to_none=False)")
            with self._wrapper.reducer.stand_ins.hidden():
                super().zero_grad(set_to_none=False)
        for source in self._sources:
            source.drop(set_to_none)
        if self._next is not None:
            self._next.drop()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. Collective."""
        if not self._ready:
            super().add_param_group(param_group)
            return
        self._check_not_fixed("add_param_group()")
        super().add_param_group(check_group(param_group, self._wrapper))
        self._consolidated = None
        group = self.param_groups[-1]
        if self.stage < 2:
            self._make_flat_buckets(group["params"])
        self._optimizer.add_param_group(groups.of_pieces(group, self._flats))
        self._members.append(list(group["params"]))

    def shard_grads(self) -> list[torch.Tensor]:
        """Gradients of the pieces that this rank owns, as 1-D views to clip, scale or change in place.

        Valid until the next pass or zero_grad(). RuntimeError with overlap_with_ddp, which keeps no gradients.
        """
        self.check_keeps_gradients("shard_grads()")
        found: list[torch.Tensor] = []
        for flat, source in zip(self._flats, self._sources, strict=True):
            for gradients in map(source.by_bucket(flat), range(len(flat))):
                found.extend(gradients.values())
        return found

    def check_keeps_gradients(self, wanted_by: str) -> None:
        """RuntimeError with overlap_with_ddp, which keeps no gradients. `wanted_by`: named in the message."""
        if self._next is not None and self._next.has_gradients():
            raise RuntimeError(
                f"ZeroOptimizer: {wanted_by} may change this rank's gradients, and another rank has or reads them by "
                "now, and would not know: call it before share_gradients(); under elastic.survive use clip="
            )
        if self.steps_in_backward:
            raise RuntimeError(
                f"ZeroOptimizer: {wanted_by} needs the gradients of all parameters before the step, and with "
                "overlap_with_ddp=True each is stepped inside the backward pass: leave that out"
            )
        leaf_steps = self._wrapper.reducer.leaf_steps if self._wrapper is not None else None
        if leaf_steps is not None:
            leaf_steps.check_averaged(wanted_by)

    def begin_forward(self) -> None:
        """Called before the wrapper's forward pass, from stage 2 on. RuntimeError if the last step is incomplete."""
        for flat in self._flats:
            flat.check_unchanged()
        self._stepping.begin_forward()

    def check_whole(self) -> None:
        """RuntimeError unless the latest step is complete on this rank; waits for gathers in flight."""
        self._stepping.check()
        if self._later is not None and not self._later.is_complete():
            raise RuntimeError("ZeroOptimizer: parameters are not whole since the last step(): call gather() first")
        self.wait()

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collective: makes `state_dict()` of rank `to` that of `optimizer_class` on whole parameters."""
        self.check_whole()
        self._pass_settings_on()
        state = consolidated(self._flats, self._optimizer, self._indices(), self.process_group, to)
        if state is not None:
            made = functools.partial(self._class, **self._arguments)
            first = first_state(made, self.param_groups, self._without_pieces(), self._indices())
            state = dict(sorted({**first, **self._unstepped, **state}.items()))
            self._consolidated = {"state": state, "param_groups": groups.numbered(self.param_groups)}

    def state_dict(self) -> dict[str, Any]:
        """What `consolidate_state_dict` has collected on this rank. RuntimeError unless called since the last step."""
        if self._consolidated is None:
            raise RuntimeError(
                "ZeroOptimizer: the state has not been consolidated on this rank since the last step: call "
                "consolidate_state_dict(to=...) on all ranks first, and state_dict() on rank `to`"
            )
        return state_hooks.saved(self, self._consolidated)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a whole state dict, of this class or of `optimizer_class`; each rank takes its part. Not collective.

        ValueError if groups or shapes differ, before anything is changed.
        """
        self._check_not_fixed("load_state_dict()")
        state_hooks.load(self, state_dict, self._load)

    def _load(self, state_dict: dict[str, Any]) -> None:
        state = numbered(state_dict, self.param_groups)
        self._stepping.before_load()
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        self._after_load()
        whole = {number for parameter, number in self._indices().items() if parameter in self._without_pieces()}
        self._unstepped.update((number, copy.deepcopy(entry)) for number, entry in state.items() if number in whole)
        restored(state, self._flats, self._optimizer, self._indices())

    def holder(self, names: Mapping[torch.Tensor, str]) -> Holder:
        """For ringdp.checkpoint: this rank's pieces of parameters, fp32 copies and state; adopt() is collective."""
        # torch.distributed.checkpoint takes long to import; callers have imported it already.
        from ringdp.zero.stored import stored

        self._stepping.before_load()
        self.wait()
        can_load = functools.partial(self._check_not_fixed, "loading a checkpoint")
        calls = {"check_whole": self.check_whole, "before_load": can_load, "taken_over": self._after_load}
        return stored(self._flats, self._frozen(), self._optimizer, self.param_groups, names, **calls)

    def kind(self) -> str:
        """What steps pieces: the class, and the dtype of copies."""
        return f"{self._class.__name__} of pieces, master_dtype={self._master_dtype}"

    def settings(self) -> Settings:
        """The part of the state that is no shard; with state_dict() and load_state_dict()."""
        return Settings(self, self._unstepped)

    def memory(self) -> Memory:
        """Bytes on this rank by kind, with padding as a kind of its own. Print it."""
        memory = memory_of(self._flats, self._optimizer, self._wrapper)
        if self._next is None:
            return memory
        return replace(memory, copies=self._next.bytes(with_values=self.stage == 3))

    def _start(self) -> None:
        parameters = self._parameters()
        check_parameters(parameters, self._wrapper)
        if self._wrapper is not None:
            self._wrapper.take_optimizer(self)
        if self.stage < 2:
            self._make_flat_buckets(parameters)
        else:
            self._use_wrapper_buckets(parameters)
        self._optimizer = self._make_inner(self._flats)
        self._members = [list(group["params"]) for group in self.param_groups]

    def _frozen(self) -> list[FlatParameters]:
        """Parameters in shards that no optimizer steps."""
        sharded = self._wrapper.sharded_model if self._wrapper is not None else None
        return [ShardedParameters(sharded.frozen, self.process_group)] if sharded is not None and sharded.frozen else []

    def _make_inner(self, flats: list[FlatParameters]) -> Any:
        made: Any = self._class([groups.of_pieces(group, flats) for group in self.param_groups], **self._arguments)
        made.steps_shards = True
        return made

    def _parameters(self) -> list[torch.Tensor]:
        return list(chain.from_iterable(group["params"] for group in self.param_groups))

    def _indices(self) -> dict[torch.Tensor, int]:
        """A parameter's number in state dicts."""
        return {parameter: index for index, parameter in enumerate(self._parameters())}

    def _without_pieces(self) -> set[torch.Tensor]:
        """Parameters that no rank steps: frozen ones from stage 2 on, and those without elements."""
        stepped = {parameter for flat in self._flats for parameter in flat.parameters if parameter.numel()}
        return set(self._parameters()) - stepped

    def _make_flat_buckets(self, parameters: list[torch.Tensor]) -> None:
        layout = bucketed(parameters, _BUCKET_BYTES, self.process_group.size())
        self._flats.append(FlatParameters(parameters, layout, self.process_group, self._master_dtype))
        self._sources.append(WholeGradients())

    def _use_wrapper_buckets(self, parameters: list[torch.Tensor]) -> None:
        reducer = self._wrapper.reducer
        group, dtype = self.process_group, self._master_dtype
        sharded = self._wrapper.sharded_model
        if sharded is not None:
            self._flats.append(ShardedParameters(sharded.trainable, group, dtype))
        else:
            self._flats.append(FlatParameters(reducer.parameters, self._wrapper.shard_layout(), group, dtype))
        self._sources.append(ShardedGradients(reducer))

    def _check_wrapper(self) -> None:
        first = next((p for p in self._parameters() if p.requires_grad), None)
        wrapper = registry.wrapper_of(first) if first is not None else self._wrapper
        if wrapper is not None and wrapper is not self._wrapper:
            raise RuntimeError(
                f"ZeroOptimizer: the model was wrapped with zero_stage={wrapper.zero_stage} after this optimizer was "
                "made, so it does not know where the gradients are: make it from ddp.parameters() after wrapping"
            )
        if self._wrapper is not None and self._wrapper.process_group is not self.process_group:
            raise RuntimeError(
                "ZeroOptimizer: the wrapper is in another group since its regroup(): call optimizer.regroup(group), too"
            )
        groups.check_members(self.param_groups, self._members)
        check_averaged(self._parameters(), self._wrapper)
        self._check_unpinned()

    def _check_unpinned(self) -> None:
        if self.stage == 3:
            self._wrapper.sharded_model.check_unpinned("a step")

    def _after_load(self) -> None:
        """Called when groups and state have been loaded."""
        self._consolidated = self._begun_with = None
        self._unstepped.clear()
        self._pass_settings_on()
        self._stepping.after_load()

    def _pass_settings_on(self) -> None:
        """Passes settings to the inner optimizer: schedulers and users change the groups of this one."""
        groups.check_members(self.param_groups, self._members)
        groups.copy_settings(self.param_groups, self._optimizer.param_groups)
        if self._next is not None:
            self._next.take_settings(self.param_groups)

    def _check_not_fixed(self, what: str) -> None:
        if self._why_fixed():
            raise RuntimeError(f"ZeroOptimizer: {what} {self._why_fixed()}")

    def _steps_in_backward(self) -> StepsInBackward:
        (flat,), (source,) = self._flats, self._sources
        reducer = self._wrapper.reducer
        in_float32 = all(facts["dtype"] == "Float" for facts in reducer.buckets())
        on_device = DeviceSteps(flat, self._optimizer, weakref.ref(self), in_float32=in_float32)
        steps = BucketSteps(flat, self._optimizer, self._weak_begin(), fuses=in_float32, on_device=on_device)
        return StepsInBackward(flat, source, reducer, steps, self._gathers_in_flight, self._wrapper.module)

    def _whole_step(self) -> WholeStep:
        begin, shared = self._weak_begin(), self._next if isinstance(self._next, SharedShards) else None
        return WholeStep(self._flats, self._sources, self._optimizer, self._gathers_in_flight, begin, shared)

    def _weak_begin(self) -> Callable[[], None]:
        """Avoids a reference cycle: a dropped optimizer is freed at once, so its wrapper can take another one."""
        begin = weakref.WeakMethod(self._begin_step)
        return lambda: begin()()

    def _begin_step(self) -> None:
        self._check_unpinned()
        if self.steps_in_backward and not self._stepping.has_begun:
            self._begun_with = groups.kept_settings(self.param_groups)
        self._consolidated = None
        self._pass_settings_on()
