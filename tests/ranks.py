"""Real rank processes for tests: forked off a warm interpreter, told what to call, killed, stopped, always reaped.

    with World(4, transport="tcp") as world:
        world.join()                          # init_process_group("ringdp") on every rank
        outcomes = world.run(function, 1, 2)  # function(1, 2) on every rank

A function of the test's file is found there by name, so it must be at the top level. The store is served by the
test's process: killing rank 0 takes the rank away, not the store. Times are CLOCK_MONOTONIC, one for all processes.

KeptWorlds keeps joined worlds for the tests of one process, because a rank takes long to start and to join. What the
ranks of one are to do is a test by itself:

    @on_ranks(3, True, transport="tcp")   # called on every rank; must return True on each
    def test_ranks_have_numbers() -> bool:
        return dist.get_rank() == HERE.rank
"""

from __future__ import annotations

import faulthandler
import importlib.util
import inspect
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, wraps
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

LIMIT_S = float(os.environ.get("RANKS_LIMIT_S", 60))  # of a call on ranks; less where a hang must be cheap
# For each rank of a world to make its context on a GPU, one after another, when it joins. 0: that is done when needed.
CONTEXT_S = float(os.environ.get("RANKS_CONTEXT_S", 0))
WRITE_STACK = signal.SIGUSR2  # a rank writes the Python stacks of its threads to stderr, whatever it waits for
# Between the end of its pipe and the killing of a rank; one that is measured has to write what it has run.
GRACE_S = 60.0 if "COVERAGE_PROCESS_START" in os.environ else 0.05
KILLED_S = 2.0  # for killed ranks to be gone, all together: a driver may hold one for longer
spawner = multiprocessing.get_context("forkserver")
# What takes a rank long to import; torch's compiler is loaded by the wrapper.
_preloaded = ["torch.distributed", "torch._dynamo.utils", "numpy", "pytest", "ringdp.backend", "ringdp.ddp.wrapper"]
_preloaded += ["ringdp.zero.optimizer", "ringdp.checkpoint", "ringdp.tools.feed.audit", __name__]
spawner.set_forkserver_preload(_preloaded)


@dataclass
class Outcome:
    """What a call did on one rank: its value, or its error as 'Type: message'; when it began and ended."""

    rank: int
    value: Any = None
    error: str = ""
    trace: str = ""
    began: float = 0.0
    ended: float = 0.0


class World:
    """N rank processes with one pipe each. `settings` become RINGDP_ variables of the ranks."""

    def __init__(self, size: int, **settings: object) -> None:
        self.size = size
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        variables = {f"RINGDP_{name.upper()}": str(value) for name, value in settings.items()}
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            mine, theirs = spawner.Pipe()
            arguments = (theirs, rank, size, self.store.port, variables, str(self._stderr_of(rank)))
            process = spawner.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        open_worlds.add(self)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every rank, whatever state it is in."""
        for pipe in self._pipes:
            pipe.close()
        deadline = time.monotonic() + GRACE_S  # for all together
        running = [process.sentinel for process in self._processes]
        while running and (ended := wait(running, max(0.0, deadline - time.monotonic()))):
            running = [sentinel for sentinel in running if sentinel not in ended]
        for process in self._processes:
            process.kill()  # nothing if it has ended
        deadline = time.monotonic() + KILLED_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        open_worlds.discard(self)
        self.folder.cleanup()

    def is_alive(self) -> bool:
        """Whether no rank has ended."""
        return all(process.is_alive() for process in self._processes)

    def has_answered(self, rank: int) -> bool:
        """Whether it has done what was begun, or has ended."""
        return self._pipes[rank].poll(0)

    def status(self, rank: int, within: float = LIMIT_S) -> int | None:
        """How its process has ended; None while it goes on."""
        self._processes[rank].join(within)
        return self._processes[rank].exitcode

    def _stderr_of(self, rank: int) -> Path:
        return Path(self.folder.name) / f"stderr-{rank}"

    def stderr(self, rank: int) -> str:
        """All that this rank has written to stderr."""
        file = self._stderr_of(rank)
        return file.read_text(errors="replace") if file.exists() else ""

    def pid(self, rank: int) -> int:
        return self._processes[rank].pid

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Sends a signal; when."""
        now = time.monotonic()
        os.kill(self.pid(rank), number)
        return now

    def kill(self, rank: int) -> float:
        return self.signal(rank, signal.SIGKILL)

    def begin(self, function: Callable[..., Any], *args: Any, ranks: Iterable[int] | None = None) -> None:
        """Starts the call on these ranks (default: all) and does not wait."""
        for rank in range(self.size) if ranks is None else ranks:
            self._pipes[rank].send((inspect.getsourcefile(function), function.__name__, args))

    def finish(self, ranks: Iterable[int] | None = None, within: float = LIMIT_S) -> list[Outcome]:
        """The outcomes of the calls begun on these ranks. TimeoutError names a rank that has none."""
        deadline = time.monotonic() + within
        outcomes = []
        for rank in range(self.size) if ranks is None else ranks:
            if not self._pipes[rank].poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"rank {rank} is not done after {within} s; {self._where_ranks_are()}")
            outcomes.append(self._outcome_of(rank))
        return outcomes

    def _where_ranks_are(self) -> str:
        """What each rank has written to stderr; those that are still busy write their Python stacks first."""
        for rank, process in enumerate(self._processes):
            if not self.has_answered(rank) and process.is_alive():
                self.signal(rank, WRITE_STACK)
        time.sleep(0.2)
        return "".join(f"\nrank {rank}: {self.stderr(rank)[-3000:]}" for rank in range(self.size))

    def _outcome_of(self, rank: int) -> Outcome:
        try:
            return self._pipes[rank].recv()
        except EOFError:
            self._processes[rank].join(5)
            status = self._processes[rank].exitcode
            raise AssertionError(f"rank {rank} died with status {status}: {self.stderr(rank)[-2000:]}") from None

    def attempt(
        self, function: Callable[..., Any], *args: Any, ranks: Iterable[int] | None = None, within: float = LIMIT_S
    ) -> list[Outcome]:
        """Calls on these ranks, failures included."""
        chosen = list(range(self.size) if ranks is None else ranks)
        self.begin(function, *args, ranks=chosen)
        return self.finish(chosen, within)

    def run(self, function: Callable[..., Any], *args: Any, ranks: Iterable[int] | None = None) -> list[Any]:
        """Calls on these ranks; their values. AssertionError with the first traceback when one failed."""
        return values_of(self.attempt(function, *args, ranks=ranks))

    def join(self, timeout_s: float = 60.0, **options: object) -> None:
        """init_process_group on every rank; `options` become pg_options."""
        values_of(self.attempt(join, timeout_s, options, within=LIMIT_S + CONTEXT_S * self.size))

    def leave(self) -> list[float]:
        """destroy_process_group on every rank; how many seconds it took each."""
        return self.run(leave)


open_worlds: set[World] = set()


def error_of(call: Callable[..., object], *arguments: object, kind: Any = RuntimeError) -> str:
    """What it fails with, an error of this kind or of several; "" where it does not."""
    try:
        call(*arguments)
    except kind as error:
        return str(error)
    return ""


def on_ranks(
    ranks: int, gives: Any = None, *, error: str | tuple[str, ...] = (), **settings: object
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Makes a function a test that calls it on every rank of a kept world: each must return `gives`.

    error: instead, each must fail with these words. settings: of the world. Parameters of the function are pytest's:
    fixtures, or those of a parametrize above.
    """

    def as_test(function: Callable[..., Any]) -> Callable[..., None]:
        own = inspect.signature(function).parameters

        @wraps(function)
        def test(world_of: Callable[..., World], **given: Any) -> None:
            outcomes = world_of(ranks, **settings).attempt(function, *(given[name] for name in own))
            if error:
                words = (error,) if isinstance(error, str) else error
                failed = [all(word in outcome.error for word in words) for outcome in outcomes]
                assert all(failed), f"the errors of the ranks: {[outcome.error for outcome in outcomes]}"
            else:
                values = values_of(outcomes)
                assert values == [gives] * ranks, f"by rank {values}, must be {gives!r} on each"

        fixture = inspect.Parameter("world_of", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([fixture, *own.values()])
        return test

    return as_test


def values_of(outcomes: list[Outcome]) -> list[Any]:
    """The values; AssertionError with the first traceback when one failed."""
    for outcome in outcomes:
        assert not outcome.error, f"rank {outcome.rank}: {outcome.trace}"
    return [outcome.value for outcome in outcomes]


@dataclass
class Here:
    """What a rank knows about itself."""

    rank: int
    size: int
    port: int


HERE = Here(-1, 0, 0)


@cache
def job_store() -> dist.Store:
    """On a rank: its one connection to world.store; torch's store now and then lets a new one wait for seconds."""
    return dist.TCPStore("127.0.0.1", HERE.port, is_master=False)


def tell(key: str) -> None:
    """On a rank: what the test waits for with world.store.wait([key])."""
    job_store().set(key, "")


def join(timeout_s: float, options: dict[str, object]) -> None:
    """On a rank: makes the default group."""
    if CONTEXT_S and torch.cuda.is_available():
        torch.zeros(1, device="cuda")
    dist.init_process_group(
        "ringdp",
        store=dist.TCPStore("127.0.0.1", HERE.port, is_master=False, timeout=timedelta(seconds=30)),
        rank=HERE.rank,
        world_size=HERE.size,
        timeout=timedelta(seconds=timeout_s),
        pg_options=options or None,
    )


def leave() -> float:
    """On a rank: ends the default group; how long it took."""
    start = time.monotonic()
    dist.destroy_process_group()
    return time.monotonic() - start


def _serve(pipe: Connection, rank: int, size: int, port: int, variables: dict[str, str], stderr: str) -> None:
    """A rank's life: calls come by the pipe until it closes."""
    with open(stderr, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 2)
    faulthandler.register(WRITE_STACK, file=2)
    for name in [n for n in os.environ if n.startswith("RINGDP_")]:
        del os.environ[name]
    os.environ.update(variables)
    multiprocessing.set_start_method(None, force=True)  # as in a rank of torchrun; the forkserver's is inherited
    import ringdp

    ringdp.register()
    _module_at(__file__).HERE = Here(rank, size, port)
    while True:
        try:
            path, name, args = pipe.recv()
        except EOFError:
            os._exit(0)
        torch.set_num_threads(1)  # at each call, as what ran before may have changed it: Lightning's Trainer does
        pipe.send(_attempt(rank, path, name, args))


def _attempt(rank: int, path: str, name: str, args: tuple[Any, ...]) -> Outcome:
    outcome = Outcome(rank)
    try:
        function = inspect.unwrap(getattr(_module_at(path), name))  # what on_ranks() has made a test
        outcome.began = time.monotonic()
        outcome.value = function(*args)
    except Exception as error:
        outcome.ended = time.monotonic()
        outcome.error = f"{type(error).__name__}: {error}"
        outcome.trace = traceback.format_exc()
    outcome.ended = outcome.ended or time.monotonic()
    return outcome


@cache
def _module_at(path: str) -> ModuleType:
    """The module of a file, loaded once; this one is known already."""
    if Path(path) == Path(__file__):
        return sys.modules[__name__]
    name = "_".join(Path(path).with_suffix("").parts[-4:])  # files of several folders have the same last part
    spec = importlib.util.spec_from_file_location(f"on_rank_{name}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


BACKENDS = ("ringdp", "gloo")
_gloo: list[dist.ProcessGroup] = []


def group_of(backend: str) -> dist.ProcessGroup:
    """On a joined rank: all ranks, over ringdp or over gloo; the same group at every call."""
    if backend == "ringdp":
        return dist.group.WORLD
    if not _gloo:
        _gloo.append(dist.new_group(range(HERE.size), backend="gloo"))
    return _gloo[0]


KEPT = 8  # worlds: each rank is a process, with descriptors here, memory and threads that look around


class KeptWorlds:
    """worlds(3, transport="tcp"): a joined world, the same for the same arguments, unless 8 others came since."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], World] = {}  # the latest last
        self._used: set[tuple[object, ...]] = set()
        self._kind = ""

    def __call__(self, size: int, **settings: object) -> World:
        """Joined, all its ranks alive, none of its tests failed."""
        key = (self._kind, size, *sorted(settings.items()))
        self._used.add(key)
        if key in self._known and not self._known[key].is_alive():
            self._drop(key)
        if key not in self._known:
            if len(self._known) == KEPT:
                self._drop(next(iter(self._known)))
            world = World(size, **settings)
            try:
                world.join()
            except BaseException:
                world.close()
                raise
            self._known[key] = world
        self._known[key] = self._known.pop(key)
        return self._known[key]

    def begin_test(self, kind: str) -> None:
        """Worlds of one kind are not handed to tests of another: they do to their ranks what stays."""
        self._kind = kind
        self._used.clear()

    def is_idle(self, world: World) -> bool:
        """Whether it is kept here and the test does not use it."""
        return any(known is world and key not in self._used for key, known in self._known.items())

    def drop_used(self) -> None:
        """The test has failed: the state of its ranks is unknown, and the next test must not suffer for it."""
        for key in self._used & self._known.keys():
            self._drop(key)

    def close(self) -> None:
        """Ends all."""
        for key in list(self._known):
            self._drop(key)

    def _drop(self, key: tuple[object, ...]) -> None:
        self._known.pop(key).close()
