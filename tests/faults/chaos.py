"""A life of ranks in which one fault strikes one of them in one phase: drawn from a seed, lived on the ranks.

    life = Life.drawn(17)      # prints as what will happen
    world.run(live, 17, ...)   # on every rank; the victim arms the fault once all are in the phase

The fault comes at the victim's n-th call of a Python function, at its n-th call of the store, or after some time,
wherever the process is then.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import ringdp
import torch
import torch.distributed as dist
from calls import Before, broadcast, expect, gathered, moved, of_rank, reduced, scattered, sent, signal_after
from forked import end_interpreter
from ranks import HERE
from ringdp.testing import one_process
from torch import nn

TIMEOUT_S = 3.0
STEPS = 4
STATUS = 3  # the exit status of a victim that exits
ANOTHER_USER = 65534  # ranks of two users share no memory: as if on two hosts
FAULTS = ("kill", "stop", "pause", "term", "raise", "exit", "_exit", "cut")
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "pause": signal.SIGSTOP, "term": signal.SIGTERM}
TRANSPORTS = {"shm": 4, "tcp": 4, "hosts": 2}  # how often each is drawn
STORED = ("init", "new_group")  # split_group takes the store of torch alone
ON_DISK = ("save", "save_async", "load")
SPANS_S = {"init": 0.06, "destroy": 0.01, "exit": 0.02}  # how long a phase takes; others: 0.04

Phase = Iterator[None]  # up to its yield all ranks get ready, behind it the fault strikes


class OnPurpose(Exception):
    """What a rank raises."""


@dataclass(frozen=True)
class Life:
    """What happens to which rank in which phase. moment: the n-th call, or seconds. tidy: it ends its groups first."""

    seed: int
    size: int
    transport: str
    phase: str
    victim: int
    fault: str
    trigger: str
    moment: float
    tidy: bool

    @classmethod
    def drawn(cls, seed: int) -> Life:
        draw = random.Random(seed)
        family = draw.choice(list(PHASES))
        phase = draw.choice(list(PHASES[family]))
        fault = draw.choice([fault for fault in FAULTS if family != "init" or fault != "cut"])
        transports = [name for name in TRANSPORTS if name != "hosts" or (family not in ON_DISK and _has_another_user())]
        transport = draw.choices(transports, [TRANSPORTS[name] for name in transports])[0]
        size = draw.randint(2, 4)
        store = ["store"] if family in STORED and fault in (*SIGNALS, "_exit") else []
        trigger = draw.choice(["time", "calls", *store])
        moments = {
            "time": draw.uniform(0, SPANS_S.get(family, 0.04)),
            "calls": int(math.exp(draw.uniform(0, math.log(2000)))),
            "store": draw.randint(1, 12),
        }
        victim = draw.randrange(size)
        return cls(seed, size, transport, phase, victim, fault, trigger, moments[trigger], draw.random() < 0.5)

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the ranks."""
        if self.transport == "hosts":
            return {"transport": "auto", "socket_ifname": "lo", "tune": "off"}  # the tuned settings are not that user's
        return {"transport": self.transport}


@dataclass
class Lived:
    """What a rank says of a life: what it was told and when, or nothing; which checkpoints were complete."""

    error: str = ""
    at: float = 0.0
    saved: int = 0


def _has_another_user() -> bool:
    """Whether ranks can become one, who can read their modules."""
    folders = Path(__file__).resolve().parents
    return os.geteuid() == 0 and all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)


def live(seed: int, wanted: list[str], folder: str) -> tuple[str, float, int]:
    """On a rank: the life of this seed; the fields of a Lived. wanted: digests of the parameters after each step.

    AssertionError on a wrong number.
    """
    life, lived = Life.drawn(seed), Lived()
    strike = Strike(life)
    if life.transport == "hosts" and HERE.rank >= life.size // 2:
        os.seteuid(ANOTHER_USER)
    phase = phase_of(life.phase)(RankContext(life, strike, wanted, Path(folder), lived))
    try:
        next(phase)
        if HERE.rank == life.victim:
            strike.arm()
        next(phase, None)
        strike.disarm()
        leave()
    except (OnPurpose, SystemExit) as end:
        strike.disarm()
        if life.tidy:
            leave()
        end_interpreter(STATUS if isinstance(end, SystemExit) else 1)
    except AssertionError:
        raise
    except Exception as error:
        strike.disarm()
        lived.error, lived.at = f"{type(error).__name__}: {error}", time.monotonic()
        leave()
    return astuple(lived)


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class Strike:
    """The fault of a life, on its victim. What it does it says on stderr, which the test reads: it may not live on."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self._calls = 0
        self._armed = False
        self._cancel: Callable[[], None] = lambda: None
        self._spared: set[int] = set()

    def arm(self) -> None:
        life = self.life
        self._armed = True
        if life.trigger == "calls":
            sys.setprofile(self._count)
        elif life.trigger == "time" and life.fault in SIGNALS:
            self._say(time.monotonic() + life.moment)
            self._cancel = signal_after(SIGNALS[life.fault], life.moment)
        elif life.trigger == "time":
            signal.signal(signal.SIGALRM, self._strike)
            signal.setitimer(signal.ITIMER_REAL, life.moment)

    def disarm(self) -> None:
        """Also where it was not armed."""
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._armed = False
        self._cancel()

    def count_store_call(self) -> None:
        if self._armed and self.life.trigger == "store":
            self._count(None, "call", None)

    def spare(self) -> None:
        """Sockets that are open by now are not the groups'."""
        self._spared = sockets()

    def _count(self, _frame: object, event: str, _arg: object) -> None:
        if "call" not in event:
            return
        self._calls += 1
        if self._calls == self.life.moment:
            self._strike()

    def _strike(self, *_: object) -> None:
        if not self._armed:
            return
        self._armed = False
        sys.setprofile(None)
        self._say(time.monotonic())
        fault = self.life.fault
        if fault in SIGNALS:
            os.kill(os.getpid(), SIGNALS[fault])
        elif fault == "_exit":
            os._exit(STATUS)
        elif fault == "exit":
            sys.exit(STATUS)
        elif fault == "cut":
            for descriptor in sockets() - self._spared:
                cut(descriptor)
        else:
            raise OnPurpose("on purpose")

    def _say(self, at: float) -> None:
        os.write(2, f"struck at {at}\n".encode())


def sockets() -> set[int]:
    """Descriptors of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.add(int(name))
        except OSError:
            continue  # the listing's own
    return found


def cut(descriptor: int) -> None:
    """As if the network had ended a connection."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as end:
            end.getpeername()
            end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # closed meanwhile, or it listens


class Counted(Before):
    """The job's store; the victim's calls of it are counted."""

    def __init__(self, store: dist.Store, strike: Strike) -> None:
        super().__init__(store)
        self.strike = strike

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=60)) -> None:
        self.strike.count_store_call()
        super().wait(keys, timeout)

    def get(self, key: str) -> bytes:
        self.strike.count_store_call()
        return super().get(key)

    def set(self, key: str, value: bytes) -> None:
        self.strike.count_store_call()
        super().set(key, value)

    def add(self, key: str, amount: int) -> int:
        self.strike.count_store_call()
        return super().add(key, amount)

    def check(self, keys: list[str]) -> bool:
        self.strike.count_store_call()
        return super().check(keys)


@dataclass
class RankContext:
    """What a phase needs."""

    life: Life
    strike: Strike
    wanted: list[str]
    folder: Path
    lived: Lived

    def join(self) -> None:
        store: dist.Store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False, timeout=timedelta(seconds=30))
        if self.life.trigger == "store":
            store = Counted(store, self.strike)
        self.strike.spare()
        self.store = store  # torch keeps the half that is in C++ only
        timeout = timedelta(seconds=TIMEOUT_S)
        dist.init_process_group("ringdp", store=store, rank=HERE.rank, world_size=HERE.size, timeout=timeout)

    def meet(self) -> None:
        self.join()
        dist.barrier()


def init(context: RankContext) -> Phase:
    yield
    context.join()
    reduced(2500)


def new_group(context: RankContext) -> Phase:
    context.meet()
    yield
    for _ in range(4):
        group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
        sum_over(range(HERE.size), group)
        dist.destroy_process_group(group)


def split_group(context: RankContext) -> Phase:
    context.meet()
    yield
    for number in range(4):
        all_ranks = list(range(HERE.size))
        part = dist.group.WORLD.split_group(all_ranks, timedelta(seconds=TIMEOUT_S), None, f"split {number}")
        own = of_rank(HERE.rank, 2500)
        part.allreduce([own]).wait()
        expect(own, sum(of_rank(rank, 2500) for rank in all_ranks))


def subgroup(context: RankContext) -> Phase:
    """All but one rank; that one goes on to the next collective of all."""
    context.meet()
    members = [rank for rank in range(HERE.size) if HERE.size == 2 or rank != (context.life.victim + 1) % HERE.size]
    group = dist.new_group(members, timeout=timedelta(seconds=TIMEOUT_S))
    dist.barrier()
    yield
    for _ in range(100):
        if HERE.rank in members:
            sum_over(members, group)
    reduced(3)


def sum_over(members: list[int] | range, group: dist.ProcessGroup) -> None:
    own = of_rank(HERE.rank, 2500)
    dist.all_reduce(own, group=group)
    expect(own, sum(of_rank(rank, 2500) for rank in members))


def calls(context: RankContext, call: Callable[[int], None], elements: int) -> Phase:
    context.meet()
    yield
    for _ in range(20 if elements > 10_000 else 150):
        call(elements)


def in_heap(elements: int) -> None:
    """A sum in memory that all ranks share, where there is some."""
    own = (ringdp.empty if os.environ["RINGDP_TRANSPORT"] == "shm" else torch.empty)(elements)
    own.copy_(of_rank(HERE.rank, elements))
    dist.all_reduce(own)
    expect(own, sum(of_rank(rank, elements) for rank in range(HERE.size)))


def barrier(_: int) -> None:
    dist.barrier()


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def loss_of(module: nn.Module, rank: int, step: int, _micro: int = 0) -> torch.Tensor:
    batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))
    return module(batch).square().mean()


def optimizer_for(parameters: Iterator[nn.Parameter], stage: int) -> torch.optim.Optimizer:
    if stage == 0:
        return torch.optim.AdamW(parameters, lr=0.01)
    return ringdp.ZeroOptimizer(parameters, torch.optim.AdamW, lr=0.01)


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """A hash of names and bits."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode() + tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@cache
def in_one_process(ranks: int) -> list[str]:
    """The digests of the parameters after each step."""
    alone, digests = model(), []
    one_process(
        alone,
        optimizer_for(alone.parameters(), 0),
        loss_of,
        ranks=ranks,
        steps=STEPS + 1,
        on_gradients=lambda step: digests.append(digest(dict(alone.named_parameters()))),
    )
    return digests[1:]


class Training:
    """The same on the ranks. Collective: all of it."""

    def __init__(self, context: RankContext, stage: int, **modes: bool) -> None:
        self.ddp = ringdp.DistributedDataParallel(model(), zero_stage=stage, bucket_cap_mb=0.0005, **modes)
        self.optimizer = optimizer_for(self.ddp.parameters(), stage)
        self.done = 0
        self._context = context

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss_of(self.ddp, HERE.rank, self.done).backward()
        self.optimizer.step()
        self.done += 1
        self.check()

    def check(self) -> None:
        assert digest(self.ddp.full_state_dict()) == self._context.wanted[self.done - 1], "a wrong number"

    def save(self) -> None:
        ringdp.checkpoint.save(self._context.folder, self.ddp, self.optimizer, extra=self.done)
        self._context.lived.saved = self.done

    def load(self) -> None:
        self.done = ringdp.checkpoint.load(self._context.folder, self.ddp, self.optimizer).extra
        self.check()


def training(context: RankContext, stage: int, **modes: bool) -> Phase:
    context.join()
    trained = Training(context, stage, **modes)
    dist.barrier()
    yield
    for _ in range(STEPS):
        trained.step()


def save(context: RankContext, stage: int) -> Phase:
    context.join()
    trained = Training(context, stage)
    trained.step()
    trained.save()
    dist.barrier()
    yield
    for _ in range(STEPS - 1):
        trained.step()
        trained.save()


def save_async(context: RankContext, stage: int) -> Phase:
    context.join()
    trained = Training(context, stage)
    trained.step()
    trained.save()
    dist.barrier()
    yield
    for _ in range(STEPS - 1):
        saved = trained.done
        pending = ringdp.checkpoint.save_async(context.folder, trained.ddp, trained.optimizer, extra=saved)
        trained.step()
        pending.wait()
        context.lived.saved = saved


def load(context: RankContext, stage: int) -> Phase:
    context.join()
    trained = Training(context, stage)
    trained.step()
    trained.save()
    dist.barrier()
    yield
    for _ in range(2):
        trained.step()
        trained.load()
    trained.step()


def state_dict(context: RankContext, stage: int) -> Phase:
    context.join()
    trained = Training(context, stage)
    trained.step()
    dist.barrier()
    yield
    for _ in range(10):
        trained.check()
        if isinstance(trained.optimizer, ringdp.ZeroOptimizer):
            trained.optimizer.consolidate_state_dict()


def destroy(context: RankContext) -> Phase:
    context.meet()
    reduced(2500)
    yield
    leave()


def exit_(context: RankContext) -> Phase:
    """Without destroy_process_group, as scripts do."""
    context.meet()
    reduced(2500)
    yield
    end_interpreter(0)


SIZES = (3, 2500, 200_000)
COLLECTIVES = (reduced, in_heap, gathered, moved, scattered, broadcast)
Phases = dict[str, Callable[[RankContext], Phase]]


def at_stages(name: str, phase: Callable[..., Phase], stages: range = range(4), **modes: bool) -> Phases:
    return {f"{name}, stage {stage}": partial(phase, stage=stage, **modes) for stage in stages}


def of_sizes(*functions: Callable[[int], None]) -> Phases:
    return {f"{f.__name__} {n}": partial(calls, call=f, elements=n) for f in functions for n in SIZES}


# By family, each of which is drawn as often.
PHASES: dict[str, Phases] = {
    "init": {"init": init},
    "new_group": {"new_group": new_group},
    "split_group": {"split_group": split_group},
    "subgroup": {"subgroup": subgroup},
    "collective": of_sizes(*COLLECTIVES),
    "message": of_sizes(sent),
    "barrier": {"barrier": partial(calls, call=barrier, elements=0)},
    "ddp": at_stages("ddp", training),
    "blocking": at_stages("ddp without overlap", training, overlap=False),
    "drift": at_stages("ddp with check_drift", training, range(3), check_drift=True),
    "save": at_stages("save", save),
    "save_async": at_stages("save_async", save_async),
    "load": at_stages("load", load),
    "state_dict": at_stages("state_dict", state_dict),
    "destroy": {"destroy": destroy},
    "exit": {"exit": exit_},
}


def phase_of(name: str) -> Callable[..., Any]:
    return next(phases[name] for phases in PHASES.values() if name in phases)
