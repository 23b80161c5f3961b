#!/usr/bin/env python3
"""How fast is an all-reduce over ringdp, next to gloo, in the same processes and the same rounds?

    python benchmarks/collectives.py --ranks 2,4 --sizes 4096,1048576,16777216

Every round runs each backend once, in turn, on fresh data that is checked; a time is the slowest rank's. Columns as in
nccl-tests: algbw = size / time, busbw = algbw * 2(N-1)/N; speedup = median of the per-round ratios gloo / ringdp.
One wrong element makes the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

BACKENDS = ("ringdp", "gloo")


def timed(group: Any, tensor: torch.Tensor) -> float:
    """Seconds of one all-reduce: between barriers, the slowest rank's."""
    dist.barrier(group)
    start = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    elapsed = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(elapsed, op=dist.ReduceOp.MAX, group=group)
    return elapsed.item()


def measure(groups: dict[str, Any], nbytes: int, rounds: int) -> dict[str, Any]:
    """Times and wrong elements of one size, backends alternating."""
    rank, world = dist.get_rank(), dist.get_world_size()
    count = max(1, nbytes // 4)
    times: dict[str, list[float]] = {name: [] for name in groups}
    wrong = 0
    for turn in range(rounds + 1):
        for name, group in groups.items():
            tensor = torch.full((count,), float(rank + turn))
            seconds = timed(group, tensor)
            wrong += int((tensor != sum(r + turn for r in range(world))).sum())
            if turn:  # the first round warms up
                times[name].append(seconds)
    return {"size": count * 4, "count": count, "times": times, "wrong": wrong}


def row_of(cell: dict[str, Any], world: int) -> dict[str, Any]:
    """What is printed of one size: medians in microseconds and GB/s."""
    ours, theirs = (cell["times"][name] for name in BACKENDS)
    seconds = statistics.median(ours)
    algbw = cell["size"] / seconds / 1e9
    return {
        "ranks": world,
        "size": cell["size"],
        "count": cell["count"],
        "type": "float32",
        "op": "sum",
        "time_us": seconds * 1e6,
        "algbw": algbw,
        "busbw": algbw * 2 * (world - 1) / world,
        "wrong": cell["wrong"],
        "gloo_us": statistics.median(theirs) * 1e6,
        "speedup": statistics.median(g / o for g, o in zip(theirs, ours, strict=True)),
    }


def worker(rank: int, world: int, store: str, sizes: list[int], rounds: int, out: str) -> None:
    """One rank: every size over every backend; rank 0 writes the rows."""
    torch.set_num_threads(1)
    dist.init_process_group("ringdp", init_method=f"file://{store}", rank=rank, world_size=world)
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    rows = [row_of(measure(groups, size, rounds), world) for size in sizes]
    if rank == 0:
        with open(out, "w") as stream:
            json.dump(rows, stream)
    dist.barrier()
    dist.destroy_process_group()


def run(world: int, sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """The rows of one number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "rows.json")
        mp.spawn(worker, args=(world, os.path.join(folder, "store"), sizes, rounds, out), nprocs=world)
        with open(out) as stream:
            return json.load(stream)


def numbers(text: str) -> list[int]:
    """A comma-separated list of whole numbers above 0."""
    values = [int(part) for part in text.split(",")]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text}: all must be above 0")
    return values


def main() -> int:
    """Prints the table; 1 when a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=numbers, default=[2, 4], help="numbers of ranks (default 2,4)")
    parser.add_argument("--sizes", type=numbers, default=[4096, 65536, 1 << 20, 16 << 20, 64 << 20], help="bytes")
    parser.add_argument("--rounds", type=int, default=21, help="rounds per size (default 21)")
    parser.add_argument("--json", metavar="PATH", help="write the rows here")
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    print(f"# {platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(
        f"{'ranks':>5} {'size':>10} {'count':>9} {'time us':>10} {'algbw':>7} {'busbw':>7} {'wrong':>5} "
        f"{'gloo us':>10} {'speedup':>8}"
    )
    rows = []
    for world in options.ranks:
        for r in run(world, options.sizes, options.rounds):
            rows.append(r)
            print(
                f"{r['ranks']:>5} {r['size']:>10} {r['count']:>9} {r['time_us']:>10.1f} {r['algbw']:>7.2f} "
                f"{r['busbw']:>7.2f} {r['wrong']:>5} {r['gloo_us']:>10.1f} {r['speedup']:>8.2f}",
                flush=True,
            )
    if options.json:
        with open(options.json, "w") as stream:
            json.dump(rows, stream, indent=1)
    return int(any(r["wrong"] for r in rows))


if __name__ == "__main__":
    sys.exit(main())
