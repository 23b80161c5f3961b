"""One rank process of a tuning: for each benchmark a group per candidate, which take turns, and times to the parent."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

import ringdp
from ringdp.tools.tune.cache import VARIABLE
from ringdp.tools.tune.microbenchmark import Microbenchmark

_MOST_BYTES = 1 << 18  # timed together
TIMEOUT = timedelta(seconds=60)  # of groups

# A candidate's group, and the memory for its largest tensor: ordinary memory is the same for all candidates.
Candidate = tuple[dist.ProcessGroup, torch.Tensor]


@dataclass(frozen=True)
class Assignment:
    """The arguments of every rank. `folder` holds the rendezvous file; `seconds` is for one benchmark."""

    size: int
    benchmarks: tuple[Microbenchmark, ...]
    seconds: float
    folder: str = ""


def main(pipe: Connection, rank: int, assignment: Assignment) -> None:
    """Rank 0 sends the times of each benchmark; every rank None at its end, or a sentence that says why it stopped."""
    torch.set_num_threads(1)
    os.environ[VARIABLE] = "off"
    ringdp.register()
    try:
        store = dist.FileStore(os.path.join(assignment.folder, "store"), assignment.size)
        dist.init_process_group("ringdp", store=store, rank=rank, world_size=assignment.size, timeout=TIMEOUT)
        for benchmark in assignment.benchmarks:
            times = measure(benchmark, assignment.seconds)
            if rank == 0:
                pipe.send(times)
        dist.destroy_process_group()
        pipe.send(None)
    except BrokenPipeError:
        os._exit(1)  # the parent is gone
    except Exception as error:
        pipe.send(f"rank {rank}: {str(error).splitlines()[0]}")


def measure(benchmark: Microbenchmark, seconds: float, first: int = 0) -> dict[int, list[list[float]]]:
    """Seconds by size, of every round; collective over the default group, whose first ranks are the benchmark's.

    first: the number of the first round, on which the order of candidates depends.
    """
    with ExitStack() as groups:
        memory = None if benchmark.shared else torch.zeros(max(benchmark.sizes) // 4)
        candidates = [_candidate(benchmark, fields, memory, groups) for fields in benchmark.candidates]
        times: dict[int, list[list[float]]] = {size: [] for size in benchmark.sizes}
        _round(benchmark, candidates, 0)  # pages are touched and plans made
        end = time.monotonic() + seconds
        for number in count(first):
            for size, row in _round(benchmark, candidates, number).items():
                times[size].append(row)
            if _is_over(end):
                break
        return times


def _candidate(benchmark: Microbenchmark, fields: Any, memory: torch.Tensor | None, groups: ExitStack) -> Candidate:
    group = dist.new_group(range(benchmark.ranks), pg_options=ringdp.Options(**fields), timeout=TIMEOUT)
    groups.callback(dist.destroy_process_group, group)
    if memory is None:
        memory = ringdp.empty(max(benchmark.sizes) // 4, dtype=torch.float32, group=group).zero_()
    return group, memory


def _round(benchmark: Microbenchmark, candidates: list[Candidate], number: int) -> dict[int, list[float]]:
    """Seconds of one call by size, per candidate.

    They take turns at every size, take turns at being first, and follow one another in both directions.
    """
    step = -1 if number % 2 else 1
    turns = [(number + step * i) % len(candidates) for i in range(len(candidates))]
    times = {size: [0.0] * len(candidates) for size in benchmark.sizes}
    for size in benchmark.sizes:
        calls = max(1, min(benchmark.most_calls, _MOST_BYTES // size))
        for turn in turns:
            group, memory = candidates[turn]
            times[size][turn] = timed(group, memory[: size // 4], calls)
    return times


def timed(group: dist.ProcessGroup, tensor: torch.Tensor, calls: int = 1) -> float:
    """Seconds of one all_reduce, of so many in a row that all ranks begin together."""
    dist.barrier(group=group)
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - start) / calls


def _is_over(end: float) -> bool:
    """By rank 0's clock, so that all ranks run equally many rounds."""
    over = torch.tensor([time.monotonic() >= end])
    dist.broadcast(over, 0)
    return bool(over)
