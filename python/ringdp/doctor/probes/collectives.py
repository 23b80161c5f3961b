"""Collectives that the script itself calls, in order: on which group, how large, and whether the call came back.

Records: call (number, op, group: its ranks, name: the group's, count, step), back (number); after the first 2000 only
calls (number), at most one a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ringdp.doctor.probes.rig import Rig

_FUNCTIONS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "barrier",
)
_MOST = 2000
_SIGN_EVERY_S = 1.0


def install(rig: Rig) -> None:
    """Both where users find the functions and where torch's own modules do."""
    calls = _Calls(rig)
    for name in _FUNCTIONS:
        for owner in (dist, distributed_c10d):
            rig.patches.around(owner, name, lambda original, name=name: calls.watched(name, original))


class _Calls:
    """Numbers the calls of this process."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._number = 0
        self._next_sign = 0.0

    def watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if any(value is dist.GroupMember.NON_GROUP_MEMBER for value in (*args, *kwargs.values())):
                return original(*args, **kwargs)  # which does nothing
            number, self._number = self._number, self._number + 1
            if number >= _MOST:
                self._live(number)
                return original(*args, **kwargs)
            row = {"kind": "call", "number": number, "op": name, "count": _count(args), "step": self._rig.step}
            self._rig.write({**row, **_group_of(args, kwargs)})
            start = time.perf_counter()
            result = original(*args, **kwargs)
            self._rig.called += time.perf_counter() - start
            self._rig.write({"kind": "back", "number": number})
            return result

        return call

    def _live(self, number: int) -> None:
        """Of a job that writes nothing else, so that it is not taken for one that hangs."""
        if time.monotonic() >= self._next_sign:
            self._next_sign = time.monotonic() + _SIGN_EVERY_S
            self._rig.write({"kind": "calls", "number": number})


def _group_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
    """Its ranks and its name, which are the same on all of them."""
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
