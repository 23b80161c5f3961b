"""Stepped buckets on their way to everybody: waited for at the end of the step, or by the forward pass of modules."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo

from ringdp.zero.away import Away
from ringdp.zero.flat import FlatParameters
from ringdp.zero.units import units_of


class Arrivals:
    """Of one optimizer, in a step that ends when they are all there.

    exposed: seconds of waiting for them, so far.
    """

    def __init__(self) -> None:
        self.exposed = 0.0
        self._works: list[Any] = []

    def order(self, flats: Sequence[FlatParameters]) -> list[tuple[int, int]]:
        """(flat, bucket) as they are stepped, the same on all ranks."""
        return [(number, bucket) for number, flat in enumerate(flats) for bucket in range(len(flat))]

    def start(self, flat: FlatParameters, bucket: int) -> None:
        """This rank has stepped its part."""
        work = flat.publish(bucket)
        if work is not None:
            self.follow(work)

    def follow(self, work: Any) -> None:
        """What gives everybody a bucket is under way."""
        self._works.append(work)

    def wait(self) -> None:
        """Until nothing is on its way. The error of a gather is raised at every call."""
        with self._timed():
            while self._works:
                self._works[-1].wait()
                self._works.pop()

    def end_step(self) -> None:
        """All buckets have been started."""
        self.wait()

    def forget(self) -> None:
        """What is on its way has been overwritten."""
        self._works.clear()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.exposed += time.perf_counter() - began


class ArrivalsInForward(Arrivals):
    """Outlive the step; the forward pass of a unit's modules (zero/units.py) waits for the buckets of its parameters.

    When the model's forward returns nothing is on its way. Parameters in no unit are waited for when it begins.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        named = dict(module.named_parameters())
        self._names = {parameter: name for name, parameter in named.items()}
        self._places = {parameter: place for place, parameter in enumerate(named.values())}
        self._known: dict[tuple[FlatParameters, int], Away] = {}
        self._away: dict[torch.Tensor, Away] = {}
        rest = dict(named)
        for unit in units_of(module):
            needs = tuple(rest.pop(name) for name in unit.parameters)
            for name in unit.modules:
                module.get_submodule(name).register_forward_pre_hook(WaitHook(self.wait_for, needs), prepend=True)
        module.register_forward_pre_hook(WaitHook(self.wait_for, tuple(rest.values())), prepend=True)
        module.register_forward_hook(WaitHook(self.wait))
        for part in module.modules():
            part.register_state_dict_pre_hook(WaitHook(self.wait))
            part.register_load_state_dict_pre_hook(WaitHook(self.wait))

    def order(self, flats: Sequence[FlatParameters]) -> list[tuple[int, int]]:
        """What the model has first is needed first."""

        def place(number: int, bucket: int) -> int:
            return min(self._places[flats[number].parameters[i]] for i in flats[number].layout.buckets[bucket])

        return sorted(super().order(flats), key=lambda which: place(*which))

    def start(self, flat: FlatParameters, bucket: int) -> None:
        """See Arrivals."""
        if not flat.travels(bucket):
            flat.publish(bucket)
            return
        away = self._known.get((flat, bucket))
        if away is None:
            away = self._known[flat, bucket] = Away(flat, bucket, self._names)
        away.leave()
        self._away.update(dict.fromkeys(away.parameters, away))

    def wait_for(self, parameters: Iterable[torch.Tensor]) -> None:
        """Until these can be read."""
        for parameter in parameters:
            away = self._away.get(parameter)
            if away is not None:
                with self._timed():
                    away.arrive()
                for other in away.parameters:
                    del self._away[other]

    def wait(self) -> None:
        """See Arrivals."""
        super().wait()
        self.wait_for(list(self._away))

    def end_step(self) -> None:
        """They go on."""

    def forget(self) -> None:
        """Memory must be back before it is used again."""
        super().forget()
        self.wait()


class WaitHook:
    """A module's hook. That of a copied or unpickled module waits for nothing: its parameters are its own."""

    __slots__ = ("_call",)

    def __init__(self, wait: Callable[..., None] | None = None, *arguments: Any) -> None:
        self._call = (wait, *arguments) if wait is not None else None

    @_disable_dynamo
    def __call__(self, *_: object) -> None:
        if self._call is not None:
            wait, *arguments = self._call
            wait(*arguments)

    def __reduce__(self) -> tuple[type[WaitHook], tuple[()]]:
        return WaitHook, ()
