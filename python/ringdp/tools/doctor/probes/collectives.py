"""Collectives that the script itself calls, in order: on which group, how large, and whether the call came back.

Records: call (number, op, group: its ranks, name: the group's, count, step), back (number); after the first 2000 only
calls (number), at most one a second.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ringdp.tools.doctor.probes.context import ProbeContext

_MOST = 2000
_SIGN_EVERY_S = 1.0


def functions() -> list[str]:
    """The collectives of torch.distributed: its functions that can be asynchronous."""
    public = {name: value for name, value in vars(dist).items() if not name.startswith("_")}
    # By type(): asking torch's reduce_op for its __class__ warns.
    functions = {name: f for name, f in public.items() if type(f) is FunctionType}
    return [name for name, f in functions.items() if "async_op" in inspect.signature(f).parameters]


def install(context: ProbeContext) -> None:
    """Replaces the functions where users find them and where torch's own modules do."""
    calls = _Calls(context)
    for name in functions():
        for owner in (dist, distributed_c10d):
            context.patches.around(owner, name, lambda original, name=name: calls.watched(name, original))


class _Calls:
    """Numbers the calls of this process."""

    def __init__(self, context: ProbeContext) -> None:
        self._context = context
        self._number = 0
        self._next_sign = 0.0
        self._thread = threading.local()

    def watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if any(value is dist.GroupMember.NON_GROUP_MEMBER for value in (*args, *kwargs.values())):
                return original(*args, **kwargs)  # which does nothing
            if getattr(self._thread, "calling", False):
                return original(*args, **kwargs)  # one of torch's functions has called another
            number, self._number = self._number, self._number + 1
            if number >= _MOST:
                self._live(number)
                return original(*args, **kwargs)
            row = {"kind": "call", "number": number, "op": name, "count": _count(args), "step": self._context.step}
            self._context.write({**row, **_group_of(args, kwargs)})
            start = time.perf_counter()
            self._thread.calling = True
            try:
                result = original(*args, **kwargs)
            finally:
                self._thread.calling = False
            self._context.called += time.perf_counter() - start
            self._context.write({"kind": "back", "number": number})
            return result

        return call

    def _live(self, number: int) -> None:
        """A sign of life, so that a job that writes nothing else is not taken for one that hangs."""
        if time.monotonic() >= self._next_sign:
            self._next_sign = time.monotonic() + _SIGN_EVERY_S
            self._context.write({"kind": "calls", "number": number})


def _group_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
    """The group's ranks and its name, which are the same on all of its ranks."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, dist.ProcessGroup)]
    group = given[0] if given else dist.group.WORLD
    if group is None:
        return {"group": "", "name": ""}
    return {"group": ",".join(map(str, dist.get_process_group_ranks(group))), "name": group.group_name}


def _count(args: tuple[Any, ...]) -> int:
    """Elements of the first tensor, or of the first list of tensors."""
    for value in args:
        if isinstance(value, torch.Tensor):
            return value.numel()
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            return sum(tensor.numel() for tensor in value)
    return 0
