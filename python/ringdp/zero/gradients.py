"""Where gradients are: in .grad, or from stage 2 on in shards, with a tensor without memory (stand-in) in .grad."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from ringdp import _native
from ringdp.zero.flat import FlatParameters, in_memory_order


class Gradients(Protocol):
    """The gradients of one set of flat parameters."""

    def check(self, flat: FlatParameters) -> None:
        """RuntimeError names a gradient that cannot be stepped; the same on all ranks."""

    def by_bucket(self, flat: FlatParameters) -> Callable[[int], dict[int, torch.Tensor]]:
        """A function from bucket to {piece: its gradient, a flat view}, without pieces that have none.

        Valid until the next pass.
        """

    def drop(self, set_to_none: bool) -> None:
        """What zero_grad() does in addition to .grad."""


class WholeGradients:
    """Every rank has whole means in .grad: stage 1, stock DDP, or no wrapper."""

    def check(self, flat: FlatParameters) -> None:
        """See Gradients."""
        flat.check_unchanged()
        for parameter in flat.parameters:
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                raise RuntimeError(
                    f"ZeroOptimizer: the gradient of a parameter of shape {list(parameter.shape)} is sparse, and a "
                    "sparse gradient has no shards: make its layer with sparse=False, or use zero_stage=0"
                )

    def by_bucket(self, flat: FlatParameters) -> Callable[[int], dict[int, torch.Tensor]]:
        """See Gradients."""

        def of_bucket(bucket: int) -> dict[int, torch.Tensor]:
            found = {}
            for number in flat.in_bucket(bucket):
                piece = flat.pieces[number]
                parameter = flat.parameters[piece.parameter]
                if parameter.grad is not None:
                    found[number] = in_memory_order(parameter.grad, parameter)[piece.part]
            return found

        return of_bucket

    def drop(self, set_to_none: bool) -> None:
        """Nothing."""


class ShardedGradients:
    """The reducer holds shards of the means; .grad holds stand-ins."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def check(self, flat: FlatParameters) -> None:
        """See Gradients."""
        flat.check_unchanged()  # first: a converted parameter has lost the reducer's hook
        self._reducer.check_finished()
        self._reducer.stand_ins.check()

    def by_bucket(self, flat: FlatParameters) -> Callable[[int], dict[int, torch.Tensor]]:
        """See Gradients."""
        used, shards = self.kept(), self._reducer.shards()

        def of_bucket(bucket: int) -> dict[int, torch.Tensor]:
            shard = shards[bucket]
            if shard is None:
                return {}
            pieces = {number: flat.pieces[number] for number in flat.in_bucket(bucket)}
            return {number: shard[piece.place] for number, piece in pieces.items() if used[piece.parameter]}

        return of_bucket

    def kept(self) -> list[bool]:
        """By parameter, whether any rank had a gradient and it has not been dropped."""
        return self._reducer.stand_ins.kept(self._reducer.used())

    def drop(self, set_to_none: bool) -> None:
        """Drops or zeroes the shards."""
        self._reducer.drop_shards() if set_to_none else self._reducer.zero_shards()


_C = _native.load()


class StandIns:
    """Tensors without memory in .grad of parameters whose gradients are in shards.

    They are there from the end of a backward pass to the next forward pass. Reading or changing one raises an error
    that names the parameter. Setting it to None drops the gradient, so that the
    parameter is not stepped, as in torch. `used`: by parameter, whether there is a gradient in shards.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], names: Sequence[str], stage: int) -> None:
        self._parameters, self._names, self._stage = list(parameters), list(names), stage
        self._made: dict[int, tuple[torch.Tensor, int]] = {}  # by parameter: the stand-in, and its storage
        self._in_pass = False  # stand-ins are removed, as autograd would add to them
        self._dropped: set[int] = set()  # gradients that were dropped before the running pass
        # Code that uses the parameters after the wrapper is gone must not find stand-ins.
        weakref.finalize(self, _remove, self._parameters, self._made).atexit = False

    def show(self, used: Sequence[bool]) -> None:
        """Call when a pass has ended: puts stand-ins into .grad."""
        for number, parameter in enumerate(self._parameters):
            if used[number] and parameter.grad is None:
                parameter.grad = self._stand_in(number)
        self._in_pass = False
        self._dropped.clear()

    def begin_pass(self, used: Sequence[bool]) -> set[int]:
        """Removes stand-ins from .grad. Returns the parameters whose gradients were dropped since the previous pass.

        RuntimeError names a gradient that was assigned by hand.
        """
        if self._in_pass or not any(used):
            return set()
        self.check()
        kept = self.kept(used)
        self._in_pass = True
        self._dropped = {number for number, there in enumerate(used) if there and not kept[number]}
        _remove(self._parameters, self._made)
        return set(self._dropped)

    def kept(self, used: Sequence[bool]) -> list[bool]:
        """By parameter, whether there is a gradient in shards that has not been dropped."""
        if self._in_pass:
            return [there and number not in self._dropped for number, there in enumerate(used)]
        return [there and p.grad is not None for there, p in zip(used, self._parameters, strict=True)]

    def check(self) -> None:
        """RuntimeError names a parameter whose .grad is not a stand-in."""
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is not None and not self._is_shown(number):
                raise RuntimeError(
                    f"ZeroOptimizer: the gradient of {self._names[number]} has not been averaged: its backward pass "
                    "ran under no_sync(), or without a forward pass of the wrapper before it, or .grad was assigned by "
                    "hand. End each step by one backward pass outside no_sync(); change optimizer.shard_grads()"
                )

    def shown(self) -> set[int]:
        """Ids of the stand-ins that are in .grad."""
        return {id(stand_in) for number, (stand_in, _) in self._made.items() if self._is_shown(number)}

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Inside, .grad holds no stand-ins."""
        shown = [number for number in self._made if self._is_shown(number)]
        _remove(self._parameters, self._made)
        try:
            yield
        finally:
            for number in shown:
                self._parameters[number].grad = self._made[number][0]

    def drop(self) -> None:
        """Call when all gradients in shards have been dropped: removes stand-ins from .grad."""
        self._in_pass = False
        self._dropped.clear()
        _remove(self._parameters, self._made)

    def _is_shown(self, number: int) -> bool:
        """Whether .grad is the stand-in, and nothing was assigned to the stand-in's .data."""
        made = self._made.get(number)
        grad = self._parameters[number].grad
        return made is not None and grad is made[0] and grad.untyped_storage()._cdata == made[1]

    def _stand_in(self, number: int) -> torch.Tensor:
        parameter, known = self._parameters[number], self._made.get(number)
        if known is None or known[0].dtype != parameter.dtype or known[0].untyped_storage()._cdata != known[1]:
            made = _C.without_memory(parameter, _unreadable(self._names[number], self._stage))
            known = self._made[number] = made, made.untyped_storage()._cdata
        return known[0]


def _remove(parameters: Sequence[torch.Tensor], made: dict[int, tuple[torch.Tensor, int]]) -> None:
    for number, (stand_in, _) in made.items():
        if parameters[number].grad is stand_in:
            parameters[number].grad = None


def _unreadable(name: str, stage: int) -> str:
    return (
        f"the gradient of {name} is averaged and in shards (zero_stage={stage}), so .grad can be neither read nor "
        "changed: use optimizer.shard_grads() or ringdp.clip_grad_norm_, or set .grad to None to leave the parameter "
        "out of the step. A further backward pass needs a forward pass of the wrapper after this one"
    )
