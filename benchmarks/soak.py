#!/usr/bin/env python3
"""Random collectives for as long as you like, every result compared with a serial oracle, to the bit.

    python benchmarks/soak.py --minutes 10 -n 4

Ops, dtypes, reduce ops, sizes, groups (world, halves, pairs) and sync or async are the same on all ranks. Every rank
draws for itself whether its inputs lie in shared memory, and looks at its descriptors, threads, memory and /dev/shm;
what grows after the first fifth of the run is a failure, and so is one wrong bit. A rank whose batch of calls is not
over after twice the deadline of one shows where it is, and the run ends.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ringdp.selftest.calls import RankContext
from ringdp.selftest.cases import FAMILIES, OPS, Case, cases_of
from ringdp.selftest.oracle import difference, dtype_named, values

BATCH = 20  # calls between two looks at the clock, which is rank 0's
WARM_UP = 0.2  # part of the run after which nothing may grow
SAMPLES = 50
MEMORY_WARM_UP_S = 10.0  # torch maps code and tables at the first use of every kernel
SLACK_KIB = 32 << 10  # the allocator's own
LARGEST = 1 << 17
SHARED = 0.7  # part of the calls for which a rank's inputs lie in shared memory
GROWING = ("descriptors", "threads", "shm")
MEMORY = ("rss_kib", "shared_kib")


@dataclass
class Record:
    """What one rank has seen. A sample: seconds, descriptors, threads, resident KiB of its own and of shared memory,
    entries of /dev/shm.
    """

    rank: int
    calls: int = 0
    checks: int = 0
    ops: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    samples: list[dict[str, float]] = field(default_factory=list)


def sample(seconds: float) -> dict[str, float]:
    """The size of this process now."""
    status = Path("/proc/self/status").read_text()

    def kib(name: str) -> int:
        return int(status.split(f"{name}:")[1].split()[0])

    return {
        "seconds": round(seconds, 1),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "rss_kib": kib("VmRSS") - kib("RssShmem"),
        "shared_kib": kib("RssShmem"),  # segments, in which tensors may lie
        "shm": len(os.listdir("/dev/shm")),
    }


def growth(samples: list[dict[str, float]], seconds: float) -> list[str]:
    """What the run's last part, by its median, has more of than the warm-up ever had: what leaks, stays."""
    until = WARM_UP * seconds
    early = [s for s in samples if s["seconds"] <= until] or samples[:1]
    warm = [s for s in samples if s["seconds"] <= max(until, MEMORY_WARM_UP_S)] or samples[:1]
    limits = {name: max(s[name] for s in early) for name in GROWING}
    limits |= {name: max(s[name] for s in warm) + SLACK_KIB for name in MEMORY}
    late = [s for s in samples if s["seconds"] >= (1 - WARM_UP) * samples[-1]["seconds"]]
    last = {name: median(s[name] for s in late) for name in limits}
    return [f"{name} grew from {limits[name]:g} to {last[name]:g}" for name in limits if last[name] > limits[name]]


def memberships(size: int) -> list[list[int]]:
    """The groups: the world, its halves, pairs of neighbours; each once."""
    ranks = list(range(size))
    halves = [ranks[: size // 2], ranks[size // 2 :]]
    pairs = [ranks[first : first + 2] for first in range(0, size - 1)]
    distinct = dict.fromkeys(tuple(members) for members in [ranks, *halves, *pairs] if len(members) > 1)
    return [list(members) for members in distinct]


class Soak:
    """One rank's run. All ranks draw from equal generators, also for groups they are not in."""

    def __init__(self, rank: int, options: argparse.Namespace) -> None:
        self.record = Record(rank)
        self._draw = random.Random(options.seed)
        self._own_draw = random.Random(f"{options.seed} {rank}")
        self._may_share = options.backend == "ringdp"
        timeout = timedelta(seconds=options.timeout)  # a new group's own is torch's half an hour
        self._groups = [(members, dist.new_group(members, timeout)) for members in memberships(options.ranks)]
        self._cases = [case for case in cases_of(options.ops, 2) if case.meaningful]

    def warm_up(self) -> None:
        """Every operation once in every group, either way: what starts a thread at its first use has done so."""
        one_of_each = {case.op: case for case in self._cases}.values()
        for members, group in self._groups:
            for case, asynchronous in product(one_of_each if self.record.rank in members else (), (False, True)):
                label = f"warm-up {case.op} {asynchronous}"
                seat = RankContext(members.index(self.record.rank), len(members), group, label, asynchronous, False)
                self._check(seat, case, 1000)

    def call(self) -> None:
        """One random case in one random group, checked."""
        draw = self._draw
        members, group = draw.choice(self._groups)
        case = draw.choice(self._cases)
        count = int(LARGEST ** draw.random()) - 1
        asynchronous, label = draw.random() < 0.5, f"soak {draw.random()}"
        if self.record.rank in members:
            shared = self._may_share and self._own_draw.random() < SHARED
            seat = RankContext(members.index(self.record.rank), len(members), group, label, asynchronous, shared)
            self._check(seat, case, count)

    def _check(self, seat: RankContext, case: Case, count: int) -> None:
        self.record.calls += 1
        self.record.ops[case.op] += 1
        for what, got, want in OPS[case.op].call(seat, dtype_named(case.dtype or "float32"), case.reduce, count):
            self.record.checks += 1
            differs = difference(got, want)
            if differs:
                self.record.wrong.append(f"{case}, {what}, {seat.size} ranks, {count} elements: {differs}")
        values.cache_clear()  # no call has the inputs of another


def rank_0_goes_on(store: Any, rank: int, turn: int, more: bool) -> bool:
    """Whether there is another batch: rank 0 decides, by the store, so that no collective is needed for it."""
    key = f"turn {turn}"
    if rank == 0:
        store.set(key, str(int(more)))
        if turn:
            store.delete_key(f"turn {turn - 1}")
    return store.get(key) == b"1"


def soak(rank: int, options: argparse.Namespace, port: int, folder: str) -> None:
    """One rank from beginning to end; its record is left in the folder."""
    import ringdp

    faulthandler.dump_traceback_later(2 * options.timeout, exit=True)
    ringdp.register()
    warnings.simplefilter("ignore", FutureWarning)  # torch's, about the names of the flat calls
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(
        options.backend, store=store, rank=rank, world_size=options.ranks, timeout=timedelta(seconds=options.timeout)
    )
    run = Soak(rank, options)
    run.warm_up()
    seconds, start, turn = 60.0 * options.minutes, time.monotonic(), 0
    turns, shown = dist.PrefixStore("turns", store), 0.0
    while rank_0_goes_on(turns, rank, turn, (now := time.monotonic() - start) < seconds):
        for _ in range(BATCH):
            run.call()
        turn += 1
        if now >= len(run.record.samples) * seconds / SAMPLES:
            run.record.samples.append(sample(now))
        if rank == 0 and not options.json and now >= shown:
            shown = now + 5.0
            size = run.record.samples[-1]
            print(f"{now:7.0f} s  {run.record.calls} calls, {len(run.record.wrong)} wrong  {size}", flush=True)
        dist.barrier()  # no rank is more than a batch ahead, so that rank 0 may delete its old turns
        faulthandler.dump_traceback_later(2 * options.timeout, exit=True)
    run.record.samples.append(sample(time.monotonic() - start))
    dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(vars(run.record)))


def summary(records: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """What is printed at the end; `failures` is empty when all is well."""
    failures = [f"rank {r['rank']}: {wrong}" for r in records for wrong in r["wrong"]]
    failures += [f"rank {r['rank']}: {grew}" for r in records for grew in growth(r["samples"], seconds)]
    return {
        "ranks": len(records),
        "seconds": seconds,
        "calls": sum(r["calls"] for r in records),
        "checks": sum(r["checks"] for r in records),
        "ops": dict(sum((Counter(r["ops"]) for r in records), Counter())),
        "failures": failures,
        "samples": [r["samples"] for r in records],
    }


def families(text: str) -> list[str]:
    """A comma-separated list of ops, as of `ringdp selftest --ops`."""
    unknown = [name for name in text.split(",") if name not in FAMILIES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(FAMILIES)}")
    return text.split(",")


def command_line() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("-n", "--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ops", type=families, default=list(FAMILIES), help="e.g. all_reduce,gather (default: all)")
    parser.add_argument("--backend", default="ringdp")
    parser.add_argument("--timeout", type=float, default=60.0, help="deadline of one call in seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.ranks < 2 or options.minutes <= 0:
        parser.error("two ranks and some time are the least")
    return options


def main() -> int:
    """0: every bit was right and nothing grew."""
    options = command_line()
    with tempfile.TemporaryDirectory() as folder:
        served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        mp.spawn(soak, args=(options, served.port, folder), nprocs=options.ranks)
        records = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(options.ranks)]
    report = summary(records, 60.0 * options.minutes)
    if options.json:
        print(json.dumps(report))
    else:
        print(f"rank 0: first {records[0]['samples'][0]}, last {records[0]['samples'][-1]}")
        for failure in report["failures"]:
            print(failure)
        print(f"{report['calls']} calls, {report['checks']} checks, {len(report['failures'])} failures")
    return int(bool(report["failures"]))


if __name__ == "__main__":
    sys.exit(main())
