"""Steps flat parameters bucket by bucket: all buckets in step(), or each one inside the backward pass.

Inside the backward pass, if ringdp's kernels support the step and the backend sums in shared memory, blocks are stepped
while they are in the cache. If devices share memory, one call of the device sums a bucket, steps it, and sends the
parameters to all ranks. Otherwise a bucket is reduced, then stepped. A step that fails between the first bucket and the
last leaves parameters torn: some old, some new. This is remembered, and step() and checkpoints refuse to use them.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.optim import Optimizer

from ringdp.zero import native
from ringdp.zero.flat import FlatParameters
from ringdp.zero.gradients import Gradients, ShardedGradients
from ringdp.zero.in_flight import InFlightGathers, WaitHook
from ringdp.zero.native import DeviceSteps

if TYPE_CHECKING:
    from ringdp.zero.shared_shards import SharedShards


class BucketSteps:
    """Steps flat parameters bucket by bucket. optimizer: the inner one, of the pieces that this rank owns.

    begin: gives the optimizer the settings of the step; called before every bucket, as some classes change them.
    fuses: gradients are float32. on_device: the steps to use if `flat` is on a device. journal: returns what notes the
    step, and the number there of the first piece.
    """

    def __init__(
        self,
        flat: FlatParameters,
        optimizer: Optimizer,
        begin: Callable[[], None],
        *,
        fuses: bool = False,
        on_device: DeviceSteps | None = None,
        journal: Callable[[], tuple[Any, int]] = lambda: (None, 0),
    ) -> None:
        self._flat, self._optimizer, self._begin = flat, optimizer, begin
        self._journal = journal
        self._fuses = fuses
        self._on_device = on_device if on_device is not None and flat.device.type != "cpu" else None
        self._parts: dict[int, tuple[Any, int]] | None = None  # by piece, after prepare()

    def sinks(self) -> list[Any]:
        """Per bucket, a sink that steps it as its gradients arrive; None to step it when it is complete."""
        self._begin()  # which kernel depends on the settings
        if self._why_not_fused():
            self._flat.check_unchanged()  # before the first of them is stepped
            return [None] * len(self._flat)
        self._restore_views()
        if self._on_device is not None:
            return self._on_device.sinks()
        return native.sinks(self._optimizer, self._flat.places(), len(self._flat))

    def describe(self) -> str:
        """How buckets are stepped inside the backward pass, and why not fused. Collective if sinks() is."""
        why_not = self._why_not_fused()
        if why_not:
            return f"a bucket is reduced, then stepped by torch, then gathered: {why_not}"
        where = "by one call of the device" if self._on_device is not None else "while it is in the cache"
        return f"a bucket is reduced and stepped by ringdp's kernel {where}"

    def _why_not_fused(self) -> str:
        if self._on_device is not None:
            return self._on_device.why_not()
        served = self._fuses and native.serves(self._optimizer)
        return "" if served else "ringdp's kernels are for SGD, Adam and AdamW of float32 with plain settings"

    def prepare(self, numbers: Collection[int], buffer: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        """Prepares a step of these pieces, all that have gradients, so that less is done between buckets.

        buffer: makes that of SGD for a piece.
        """
        self._begin()
        if not native.serves(self._optimizer):
            return
        self._restore_views()
        tensors = self._flat.tensors
        parts = native.begin(self._optimizer, {tensors[number] for number in numbers}, buffer)
        self._parts = {number: parts[tensors[number]] for number in numbers if tensors[number] in parts}

    @torch.no_grad()
    def step_bucket(self, bucket: int, gradients: Mapping[int, torch.Tensor], **arguments: Any) -> None:
        """Steps the pieces of a bucket that have gradients. gradients: by piece. arguments: for the class's step()."""
        tensors = self._flat.tensors
        typed = {number: gradient.to(tensors[number].dtype) for number, gradient in gradients.items()}
        if self._parts is not None:
            journal, first = self._journal()
            parts = [(*self._parts[n], gradient, first + n) for n, gradient in typed.items() if n in self._parts]
            native.run(parts, journal)
            return
        self._flat.restore_views(bucket)
        if not gradients:
            return
        self._begin()
        for number, gradient in typed.items():
            tensors[number].grad = gradient
        try:
            native.step(self._optimizer, **arguments)
        finally:
            for number in gradients:
                tensors[number].grad = None

    def step_nothing(self) -> None:
        """On a rank without pieces, so that a class that counts its steps counts on all ranks."""
        self._begin()
        native.step(self._optimizer)

    def _restore_views(self) -> None:
        for bucket in range(len(self._flat)):
            self._flat.restore_views(bucket)


class WholeStep:
    """Steps all buckets in step(): one is gathered while the next is stepped. Remembers a step that fails.

    `flats` and `sources` have corresponding entries; both may grow. `begin`: see BucketSteps. shared: of which this is
    a step, if shards lie in shared memory.
    """

    def __init__(
        self,
        flats: Sequence[FlatParameters],
        sources: Sequence[Gradients],
        optimizer: Optimizer,
        in_flight: InFlightGathers,
        begin: Callable[[], None],
        shared: SharedShards | None = None,
    ) -> None:
        self._flats, self._sources, self._optimizer = flats, sources, optimizer
        self._gathers_in_flight, self._begin, self._shared = in_flight, begin, shared
        self._halfway = False

    def describe(self) -> str:
        """How buckets are stepped."""
        how = "ringdp's kernels" if native.serves(self._optimizer) else "torch"
        return f"gradients are reduced in the backward pass; step() steps bucket by bucket by {how}, and gathers each"

    def run(self, **arguments: Any) -> None:
        """The step. RuntimeError, before anything is changed, if a gradient cannot be stepped or the state is torn."""
        self.check()
        self._gathers_in_flight.wait()
        for flat, source in zip(self._flats, self._sources, strict=True):
            source.check(flat)
        shared = self._shared
        if shared is not None:
            if arguments:
                raise TypeError(
                    f"ZeroOptimizer: step({', '.join(arguments)}=...): shards in shared memory are stepped by ringdp's "
                    'kernels, without arguments: use elastic.survive(shards="copies")'
                )
            self._begin()
            shared.check_settings()
        self._halfway = True
        steps = [self._steps_of(number) for number in range(len(self._flats))]
        gradients: list[list[dict[int, torch.Tensor]]] = []  # [flat][bucket]: by piece
        for flat, source in zip(self._flats, self._sources, strict=True):
            gradients.append([*map(source.by_bucket(flat), range(len(flat)))])
        if not arguments:
            for one, found in zip(steps, gradients, strict=True):
                one.prepare([*itertools.chain.from_iterable(found)], shared.buffer if shared is not None else None)
        if shared is not None:
            shared.begin(self._optimizer.param_groups)
        for number, bucket in self._gathers_in_flight.order(self._flats):
            steps[number].step_bucket(bucket, gradients[number][bucket], **arguments)
            self._gathers_in_flight.start(self._flats[number], bucket)
        if not any(itertools.chain.from_iterable(gradients)):  # a class that counts its steps counts on all ranks
            self._begin()
            native.step(self._optimizer, **arguments)
        self._gathers_in_flight.end_step()
        self._halfway = False

    def _steps_of(self, number: int) -> BucketSteps:
        if self._shared is None:
            return BucketSteps(self._flats[number], self._optimizer, self._begin)
        journal = functools.partial(self._shared.journal, number)
        return BucketSteps(self._flats[number], self._optimizer, self._begin, journal=journal)

    def begin_forward(self) -> None:
        """Nothing: gradients wait for step()."""

    def check(self) -> None:
        """RuntimeError unless parameters and state are those of a complete step."""
        if self._halfway:
            raise RuntimeError(
                "ZeroOptimizer: the parameters are torn: an earlier step() failed halfway. Load a checkpoint into "
                "the model and the optimizer"
            )

    def before_load(self) -> None:
        """Nothing: no step runs outside run()."""

    def after_load(self) -> None:
        """Call when a whole state has been loaded."""
        self._halfway = False


class Stepping(Protocol):
    """How StepsInBackward steps buckets; see BucketSteps."""

    def sinks(self) -> list[Any]:
        """Per bucket, a sink that steps it as it is reduced, or None."""

    def step_bucket(self, bucket: int, gradients: Mapping[int, torch.Tensor]) -> None:
        """Steps a bucket whose sink is None."""

    def describe(self) -> str:
        """How buckets are stepped."""

    def step_nothing(self) -> None:
        """On a rank without pieces, counts the step."""


class StepsInBackward:
    """Steps inside the backward pass of one reducer."""

    def __init__(
        self,
        flat: FlatParameters,
        source: ShardedGradients,
        reducer: Any,
        stepping: Stepping,
        in_flight: InFlightGathers,
        module: torch.nn.Module,
    ) -> None:
        self._flat, self._source, self._reducer = flat, source, reducer
        self._stepping, self._gathers_in_flight = stepping, in_flight
        self._buckets = sum(flat.layout.padded(bucket) > 0 for bucket in range(len(flat)))
        self._begun = False
        self._stepped = 0
        self._sinks: list[Any] = []
        # Weakly: a cycle through the reducer would keep an optimizer that was dropped, and its wrapper.
        begin, take = weakref.WeakMethod(self._begin), weakref.WeakMethod(self._take)
        reducer.set_on_shard(lambda: begin()(), lambda bucket, part: take()(bucket, part))
        before_load = WaitHook(_call, weakref.WeakMethod(self.before_load))
        hooks = [part.register_load_state_dict_pre_hook(before_load) for part in module.modules()]
        weakref.finalize(self, _undo, reducer, hooks).atexit = False

    @property
    def has_begun(self) -> bool:
        """Whether a pass has stepped buckets since the last step()."""
        return self._begun

    def describe(self) -> str:
        """See Stepping."""
        return self._stepping.describe()

    def run(self, **arguments: Any) -> None:
        """Ends the step that the pass has made. RuntimeError if the pass did not step all buckets."""
        if arguments:
            raise TypeError(
                f"ZeroOptimizer: step({', '.join(arguments)}=...): overlap_with_ddp=True has stepped already"
            )
        if self._stepped < self._buckets:
            self.check()
        self._source.check(self._flat)
        self._check_gradients()
        if not self._flat.pieces:
            self._stepping.step_nothing()
        self._gathers_in_flight.end_step()
        self._end()

    def begin_forward(self) -> None:
        """RuntimeError if step() was not called after the last pass, or zero_grad() after the last step()."""
        self.check()
        if torch.is_grad_enabled() and any(self._source.kept()):
            raise RuntimeError(
                "ZeroOptimizer: the gradients of the last step would add up with those of this pass, and "
                "overlap_with_ddp=True keeps none: call zero_grad() after each step(), and add up micro-batches under "
                "no_sync() before the last one"
            )

    def _check_gradients(self) -> None:
        """RuntimeError unless this step uses all gradients of exactly one pass."""
        used, kept = self._reducer.used(), self._source.kept()
        if self._begun and not (any(used) and used == kept):
            raise RuntimeError(
                "ZeroOptimizer: gradients were dropped after the backward pass, which has stepped them already "
                "(overlap_with_ddp=True): call zero_grad() after step(), and skip no parameters with overlap_with_ddp"
            )
        if not self._begun and any(kept):
            raise RuntimeError(
                "ZeroOptimizer: a second step() with the gradients of the last pass, which overlap_with_ddp=True has "
                "not kept: call zero_grad(), and step() once after each backward pass"
            )

    def check(self) -> None:
        """RuntimeError unless parameters and state are those of a complete step."""
        if not self._begun:
            return
        if self._stepped == self._buckets:
            raise RuntimeError(
                "ZeroOptimizer: the last backward pass has stepped the parameters, and optimizer.step() has not been "
                "called since; it waits until all ranks have them. Call it after every synchronised backward pass"
            )
        raise RuntimeError(
            f"ZeroOptimizer: the parameters are torn: the last backward pass ended when {self._stepped} of "
            f"{self._buckets} buckets had been stepped here. Load a checkpoint into the model and the optimizer"
        )

    def before_load(self) -> None:
        """Call before values are loaded: stops a failed pass, which may still be stepping a bucket."""
        if self._begun and self._stepped < self._buckets:
            self._reducer.reset()

    def after_load(self) -> None:
        """Call when a whole state has been loaded."""
        self._reducer.reset()  # discards an incomplete pass
        self._end()
        self._gathers_in_flight.forget()

    def _end(self) -> None:
        self._begun, self._stepped = False, 0
        self._sinks = []  # they hold the state

    def _begin(self) -> list[Any]:
        """Called by the reducer before it launches the first bucket of a pass."""
        self.check()
        self._gathers_in_flight.wait()
        self._sinks = self._stepping.sinks()
        self._begun = True
        return self._sinks

    def _take(self, bucket: int, part: torch.Tensor) -> None:
        """Called by the reducer for each bucket, in order."""
        sink = self._sinks[bucket]
        if sink is None:
            pieces = {number: part[self._flat.pieces[number].place] for number in self._flat.in_bucket(bucket)}
            self._stepping.step_bucket(bucket, pieces)
        if sink is not None and sink.on_device:
            self._flat.round_to_parameters(bucket)
            self._gathers_in_flight.follow(sink)
        else:
            self._gathers_in_flight.start(self._flat, bucket)
        self._stepped += 1


def _call(method: weakref.WeakMethod[Any]) -> None:
    found = method()
    if found is not None:
        found()


def _undo(reducer: Any, hooks: Sequence[Any]) -> None:
    reducer.keep_shards()
    for hook in hooks:
        hook.remove()
