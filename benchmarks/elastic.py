#!/usr/bin/env python3
"""What the death of a rank costs, and what being ready for it does.

    python benchmarks/elastic.py deaths                              # ringdp.elastic.survive: 20 SIGKILLs of 4 ranks
    python benchmarks/elastic.py deaths --systems all --torchft-python VENV/bin/python
    python benchmarks/elastic.py price --ranks 2                     # no fault: survive() and a plain loop, by turns
    python benchmarks/elastic.py price --ranks 2 --stage 1 --shards copies
    python benchmarks/elastic.py shares                              # rank 0 takes 3.3 times as long for its samples
    python benchmarks/elastic.py hosts --ranks 8 --host-timeout 0.5  # one of four hosts vanishes (needs root)

deaths, the same model and samples under each system:
    standstill  the longest time after a SIGKILL in which no rank applies a step, less the median step: median, the
                99th percentile, the longest
    pause       when a rank joins: the longest interval between two steps applied there, less the median step
    lost        samples of steps that were not applied and are not repeated
hosts: the standstill of the others, the longest of each rank, when all packets of the last host are lost
systems of deaths:
    ringdp      `ringdp run --min-ranks 1`
    restart     torchrun --max-restarts, stock DDP over gloo, a checkpoint after each step
    torchft     one rank per replica group, over gloo, the lighthouse's heartbeat timeout at its default of 5 s
    torchft-1s  ... at 1 s: the least at which it does not take living ranks for dead
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from elastic_rank import Job
from runner.hosts import Hosts
from runner.job import PORT
from runner.program import Bar, Chart, add_outputs, check_least, check_outputs, head, names, publish
from runner.session import free_port

RANK = str(Path(__file__).resolve().parent / "elastic_rank.py")
LIMIT_S = 1200  # of a run that ends by itself
COMES_BACK_S = 120
HEARTBEAT_MS = {"torchft": 5000, "torchft-1s": 1000}
SYSTEMS = ("ringdp", "restart", *HEARTBEAT_MS)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("deaths", "price", "shares", "hosts"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=24, metavar="M")
    parser.add_argument("--width", type=int, default=256, help="of the model")
    parser.add_argument("--systems", type=partial(names, SYSTEMS), default=["ringdp"], help="comma-separated, or all")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--every", type=float, default=2.5, help="seconds between two kills, on average")
    parser.add_argument("--torchft-python", default=sys.executable, metavar="PATH", help="where torchft is installed")
    parser.add_argument("--rounds", type=int, default=20, help="price: pairs of blocks of 20 steps; hosts: losses")
    parser.add_argument("--hosts", type=int, default=4, help="hosts: namespaces")
    parser.add_argument("--host-timeout", type=float, default=0.5, help="hosts: as `ringdp run` takes it (default 0.5)")
    parser.add_argument("--stage", type=int, default=0, choices=range(4), help="of ZeRO, in ringdp")
    parser.add_argument("--shards", default="auto", choices=("auto", "copies"), help="as survive() takes it")
    parser.add_argument("--leaf-ms", type=float, default=2.0, help="shares: of a micro-batch, asleep")
    parser.add_argument("--seed", type=int, default=0, help="of when which rank dies")
    parser.add_argument("--check", action="store_true", help="status 1 when a requirement is not met")
    add_outputs(parser, "rows, settings and machine as JSON", "a bar per row")
    options = parser.parse_args(arguments)
    check_least(parser, options, ranks=2, micro_batches=options.ranks, width=1, kills=1, every=0.1, rounds=2, leaf_ms=0)
    check_least(parser, options, hosts=2, host_timeout=0.1)
    if options.part == "hosts" and options.ranks % options.hosts:
        parser.error(f"{options.ranks} ranks do not divide evenly over {options.hosts} hosts")
    check_outputs(parser, options)
    return options


@dataclass(frozen=True)
class Step:
    """Applied by a process. at: seconds of time.monotonic()."""

    at: float
    ranks: int
    pid: int


@contextmanager
def system(name: str, job: Job, options: argparse.Namespace, kills: int, program: str = "") -> Iterator[Any]:
    """Runs it; yields a function that says whether it is over. RuntimeError where it does not end well."""
    with ExitStack() as stack:
        log = stack.enter_context(open(Path(job.folder) / "log", "w"))
        tail = [RANK, program or name.partition("-")[0], json.dumps(asdict(job))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        start = partial(subprocess.Popen, stdout=log, stderr=log, start_new_session=True)
        ranks = [f"--nproc-per-node={options.ranks}", f"--max-restarts={2 * kills}"]
        if name in HEARTBEAT_MS:
            process = stack.enter_context(_replicas(name, options, start, tail, environment))
        else:
            launcher = ["ringdp", "run", "--min-ranks=1"] if name == "ringdp" else ["torch.distributed.run"]
            if name == "restart":
                # Else torch 2.13's ranks that start again find the addresses of those before them in the shared store.
                environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
            process = start([sys.executable, "-m", *launcher, "--standalone", *ranks, *tail], env=environment)
            stack.callback(_end, process)
        yield lambda: process.poll() is not None
        if process.wait():
            raise RuntimeError(f"{name} ended with status {process.returncode}: {_last_words(job.folder)}")


class _Replicas:
    """The replica groups of torchft, each started again when it dies. As much of Popen as is needed."""

    def __init__(self, start: Callable[[int], subprocess.Popen[bytes]], ranks: int) -> None:
        self._start, self._running = start, [start(rank) for rank in range(ranks)]
        self.returncode: int | None = None

    def poll(self) -> int | None:
        for rank, process in enumerate(self._running):
            if process.poll() is not None and process.returncode != 0:
                self._running[rank] = self._start(rank)
        if any(process.poll() == 0 for process in self._running):
            self.returncode = 0
        return self.returncode

    def wait(self) -> int:
        until = time.monotonic() + LIMIT_S
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        return 1 if self.returncode is None else self.returncode

    def end(self) -> None:
        for process in self._running:
            _end(process)


@contextmanager
def _replicas(
    name: str, options: argparse.Namespace, start: Any, tail: list[str], environment: dict[str, str]
) -> Iterator[_Replicas]:
    port = free_port()
    lighthouse = [str(Path(options.torchft_python).parent / "torchft_lighthouse"), "--bind", f"[::]:{port}"]
    lighthouse += ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "1000"]
    lighthouse += ["--heartbeat_timeout_ms", str(HEARTBEAT_MS[name])]
    environment = {**environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    keeper = start(lighthouse, env=environment)
    environment |= {"TORCHFT_LIGHTHOUSE": f"http://localhost:{port}", "LOCAL_WORLD_SIZE": str(options.ranks)}
    replicas = _Replicas(
        lambda rank: start([options.torchft_python, *tail], env={**environment, "LOCAL_RANK": str(rank)}), options.ranks
    )
    try:
        yield replicas
    finally:
        replicas.end()
        _end(keeper)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_words(folder: str) -> str:
    return (Path(folder) / "log").read_text(errors="replace")[-2000:]


def notes_of(folder: str) -> tuple[list[Step], int]:
    """Steps in the order of time, and the samples that were lost."""
    steps, lost = [], 0
    for path in Path(folder).glob("*.steps"):
        for line in path.read_text().splitlines():
            what, at, *rest = json.loads(line)
            if what == "applied":
                steps.append(Step(at, *rest, int(path.stem)))
            else:
                lost += rest[0]
    return sorted(steps, key=lambda step: step.at), lost


def _wait(seconds: float, is_over: Callable[[], bool]) -> None:
    """Sleeps until then or the end; asks meanwhile, as that starts replicas of torchft again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not is_over():
        time.sleep(0.05)


def kill_ranks(folder: str, options: argparse.Namespace, is_over: Callable[[], bool]) -> list[tuple[float, int]]:
    """SIGKILLs at random moments, never of the last rank that trains; when, and which process."""
    chosen, killed = random.Random(options.seed), []
    steps: list[Step] = []
    until = time.monotonic() + COMES_BACK_S
    while len(killed) < options.kills and not is_over():
        if time.monotonic() > until:
            raise RuntimeError(f"not all ranks have come back within {COMES_BACK_S} s, after {len(killed)} kills")
        has_begun = bool(steps)
        _wait(chosen.uniform(0.5, 1.5) * options.every if has_begun else 0.05, is_over)
        steps = notes_of(folder)[0]
        if not has_begun:
            continue
        dead = {pid for _, pid in killed}
        living = sorted({step.pid for step in steps if step.at > steps[-1].at - 0.5 and step.pid not in dead})
        if len(living) == options.ranks:  # all are back, and train
            pid = chosen.choice(living)
            killed.append((time.monotonic(), pid))
            os.kill(pid, signal.SIGKILL)
            until = time.monotonic() + 2 * options.every + COMES_BACK_S
            print(f"\r{len(killed)} of {options.kills} kills", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return killed


@dataclass(frozen=True)
class Deaths:
    """Seconds; None where there is none. standstill_p99: of at least 100 kills."""

    system: str
    kills: int
    step: float
    standstill: float
    standstill_p99: float | None
    standstill_longest: float
    pause: float | None
    pause_longest: float | None
    lost: int


def deaths_of(name: str, steps: Sequence[Step], lost: int, killed: Sequence[tuple[float, int]]) -> Deaths:
    """What one run under a system gave."""
    step = median(
        b.at - a.at for pid in {s.pid for s in steps} for a, b in pairwise([s for s in steps if s.pid == pid])
    )
    after = []
    for (at, pid), until in zip(killed, [*(at for at, _ in killed[1:]), float("inf")], strict=True):
        others = [s.at for s in steps if s.pid != pid and s.at < until]
        gaps = [b - a for a, b in pairwise(others) if b > at]
        if not gaps:
            raise RuntimeError(f"{name}: no step was applied after the death of process {pid}")
        after.append(max(0.0, max(gaps) - step))
    times = [at for at, _ in killed]
    pauses = []
    for pid in {s.pid for s in steps}:
        own = [s for s in steps if s.pid == pid]
        for number, (a, b) in enumerate(pairwise(own)):
            if b.ranks > a.ranks:  # or one step sooner or later: where a system says that a rank trains differs
                near = own[max(0, number - 1) : number + 3]
                if not any(near[0].at < at < near[-1].at for at in times):
                    pauses.append(max(0.0, max(d.at - c.at for c, d in pairwise(near)) - step))
    p99 = quantiles(after, n=100)[-1] if len(after) >= 100 else None
    pause, longest = (median(pauses), max(pauses)) if pauses else (None, None)
    return Deaths(name, len(after), step, median(after), p99, max(after), pause, longest, lost)


COLUMNS = ("step", "standstill", "p99", "longest", "pause", "longest")


def _job(options: argparse.Namespace, folder: str, steps: int) -> Job:
    of_zero = {"stage": options.stage, "shards": options.shards}
    return Job(folder, steps, options.micro_batches, width=options.width, **of_zero)


def deaths(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Bar], Chart]:
    """Every system, one after the other."""
    rows = []
    print(f"{'system':<12}{'kills':>6}" + "".join(f"{column:>12}" for column in COLUMNS) + f"{'lost':>8}")
    for name in options.systems:
        with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
            job = _job(options, folder, 1_000_000)
            with _cut_off(name, job, options) as is_over:
                killed = kill_ranks(folder, options, is_over)
                _wait(max(15.0, 2 * options.every), is_over)  # so long the slowest takes
                if is_over():
                    raise RuntimeError(f"{name} has ended: {_last_words(folder)}")
            row = deaths_of(name, *notes_of(folder), killed)
        rows.append(row)
        times = (row.step, row.standstill, row.standstill_p99, row.standstill_longest, row.pause, row.pause_longest)
        text = "".join(f"{'-':>12}" if seconds is None else f"{1e3 * seconds:>9.0f} ms" for seconds in times)
        print(f"{row.system:<12}{row.kills:>6}{text}{row.lost:>8}", flush=True)
    bars = [
        Bar("0.15 s / median standstill", 0.15 / max(1e-9, row.standstill), 1) for row in rows if row.system == "ringdp"
    ]
    return [asdict(row) for row in rows], bars, Chart({row.system: 1e3 * row.standstill for row in rows}, "ms")


@contextmanager
def _cut_off(name: str, job: Job, options: argparse.Namespace) -> Iterator[Callable[[], bool]]:
    """A run that is cut off at the end, whose status says nothing."""
    try:
        with system(name, job, options, options.kills) as is_over:
            yield is_over
            raise _Enough
    except _Enough:
        pass


class _Enough(Exception):
    pass


def price(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Bar], Chart]:
    """Steps without a fault."""
    with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
        job = _job(options, folder, 20 * (options.rounds + 1))
        with system("ringdp", job, options, 0, program="price"):
            pass
        ranks = [json.loads((Path(folder) / f"{rank}.seconds").read_text()) for rank in range(options.ranks)]
    block = job.block
    blocks = {
        name: [median(ranks[0][name][at : at + block]) for at in range(block, block * (options.rounds + 1), block)]
        for name in ranks[0]
    }
    ratios = [own / plain for own, plain in zip(blocks["survive"], blocks["plain"], strict=True)]
    low, *_, high = quantiles(ratios, n=10)
    print(
        f"plain {1e3 * median(blocks['plain']):.2f} ms a step, survive() {1e3 * median(blocks['survive']):.2f}; "
        f"ratio {median(ratios):.3f}  [p10 p90: {low:.3f} {high:.3f}]"
    )
    row = {"ratio": median(ratios), "low": low, "high": high, **{name: median(b) for name, b in blocks.items()}}
    return [row], [Bar("plain / survive()", 1 / median(ratios), 1 / 1.01)], Chart(row, "ratio and seconds")


def shares(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Bar], Chart]:
    """One rank is throttled to 30 %."""
    rows = []
    for speed in ("even", "auto"):
        with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
            job = Job(folder, 20 * options.rounds, options.micro_batches, options.leaf_ms, 1 / 0.3, speed, 32)
            with system("ringdp", job, options, 0):
                pass
            steps = notes_of(folder)[0]
        own = [step for step in steps if step.pid == steps[-1].pid]
        seconds = median(b.at - a.at for a, b in pairwise(own[len(own) // 4 :]))
        rows.append({"speed": speed, "step": seconds})
        print(f"speed={speed:<5} {1e3 * seconds:.1f} ms a step", flush=True)
    gain = rows[0]["step"] / rows[1]["step"]
    print(f"auto is {gain:.2f} times as fast")
    return rows, [Bar("even / auto", gain, 1.5)], Chart({row["speed"]: 1e3 * row["step"] for row in rows}, "ms a step")


def hosts(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Bar], Chart]:
    """The last of several hosts vanishes."""
    rows = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
            steps, lost_at = _with_a_loss(options, _job(options, folder, 1_000_000), folder)
        left = options.ranks - options.ranks // options.hosts
        after = [step for step in steps if step.at > lost_at and step.ranks == left]
        own = [[step.at for step in steps if step.pid == pid] for pid in {step.pid for step in after}]
        if len(own) != left:
            raise RuntimeError(f"{len(own)} of {left} ranks have gone on: --host-timeout may be too short here")
        step = median(b - a for times in own for a, b in pairwise(times))
        standstill = max(max(b - a for a, b in pairwise(times) if b > lost_at) for times in own) - step
        rows.append({"standstill": standstill, "step": step})
        print(f"loss {number + 1}: {standstill:.2f} s without a step of {1e3 * step:.0f} ms", flush=True)
    took = [row["standstill"] for row in rows]
    print(f"median {median(took):.2f} s, longest {max(took):.2f}")
    most = 1.0 + options.host_timeout
    return rows, [Bar(f"{most:g} s / longest standstill", most / max(took), 1)], Chart({"ringdp": median(took)}, "s")


def _with_a_loss(options: argparse.Namespace, job: Job, folder: str) -> tuple[list[Step], float]:
    """All steps, and when the last host vanished."""
    with ExitStack() as stack:
        network = stack.enter_context(Hosts(options.hosts, 0.0))
        log = stack.enter_context(open(Path(folder) / "log", "w"))
        command = [sys.executable, "-m", "ringdp", "run", f"--nproc-per-node={options.ranks // options.hosts}"]
        command += ["--min-ranks=1", f"--nnodes={options.hosts}", f"--host-timeout={options.host_timeout}"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={network.addresses[0]}:{PORT}"]
        command += [RANK, "ringdp", json.dumps(asdict(job))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        start = partial(subprocess.Popen, env=environment, stdout=log, stderr=log, start_new_session=True)
        for host in range(options.hosts):
            stack.callback(_end, start(network.command(host, command)))
        _wait_for(lambda: any(step.ranks == options.ranks for step in notes_of(folder)[0]), folder)
        time.sleep(random.uniform(1.0, 1.5))
        network.cut(options.hosts - 1)
        lost_at = time.monotonic()
        goes_on = lost_at + options.host_timeout  # by then steps of the smaller world are not those of before
        _wait_for(lambda: any(s.at > goes_on and s.ranks < options.ranks for s in notes_of(folder)[0]), folder)
        time.sleep(1.0)
        return notes_of(folder)[0], lost_at


def _wait_for(condition: Callable[[], bool], folder: str) -> None:
    until = time.monotonic() + COMES_BACK_S
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"the job does not go on: {_last_words(folder)}")
        time.sleep(0.05)


def main() -> int:
    """The exit status."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwinds, so that no rank stays behind
    title = f"{options.part}, {options.ranks} ranks, {options.micro_batches} micro-batches"
    facts = head(title)
    part = {"deaths": deaths, "price": price, "shares": shares, "hosts": hosts}[options.part]
    try:
        rows, bars, chart = part(options)
    except (RuntimeError, ValueError, OSError) as problem:
        print(f"elastic: {problem}", file=sys.stderr)
        return 1
    return publish(options, title, facts, rows, bars, chart)


if __name__ == "__main__":
    sys.exit(main())
