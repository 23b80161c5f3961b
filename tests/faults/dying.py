"""For tests of ringdp.elastic.survive: a training whose ranks die at given points, and its supervisor.

The test's process is the supervisor: it sees which ranks end, and publishes the next world.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import ringdp
import torch
import torch.distributed as dist
from churn import hash_of
from ranks import Outcome, World, values_of
from ringdp.ddp.leaf_steps import LeafSteps
from ringdp.elastic import member as membership
from ringdp.elastic import state
from ringdp.elastic.member import Member
from ringdp.elastic.training import Training
from ringdp.elastic.worlds import Worlds
from ringdp.testing import one_process
from ringdp.zero import native
from torch import nn

STEPS, MICRO_BATCHES, FATAL_STEP, CLIP = 4, 7, 2, 0.05
running_step = -1  # on a rank


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3), nn.Linear(3, 1))


def loss_of(model: nn.Module, step: int, leaf: int) -> torch.Tensor:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + leaf))
    return model(x).square().mean()


def in_one_process(clip: float = 0) -> str:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = lambda model, rank, step, leaf: loss_of(model, step, leaf)  # noqa: E731
    clips = lambda step: ringdp.clip_grad_norm_(model.parameters(), clip) if clip else None  # noqa: E731
    one_process(model, optimizer, losses, steps=STEPS, micro_batches=MICRO_BATCHES, on_gradients=clips)
    torch.set_num_threads(threads)
    return hash_of(model, optimizer)


def train(
    member: int,
    port: int,
    point: str = "",
    held: bool = False,
    stage: int = 0,
    shards: str = "auto",
    false_alarm_s: float = 20.0,
    save: Callable[[Any, Any, int], object] | None = None,
) -> tuple[str, list[Any]]:
    """On a rank: the whole training as a member of the job whose store is at `port`; it dies at a point of POINTS.

    held: step 0 lasts until a newcomer has asked to join. stage, shards: of ZeRO. false_alarm_s: more than a busy
    machine takes to publish. save: of wrapper, optimizer and step, after every second one.
    """
    os.environ[membership.VARIABLE] = f"{member}@127.0.0.1:{port}"
    membership.FALSE_ALARM_S = false_alarm_s
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    ddp = ringdp.DistributedDataParallel(network(), micro_batches=MICRO_BATCHES, zero_stage=stage)
    optimizer = (
        ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.01)
        if stage
        else torch.optim.AdamW(ddp.parameters(), lr=0.01)
    )
    if point:
        arrange_death(*{**POINTS, **POINTS_OF_SHARDS}[point])

    ended: list[int] = []
    clip = CLIP if stage else None
    keeps = {"patience": 20.0, "clip": clip, "shards": shards}
    saves = {"save": lambda step: save(ddp, optimizer, step), "save_every": 2} if save is not None else {}

    @ringdp.elastic.survive(model=ddp, optimizer=optimizer, after=ended.append, **keeps, **saves)
    def run(step: int, leaves: Sequence[int]) -> None:
        global running_step
        running_step = step
        if held and step == 0:
            store.set("began", "")
            store.wait(["newcomers"])
        for leaf in leaves:
            with ringdp.leaf(step, leaf):
                loss_of(ddp, step, leaf).backward()

    run(STEPS)
    assert ended == list(range(STEPS - len(ended), STEPS)), ended  # each step once, from the first one of this rank on
    return hash_of(ddp, optimizer), run.recoveries


# Where a rank may die: at a call of what, before or after it, in FATAL_STEP or whenever it comes first after a step.
POINTS = {
    "in a leaf": (LeafSteps, "end", "before", FATAL_STEP),
    "before the exchange": (LeafSteps, "finish", "before", FATAL_STEP),
    "in the exchange": (LeafSteps, "_share_buffers", "before", FATAL_STEP),
    "before the vote": (Training, "_vote", "before", FATAL_STEP),
    "after the vote": (Training, "_vote", "after", FATAL_STEP),
    "in apply": (Training, "step_optimizer", "before", FATAL_STEP),
    "after the step": (Training, "_commit", "after", FATAL_STEP),
    "as it leaves": (Member, "leave", "before", None),
    "before it is here": (Worlds, "gather", "before", None),
    "between here and the group": (Worlds, "gather", "after", None),
    "before it says where it is": (Training, "_exchange", "before", None),
    "after it has said so": (Training, "_exchange", "after", None),
    "as it sends the state": (state, "send", "before", None),
    "as it has the state": (state, "receive", "after", None),
    "before the leaves are dealt": (Training, "_deal_out", "before", None),
    "before it examines": (Training, "_digest_of_leaf", "before", None),
    "after its exam": (Training, "_digest_of_leaf", "after", None),
    "before the last barrier": (dist, "barrier", "before", None),
    "after the last barrier": (dist, "barrier", "after", None),
}
POINTS_OF_SHARDS = {
    "as it has stepped": (native, "run", "after", FATAL_STEP),
    "before the gradients are shared": (ringdp.ZeroOptimizer, "share_gradients", "before", FATAL_STEP),
    "as they are shared": (ringdp.ZeroOptimizer, "share_gradients", "after", FATAL_STEP),
    "before it gathers": (ringdp.ZeroOptimizer, "gather", "before", FATAL_STEP),
    "as it has gathered": (ringdp.ZeroOptimizer, "gather", "after", FATAL_STEP),
    "before shards are cut": (ringdp.ZeroOptimizer, "regroup", "before", None),
    "before it takes its new shard": (ringdp.ZeroOptimizer, "_take_prepared", "before", None),
    "as it has taken it": (ringdp.ZeroOptimizer, "_take_prepared", "after", None),
}
SHARDS_IN_A_STEP = [name for name, (*_, step) in POINTS_OF_SHARDS.items() if step is not None]
CUTTING = [name for name, (*_, step) in POINTS_OF_SHARDS.items() if step is None]
IN_A_STEP = [name for name, (*_, step) in POINTS.items() if step is not None]
AT_THE_END = [name for name in POINTS if "last barrier" in name]
OF_NEWCOMERS = ("receive", "_digest_of_leaf")  # calls in which one may die before its first step
BETWEEN_WORLDS = [name for name in POINTS if name not in (*IN_A_STEP, *AT_THE_END)]


def arrange_death(owner: Any, name: str, when: str, step: int | None) -> None:
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        fatal = running_step == step or (step is None and (running_step >= 0 or name in OF_NEWCOMERS))
        if fatal and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)


class Job:
    """Members that train: the first ones are the ranks of one World, each newcomer that of another."""

    def __init__(
        self, ranks: int, make: Callable[..., World], hosts: Sequence[int] = (), timeout_s: float = 60.0
    ) -> None:
        """hosts: of the first members, if there are several; all are on this machine. timeout_s: of process groups."""
        self.make, self.first, self.timeout_s = make, make(ranks), timeout_s
        self.first.join(timeout_s)
        self.port = self.first.store.port
        self.worlds = Worlds(dist.TCPStore("127.0.0.1", self.port, is_master=False, timeout=timedelta(seconds=30)))
        self.worlds.begin(range(ranks), min_ranks=1, hosts=hosts)
        self.host_of = dict(enumerate(hosts or [0] * ranks))
        self.memory = {host: os.fdopen(os.memfd_create("kept"), "r+b") for host in self.host_of.values()}
        for host, file in self.memory.items():
            self.worlds.lend_memory(f"/proc/{os.getpid()}/fd/{file.fileno()}", host)
        self.place = {member: (self.first, member) for member in range(ranks)}
        self.joined = set(self.place)
        self.outcomes: dict[int, Outcome] = {}  # of those that have not been killed
        self.stage, self.shards = 0, "auto"

    def add(self, host: int = 0) -> int:
        """A newcomer; its number."""
        member, world = len(self.place), self.make(1)
        world.join(self.timeout_s)
        self.place[member] = (world, 0)
        self.host_of[member] = host
        return member

    def begin(
        self, call: Callable[..., Any] | None = None, *given: Any, point: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """call(member, port, *given) on every member; by default train(), where these members die at these points."""
        has_newcomers = len(self.place) > self.first.size
        for member, (world, rank) in self.place.items():
            is_first = world is self.first
            if not is_first:
                self.first.store.wait(["began"])
            own = given if call else (point.get(member, ""), has_newcomers and is_first, self.stage, self.shards)
            world.begin(call or train, member, self.port, *own, ranks=[rank])

    def wait(self, limit_s: float = 60.0) -> list[Outcome]:
        """Publishes worlds until all are done or dead; what those that were not killed have to say."""
        until, running = time.monotonic() + limit_s, set(self.place)
        asking: set[int] = set()
        while running:
            assert time.monotonic() < until, f"members {sorted(running)} are not done: {self.worlds.current()}"
            asked = [request for host in self.memory for request in self.worlds.requests(host)]
            for request in asked:
                if request.what == "replace" and request.member in running:
                    world, rank = self.place[request.member]
                    world.kill(rank)
            asking |= {request.member for request in asked if request.what == "join"}
            came = asking & running - self.joined
            gone = {member for member in running if self._is_gone(member)}
            running -= gone | set(self.outcomes)
            self.joined = (self.joined | came) - gone
            for host in {self.host_of[member] for member in came | gone}:
                self.worlds.publish(sorted(m for m in self.joined if self.host_of[m] == host), host)
            if asking and asking | self.joined >= set(self.place):
                self.first.store.set("newcomers", "")
            time.sleep(0.002)
        return [self.outcomes[member] for member in sorted(self.outcomes)]

    def _is_gone(self, member: int) -> bool:
        """It was killed, or has failed, which ends the process of a program."""
        world, rank = self.place[member]
        if not world.has_answered(rank):
            return False
        try:
            (self.outcomes[member],) = world.finish([rank])
        except AssertionError:
            assert world.status(rank) == -signal.SIGKILL
            return True
        return bool(self.outcomes[member].error)


def check(outcomes: list[Outcome], undisturbed: str, survivors: int) -> list[list[Any]]:
    """That all have these bits; the recoveries of each."""
    values = values_of(outcomes)
    assert [value for value, _ in values] == [undisturbed] * survivors
    return [recoveries for _, recoveries in values]
