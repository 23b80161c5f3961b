"""A step of all buckets in step(): one travels while the next is stepped. One that fails on its way is remembered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from ringdp.zero import native
from ringdp.zero.arrivals import Arrivals
from ringdp.zero.bucket_steps import BucketSteps
from ringdp.zero.flat import FlatParameters
from ringdp.zero.gradients import Gradients


class WholeStep:
    """`flats` and `sources` go together; both may grow. `begin`: as BucketSteps takes it."""

    def __init__(
        self,
        flats: Sequence[FlatParameters],
        sources: Sequence[Gradients],
        optimizer: Optimizer,
        arrivals: Arrivals,
        begin: Callable[[], None],
    ) -> None:
        self._flats, self._sources, self._optimizer = flats, sources, optimizer
        self._arrivals, self._begin = arrivals, begin
        self._halfway = False

    def describe(self) -> str:
        """How buckets are stepped."""
        how = "ringdp's kernels" if native.serves(self._optimizer) else "torch"
        return f"gradients are reduced in the backward pass; step() steps bucket by bucket by {how}, and gathers each"

    def run(self, **arguments: Any) -> None:
        """The step. RuntimeError before anything moves when a gradient cannot be stepped, or the state is torn."""
        self.check()
        self._arrivals.wait()
        for flat, source in zip(self._flats, self._sources, strict=True):
            source.check(flat)
        self._halfway = True
        steps = [BucketSteps(flat, self._optimizer, self._begin) for flat in self._flats]
        gradients: list[list[dict[int, torch.Tensor]]] = []  # of flats, of their buckets
        for flat, source in zip(self._flats, self._sources, strict=True):
            gradients.append([*map(source.by_bucket(flat), range(len(flat)))])
        if not arguments:
            for one, found in zip(steps, gradients, strict=True):
                one.foresee([*itertools.chain.from_iterable(found)])
        for number, bucket in self._arrivals.order(self._flats):
            steps[number].step_bucket(bucket, gradients[number][bucket], **arguments)
            self._arrivals.start(self._flats[number], bucket)
        if not any(itertools.chain.from_iterable(gradients)):  # a class that counts its steps counts on all ranks
            self._begin()
            native.step(self._optimizer, **arguments)
        self._arrivals.end_step()
        self._halfway = False

    def begin_forward(self) -> None:
        """Nothing: gradients wait for step()."""

    def check(self) -> None:
        """RuntimeError unless parameters and state are those of a complete step."""
        if self._halfway:
            raise RuntimeError(
                "ZeroOptimizer: the parameters are torn: an earlier step() failed on its way. Load a checkpoint into "
                "the model and the optimizer"
            )

    def quiet(self) -> None:
        """Before values are loaded: nothing steps outside run()."""

    def forget(self) -> None:
        """A whole state has been loaded."""
        self._halfway = False
