"""In-flight all_gathers of stepped buckets: step() waits for them, or the modules that need them wait in forward."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo

from ringdp import _native
from ringdp.zero.flat import FlatParameters
from ringdp.zero.units import units_of

_C = _native.load()


class HiddenBucket:
    """A bucket of parameters that can be hidden: then they, and older views of them, have no memory.

    Reading one raises a RuntimeError that names the parameter, or for an older view the first parameter of the bucket.
    why: what such an error ends with.
    """

    def __init__(self, flat: FlatParameters, bucket: int, names: Mapping[torch.Tensor, str], why: str) -> None:
        self._flat, self._bucket = flat, bucket
        self._views = flat.views(bucket)
        self.parameters = list(self._views)
        texts = [f"parameter {names[p]} is read {why}" for p in self.parameters]
        self._stand_ins = [_C.without_memory(v, t) for v, t in zip(self._views.values(), texts, strict=True)]
        first = names[self.parameters[0]]
        self._absent = f"a view that was kept of {first}, or of a parameter in its bucket, is used {why}"
        self._memory: torch.Tensor | None = None

    def hide(self) -> torch.Tensor:
        """The memory of the whole bucket, which only the caller can reach now."""
        whole = self._flat.whole(self._bucket)
        self._memory = _C.take_memory(whole, self._absent)
        _C.set_values(self.parameters, self._stand_ins)
        return self._memory[: whole.nbytes].view(whole.dtype)

    def show(self) -> None:
        """Ends hide(). A value that was assigned to .data since then is newer, and stays."""
        _C.give_memory(self._flat.whole(self._bucket), self._memory)
        self._memory = None
        here = [(p, self._views[p]) for p, s in zip(self.parameters, self._stand_ins, strict=True) if _shares(p, s)]
        _C.set_values([p for p, _ in here], [view for _, view in here])


class InFlightBucket(HiddenBucket):
    """An all_gather of one bucket of parameters while the program continues. They are hidden until it has ended."""

    def __init__(self, flat: FlatParameters, bucket: int, names: Mapping[torch.Tensor, str]) -> None:
        super().__init__(flat, bucket, names, _TOO_EARLY)
        self._work: object = None

    def start(self) -> None:
        """Starts the all_gather."""
        self._flat.round_to_parameters(self._bucket)
        memory = self.hide()
        try:
            self._work = self._flat.gather_in(memory)
        except BaseException:
            self.show()
            raise

    def wait(self) -> None:
        """Waits for the all_gather. If it fails, every call raises: half a bucket is never read."""
        self._flat.check_unchanged(self._bucket)  # strides of a stand-in would be lost
        self._work.wait()
        self._work = None
        self.show()


def _shares(parameter: torch.Tensor, stand_in: torch.Tensor) -> bool:
    return parameter.untyped_storage()._cdata == stand_in.untyped_storage()._cdata


_TOO_EARLY = (
    'before it has arrived from the ranks that stepped it (ZeroOptimizer with gather="forward"), outside the forward '
    "of the module it belongs to: call optimizer.wait() first"
)


class InFlightGathers:
    """The all_gathers of an optimizer whose step() waits for all of them.

    exposed: seconds of waiting so far.
    """

    def __init__(self) -> None:
        self.exposed = 0.0
        self._works: list[Any] = []

    def order(self, flats: Sequence[FlatParameters]) -> list[tuple[int, int]]:
        """(index into flats, bucket) in the order of stepping, equal on all ranks."""
        return [(number, bucket) for number, flat in enumerate(flats) for bucket in range(len(flat))]

    def start(self, flat: FlatParameters, bucket: int) -> None:
        """Starts the gather of a bucket that this rank has stepped."""
        work = flat.gather_stepped(bucket)
        if work is not None:
            self.follow(work)

    def follow(self, work: Any) -> None:
        """Adds the work of a gather that was started elsewhere."""
        self._works.append(work)

    def wait(self) -> None:
        """Waits for all of them. The error of a gather is raised at every call."""
        with self._timed():
            while self._works:
                self._works[-1].wait()
                self._works.pop()

    def end_step(self) -> None:
        """Call when all buckets of a step have been started."""
        self.wait()

    def forget(self) -> None:
        """Drops the gathers, because their parameters have been overwritten."""
        self._works.clear()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.exposed += time.perf_counter() - began


class GathersInForward(InFlightGathers):
    """Gathers that continue after step(): modules wait in forward for the parameters of their unit (zero/units.py).

    The model waits for parameters in no unit when its forward pass begins, and for all gathers when it ends.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        named = dict(module.named_parameters())
        self._names = {parameter: name for name, parameter in named.items()}
        self._places = {parameter: place for place, parameter in enumerate(named.values())}
        self._made: dict[tuple[FlatParameters, int], InFlightBucket] = {}
        self._in_flight: dict[torch.Tensor, InFlightBucket] = {}
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
        """In the order of the model's parameters, as the first are needed first."""

        def place(number: int, bucket: int) -> int:
            return min(self._places[flats[number].parameters[i]] for i in flats[number].layout.buckets[bucket])

        return sorted(super().order(flats), key=lambda which: place(*which))

    def start(self, flat: FlatParameters, bucket: int) -> None:
        """See InFlightGathers."""
        if not flat.travels(bucket):
            flat.gather_stepped(bucket)
            return
        gather = self._made.get((flat, bucket))
        if gather is None:
            gather = self._made[flat, bucket] = InFlightBucket(flat, bucket, self._names)
        gather.start()
        self._in_flight.update(dict.fromkeys(gather.parameters, gather))

    def wait_for(self, parameters: Iterable[torch.Tensor]) -> None:
        """Waits until these parameters can be read."""
        for parameter in parameters:
            gather = self._in_flight.get(parameter)
            if gather is not None:
                with self._timed():
                    gather.wait()
                for other in gather.parameters:
                    del self._in_flight[other]

    def wait(self) -> None:
        """See InFlightGathers."""
        super().wait()
        self.wait_for(list(self._in_flight))

    def end_step(self) -> None:
        """Nothing: gathers continue."""

    def forget(self) -> None:
        """Waits, because parameters must have their memory back before they are used again."""
        super().forget()
        self.wait()


class WaitHook:
    """A module's hook that calls wait(*arguments). On a copied or unpickled module it does nothing."""

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
