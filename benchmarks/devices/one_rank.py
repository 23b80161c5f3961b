"""This process as one rank on a device that it shares: its arena, that of all others mapped, flags in host memory.

The ranks meet over a torch.distributed group, whatever its backend, that moves Python objects.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from runner.native import Mapping, make_shared

from devices.core import FLAGS_BYTES, SHARE_AUTO, SPIN, STREAM, Core, Expired, Handle
from devices.one_process import WORD_BYTES, Place, get, put
from devices.plan import Launch, Layout, Problem, blocks_for, plan_of, plans_of

CONNECT_S = 30.0


def gathered(mine: Any, group: Any = None) -> list[Any]:
    """What all ranks have to say, by rank."""
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, mine, group=group)
    return found


def traded_fds(fd: int, group: Any = None) -> list[int]:
    """The descriptors of all ranks, opened here, by rank, for the caller to close; -1: this rank's own, or none.

    Every rank connects to all before it serves any, so that nobody waits for a rank that waits.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    found = [-1] * world
    with ExitStack() as stack:
        listener = stack.enter_context(_unix_socket())
        listener.bind("")  # a name of the kernel's choice
        listener.listen(world)
        names = gathered(listener.getsockname(), group)
        links = {other: stack.enter_context(_unix_socket()) for other in range(world) if other != rank}
        for other, link in links.items():
            link.connect(names[other])
        for _ in links:
            client, _ = listener.accept()
            with client:
                socket.send_fds(client, [b"."], [fd] if fd >= 0 else [])
        for other, link in links.items():
            fds = socket.recv_fds(link, 1, 1)[1]
            found[other] = fds[0] if fds else -1
    return found


def _unix_socket() -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(CONNECT_S)
    return end


class OneRank:
    """This rank's memory for the plans of these problems. Use as a context; making it is collective."""

    def __init__(
        self,
        core: Core,
        place: Place,
        problems: Sequence[Problem],
        executor: int = STREAM,
        sharing: int = SHARE_AUTO,
        group: Any = None,
    ) -> None:
        self.core, self.place, self.executor, self.sharing, self.group = core, place, executor, sharing, group
        self.stream = place.streams(1)[0]
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.layout = Layout.of(self.world, [plan for problem in problems for plan in plans_of(problem)])
        self.launches = 0
        self._stack = ExitStack()

    def __enter__(self) -> OneRank:
        with ExitStack() as undo:
            self.core.kernels()
            pinned = self.core.host_alloc(WORD_BYTES + ctypes.sizeof(Expired))
            undo.callback(self.core.host_free, pinned)
            self._host = pinned.host
            bases = self._arenas(undo)
            flags = self._host_flags(undo) if self.executor == STREAM else [b + self.layout.flags for b in bases]
            sharers = self.world if self.executor == SPIN else 1
            blocks = blocks_for(self.core.describe().multiprocessors, sharers)
            self.places = Launch(self.layout, bases, flags, pinned.device, pinned.device + WORD_BYTES, blocks)
            undo.callback(dist.barrier, group=self.group)  # importers close before exporters free
            self._stack = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.place.synchronize()
        self._stack.close()

    def _arenas(self, undo: ExitStack) -> list[int]:
        own = self.core.alloc(self.layout.total, sharing=self.sharing)
        undo.callback(self.core.free, own)
        undo.callback(dist.barrier, group=self.group)
        handle, fd = self.core.export(own)
        handles = gathered(bytes(handle), self.group)
        fds = traded_fds(fd, self.group)
        bases = []
        for rank, packed in enumerate(handles):
            base = own
            if rank != self.rank:
                base = self.core.import_(Handle.from_buffer_copy(packed), fds[rank])
                undo.callback(self.core.unimport, base)
            bases.append(base)
        for number in (fd, *fds):
            if number >= 0:
                os.close(number)
        return bases

    def _host_flags(self, undo: ExitStack) -> list[int]:
        descriptor, path = make_shared("flags", FLAGS_BYTES)
        undo.callback(os.close, descriptor)
        found = []
        for name in gathered(path, self.group):
            mapping = Mapping(name)
            pinned = self.core.host_map(mapping.address, FLAGS_BYTES)
            undo.callback(lambda kept: None, mapping)  # mapped until the device has let go of it
            undo.callback(self.core.host_unmap, pinned)
            found.append(pinned.device)
        return found

    def launch(self, problem: Problem, **changes: object) -> None:
        """This rank's part of one collective. `changes`: of Launch."""
        self.launches += 1
        plan = plan_of(problem, self.rank)
        work = self.places.for_plan(plan, self.executor).at(**changes).work(plan, problem.divisor, self.launches)
        self.core.run(work, plan.element, plan.reduce, self.executor, self.stream)

    def input(self) -> int:
        """The device address of this rank's input."""
        return self.places.input(self.rank)

    def output(self) -> int:
        """The device address of this rank's result."""
        return self.places.output(self.rank)

    def put(self, content: bytes) -> None:
        """This rank's input, now."""
        put(self.core, self.place, self.stream, self.input(), content)

    def get(self, size: int) -> bytes:
        """What its result begins with, after all that is queued."""
        return get(self.core, self.place, self.stream, self.output(), size)

    def expired(self) -> Expired:
        """This rank's record."""
        return Expired.from_buffer_copy(ctypes.string_at(self._host + WORD_BYTES, ctypes.sizeof(Expired)))
