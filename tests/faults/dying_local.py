"""For tests of ringdp.elastic.survive_local: workers that step alone, whose ranks die at given points."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import dying
import ringdp
import torch
import torch.distributed as dist
from dying import Job, arrange_death
from local_runs import arguments_of, differences, digests, expected, inner_of, model_of, own_loss
from ringdp.compress.exchange import Exchange
from ringdp.elastic import member as membership
from ringdp.elastic import state
from ringdp.elastic.host_memory import HostMemory
from ringdp.elastic.local_training import LocalTraining
from ringdp.elastic.member import Member
from ringdp.elastic.worlds import Worlds
from ringdp.local.kept_meetings import KeptMeetings
from ringdp.local.workers import Workers

STEPS, ALONE, MEETING = 11, 5, 7  # meetings after 4, 8 and 11 steps; a step between two of them, and one before one
CELLS: dict[str, dict[str, Any]] = {
    "plain": {"workers": 8, "every": 4},
    "int8": {"workers": 8, "every": 4, "compress": "int8"},
    "two bits": {"workers": 8, "every": 4, "compress": "topk-2bit", "outer_lr": 1, "momentum": 0.0, "model": "wide"},
    "in parts": {"workers": 7, "every": 4, "fragments": 2, "alpha": 0.25, "compress": "int4", "dtype": "bfloat16"},
    "two workers": {"workers": 2, "every": 4, "compress": "int8"},
}


@cache
def in_one_process(name: str) -> list[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = expected(CELLS[name], STEPS)
    torch.set_num_threads(threads)
    return found


def train_local(
    member: int,
    port: int,
    name: str,
    point: str = "",
    host: int = 0,
    held: bool = False,
    copies: bool = False,
    folder: str = "",
    false_alarm_s: float = 20.0,
) -> tuple[list[Any], list[Any]]:
    """On a rank: the whole training as a member of the job whose store is at `port`; it dies at a point of POINTS.

    held: the first step lasts until a newcomer has asked to join. folder: for a checkpoint after each round.
    false_alarm_s: more than a busy machine takes to publish.
    """
    os.environ[membership.VARIABLE] = f"{member}@127.0.0.1:{port}"
    os.environ["GROUP_RANK"] = str(host)
    membership.FALSE_ALARM_S = false_alarm_s
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    cell = CELLS[name]
    model = model_of(cell)
    local = ringdp.DiLoCo(model, inner_of(cell), seed=5, **arguments_of(cell))
    if point:
        arrange_death(*POINTS[point])
    ended: list[int] = []
    saves = {"save": lambda _: ringdp.checkpoint.save(folder, model, local)} if folder else {}

    @ringdp.elastic.survive_local(local, after=ended.append, copies=copies, patience=20.0, **saves)
    def run(step: int, workers: Sequence[int]) -> None:
        dying.running_step = step
        if held and step == 0:
            store.set("began", "")
            store.wait(["newcomers"])
        for worker in workers:
            with local.worker(worker):
                own_loss(model, worker, step).backward()

    run(STEPS)
    assert ended == sorted({*ended}) and ended[-1] == STEPS, ended  # each meeting once
    return digests(local.state_dict()), run.recoveries


# Where a rank may die: at a call of what, before or after it, in which step or whenever it comes first after a step.
POINTS = {
    "in a step": (Workers, "make_step", "before", ALONE),
    "between two steps": (LocalTraining, "_look", "before", ALONE),
    "before the exchange": (KeptMeetings, "prepare", "before", MEETING),
    "in the exchange": (Exchange, "send_means", "before", MEETING),
    "after the exchange": (KeptMeetings, "prepare", "after", MEETING),
    "while it keeps a worker": (HostMemory, "_put", "after", MEETING),
    "when it has kept one": (HostMemory, "write", "after", MEETING),
    "before the vote": (LocalTraining, "_vote", "before", MEETING),
    "after the vote": (LocalTraining, "_vote", "after", MEETING),
    "after the meeting": (KeptMeetings, "make", "after", MEETING),
    "as it saves": (ringdp.checkpoint, "save", "before", MEETING),
    "before the last barrier": (dist, "barrier", "before", STEPS - 1),
    "after the last barrier": (dist, "barrier", "after", STEPS - 1),
    "as it leaves": (Member, "leave", "before", None),
    "before it is here": (Worlds, "gather", "before", None),
    "between here and the group": (Worlds, "gather", "after", None),
    "before it says where it is": (LocalTraining, "_exchange", "before", None),
    "after it has said so": (LocalTraining, "_exchange", "after", None),
    "as it sends the state": (state, "send", "before", None),
    "as it has the state": (state, "receive", "after", None),
    "before workers are dealt": (LocalTraining, "_deal", "before", None),
    "as it has a new worker": (KeptMeetings, "add", "after", None),
    "before means are shared": (LocalTraining, "_share_means", "before", None),
    "after means are shared": (LocalTraining, "_share_means", "after", None),
    "before the first barrier": (LocalTraining, "_forget", "before", None),
}
AT_THE_END = [name for name in POINTS if "last barrier" in name]
IN_A_ROUND = [name for name, (*_, step) in POINTS.items() if step in (ALONE, MEETING) and name != "as it saves"]
BETWEEN_WORLDS = [name for name, (*_, step) in POINTS.items() if step is None]


class LocalJob(Job):
    """Members that train by train_local(). late: newcomers whose programs begin when the first members are all gone."""

    late: Sequence[int] = ()

    def begin_local(
        self,
        name: str,
        point: Mapping[int, str] = MappingProxyType({}),
        copies: bool = False,
        folder: str = "",
    ) -> None:
        """On every member; these members die at these points."""
        is_held = len(self.place) - len(self.late) > self.first.size
        for member in self.place:
            if member not in self.late:
                self._begin(member, name, point.get(member, ""), copies, folder, is_held)
        self._arguments = (name, "", copies, folder, False)

    def _begin(self, member: int, name: str, point: str, copies: bool, folder: str, is_held: bool) -> None:
        world, rank = self.place[member]
        is_first = world is self.first
        if not is_first and is_held:
            self.first.store.wait(["began"])
        own = (name, point, self.host_of[member], is_first and is_held, copies, folder)
        world.begin(train_local, member, self.port, *own, ranks=[rank])

    def wait_for_deaths(self, members: Sequence[int], limit_s: float = 60.0) -> None:
        """Then late ones come, from their hosts."""
        until = time.monotonic() + limit_s
        while any(self.place[member][0].status(self.place[member][1], 0.0) is None for member in members):
            assert time.monotonic() < until
            time.sleep(0.005)
        self.joined -= {*members}
        for host in self.memory:
            self.worlds.expect(sum(self.host_of[member] == host for member in self.late), host)
        for host in {self.host_of[member] for member in members}:
            self.worlds.publish(sorted(m for m in self.joined if self.host_of[m] == host), host)
        for member in self.late:
            self._begin(member, *self._arguments)


def check_local(outcomes: Sequence[Any], name: str, survivors: int) -> list[list[Any]]:
    """That together they have these bits; the recoveries of each."""
    for outcome in outcomes:
        assert not outcome.error, outcome.trace
    assert len(outcomes) == survivors
    wrong = differences([outcome.value[0] for outcome in outcomes], in_one_process(name))
    assert not wrong, (wrong[:20], len(wrong))
    return [outcome.value[1] for outcome in outcomes]
