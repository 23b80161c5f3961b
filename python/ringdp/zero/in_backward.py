"""Steps inside the backward pass: one sweep reduces a bucket, steps it, and writes its parameters.

Where the kernels have the step and the backend sums in shared memory, blocks are stepped while they are in the cache;
where devices share memory, one call of theirs sums, steps and gives everybody the parameters; elsewhere a bucket is
reduced, then stepped. Between the first bucket and the last one parameters are neither old nor
new. Whatever ends there leaves them torn, which is remembered: neither step() nor a checkpoint takes them for a state
of the training.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from ringdp.zero.arrivals import Arrivals, WaitHook
from ringdp.zero.flat import FlatParameters
from ringdp.zero.gradients import ShardedGradients


class Stepping(Protocol):
    """What an optimizer does in a pass."""

    def sinks(self) -> list[Any]:
        """For each bucket, what steps it as it is reduced, or None."""

    def step_bucket(self, bucket: int, gradients: Mapping[int, torch.Tensor]) -> None:
        """Where there was no sink."""

    def describe(self) -> str:
        """How buckets are stepped."""

    def step_nothing(self) -> None:
        """Of a rank without pieces: a class that counts its steps counts on all ranks."""


class StepsInBackward:
    """Of one reducer."""

    def __init__(
        self,
        flat: FlatParameters,
        source: ShardedGradients,
        reducer: Any,
        stepping: Stepping,
        arrivals: Arrivals,
        module: torch.nn.Module,
    ) -> None:
        self._flat, self._source, self._reducer = flat, source, reducer
        self._stepping, self._arrivals = stepping, arrivals
        self._buckets = sum(flat.layout.padded(bucket) > 0 for bucket in range(len(flat)))
        self._begun = False
        self._stepped = 0
        self._sinks: list[Any] = []
        # Weakly: a cycle through the reducer would keep an optimizer that was dropped, and its wrapper.
        begin, take = weakref.WeakMethod(self._begin), weakref.WeakMethod(self._take)
        reducer.set_on_shard(lambda: begin()(), lambda bucket, part: take()(bucket, part))
        quiet = WaitHook(_call, weakref.WeakMethod(self.quiet))
        hooks = [part.register_load_state_dict_pre_hook(quiet) for part in module.modules()]
        weakref.finalize(self, _undo, reducer, hooks).atexit = False

    def describe(self) -> str:
        """See Stepping."""
        return self._stepping.describe()

    def run(self, **arguments: Any) -> None:
        """Ends the step that the pass has made. RuntimeError when the pass ended on the way."""
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
        self._arrivals.end_step()
        self._end()

    def begin_forward(self) -> None:
        """RuntimeError when the last pass has stepped what this one reads, or left gradients that this one adds to."""
        self.check()
        if torch.is_grad_enabled() and any(self._source.kept()):
            raise RuntimeError(
                "ZeroOptimizer: the gradients of the last step would add up with those of this pass, and "
                "overlap_with_ddp=True keeps none: call zero_grad() after each step(), and add up micro-batches under "
                "no_sync() before the last one"
            )

    def _check_gradients(self) -> None:
        """RuntimeError unless this step is of all gradients of one pass."""
        used, kept = self._reducer.used(), self._source.kept()
        if self._begun and not (any(used) and used == kept):
            raise RuntimeError(
                "ZeroOptimizer: gradients were dropped after the backward pass, which has stepped them already "
                "(overlap_with_ddp=True): call zero_grad() after step(), and skip no parameters with overlap_with_ddp"
            )
        if not self._begun and any(kept):
            raise RuntimeError(
                "ZeroOptimizer: step() again with the gradients of the last pass, which overlap_with_ddp=True has not "
                "kept: call zero_grad(), and step() once after each backward pass"
            )

    def check(self) -> None:
        """RuntimeError unless parameters and state are those of a complete step."""
        if not self._begun:
            return
        if self._stepped == self._buckets:
            raise RuntimeError(
                "ZeroOptimizer: the last backward pass has stepped the parameters, and optimizer.step() has not been "
                "called since, which waits until all ranks have them: call it after every synchronised backward pass"
            )
        raise RuntimeError(
            f"ZeroOptimizer: the parameters are torn: the last backward pass ended when {self._stepped} of "
            f"{self._buckets} buckets had been stepped here. Load a checkpoint into the model and the optimizer"
        )

    def quiet(self) -> None:
        """Before values are loaded: a pass that has ended on its way may still be stepping a bucket."""
        if self._begun and self._stepped < self._buckets:
            self._reducer.reset()

    def forget(self) -> None:
        """A whole state has been loaded."""
        self._reducer.reset()  # it may still wait for the rest of a pass
        self._end()
        self._arrivals.forget()

    def _end(self) -> None:
        self._begun, self._stepped = False, 0
        self._sinks = []  # which hold the state

    def _begin(self) -> list[Any]:
        """Called by the reducer before it launches the first bucket of a pass."""
        self.check()
        self._arrivals.wait()
        self._sinks = self._stepping.sinks()
        self._begun = True
        return self._sinks

    def _take(self, bucket: int, part: torch.Tensor) -> None:
        """Called by the reducer, for bucket after bucket."""
        sink = self._sinks[bucket]
        if sink is None:
            pieces = {number: part[self._flat.pieces[number].place] for number in self._flat.in_bucket(bucket)}
            self._stepping.step_bucket(bucket, pieces)
        if sink is not None and sink.on_device:
            self._flat.round_to_parameters(bucket)
            self._arrivals.follow(sink)
        else:
            self._arrivals.start(self._flat, bucket)
        self._stepped += 1


def _call(method: weakref.WeakMethod[Any]) -> None:
    found = method()
    if found is not None:
        found()


def _undo(reducer: Any, hooks: Sequence[Any]) -> None:
    reducer.keep_shards()
    for hook in hooks:
        hook.remove()
