"""Who of a world has come to a meeting of workers that step alone, and who is still on the way.

A rank that makes up for the steps of lost workers may take many times as long as the others, who are at the meeting.
It tells the store of its steps, so it is waited for as long as it makes some.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch.distributed as dist

_SHARE, _LEAST_S, _MOST_S = 0.02, 0.003, 0.05  # between two looks at the store: of the time so far
_MOST_PASSED_S = 1.0  # between two of these looks


class Arrivals:
    """Of one member in one world. All members have made one before one of them waits. Errors are the store's."""

    def __init__(self, store: dist.Store, member: int, members: Sequence[int]) -> None:
        """store: of this world alone."""
        self._store = dist.PrefixStore("arrivals", store)
        self._member, self._members = member, members
        self._meetings = self._steps = 0
        self._tell()

    def tell_step(self) -> None:
        """This rank goes on."""
        self._steps += 1
        self._tell()

    def come(self, look: Callable[[], object], limit_s: float, on_late: Callable[[list[int]], object]) -> None:
        """This rank is at its next meeting, and waits until all are.

        look: called again and again; its errors end this. on_late: called with members that are not here, each time
        when they have told of no step for limit_s.
        """
        self._meetings += 1
        self._tell()
        began = looked = time.monotonic()
        before: dict[int, bytes] = {}
        silent_s: dict[int, float] = {}
        while absent := self._absent():
            look()
            now = time.monotonic()
            passed, looked = min(now - looked, _MOST_PASSED_S), now  # not while this process was stopped, too
            silent_s = {m: silent_s[m] + passed if before.get(m) == told else 0.0 for m, told in absent.items()}
            before = absent
            if late := [m for m, silent in silent_s.items() if silent > limit_s]:
                on_late(late)
                silent_s |= dict.fromkeys(late, 0.0)
            time.sleep(min(max(_LEAST_S, _SHARE * (now - began)), _MOST_S))

    def _tell(self) -> None:
        self._store.set(str(self._member), f"{self._meetings} {self._steps}")

    def _absent(self) -> dict[int, bytes]:
        """Members that have come to fewer meetings, and what they have told last."""
        told = self._store.multi_get([str(member) for member in self._members])
        by_member = dict(zip(self._members, told, strict=True))
        return {m: text for m, text in by_member.items() if int(text.split()[0]) < self._meetings}
