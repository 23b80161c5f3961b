"""Measures the model's constants on this machine: hosts are network namespaces on shaped links, ranks run ringdp.

From the two-round algorithm `direct` on 2 ranks, T = 2 alpha + 2 M gap + S beta with M segments per round: beta from a
large size, gap from a size cut into one and into many segments, alpha from what is left of a small size. The local
pair is measured on one host in the same way. gamma is a fold of two tensors that lie in the cache. Ranks that wait for
a core are in alpha too: on a machine with two cores nothing else may run.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from runner.cell import Cell
from runner.hosts import Hosts
from runner.native import compile_native, load_native
from runner.rounds import Length
from runner.session import Session, Wishes

from scale.costs import SEGMENT, Network

SMALL, MIDDLE, LARGE = 1 << 10, 256 << 10, 8 << 20
SEGMENTS = 32  # into which half of MIDDLE is cut
FOLD_BYTES = 256 << 10


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def measure(hosts: Hosts | None, seconds: float, segment_bytes: int = SEGMENT) -> dict[int, float]:
    """Median times of `direct` on 2 ranks, by size."""
    cells = [Cell("all_reduce", "float32", 2, size) for size in (SMALL, MIDDLE, LARGE)]
    wishes = Wishes(length=Length(seconds=seconds), hosts=hosts)
    settings = {"RINGDP_ALGORITHM": "direct", "RINGDP_SEGMENT_BYTES": str(segment_bytes)}
    with _environment(**settings), Session(2, cells, wishes) as session:
        return {
            cell.size: median(next(entry.times for entry in entries if entry.candidate == "ringdp"))
            for cell, entries in session.measure(lambda *_: None)
        }


def fold_cost() -> float:
    """gamma: seconds per byte that a fold of two reads."""
    with tempfile.TemporaryDirectory() as folder:
        native = load_native(compile_native(Path(folder)))
    source, target = (ctypes.create_string_buffer(FOLD_BYTES * n) for n in (2, 1))
    times = []
    for _ in range(50):
        start = time.perf_counter()
        native.runner_fold(ctypes.addressof(target), ctypes.addressof(source), FOLD_BYTES // 4, 2)
        times.append(time.perf_counter() - start)
    return median(times) / (2 * FOLD_BYTES)


def alpha_and_beta(times: dict[int, float], gap: float) -> tuple[float, float]:
    """Both from times by size, when every round is one message."""
    beta = max(0.0, times[LARGE] - times[SMALL]) / (LARGE - SMALL)
    return max(0.0, times[SMALL] / 2 - gap - SMALL / 2 * beta), beta


def gap_between(one: dict[int, float], many: dict[int, float]) -> float:
    """What each of 2 (SEGMENTS - 1) more messages costs."""
    return max(0.0, many[MIDDLE] - one[MIDDLE]) / (2 * (SEGMENTS - 1))


def calibrate(gigabits: float, seconds: float, machine: str) -> Network:
    """ValueError where namespaces cannot be made."""
    one = measure(Hosts(2, gigabits), seconds)
    gap = gap_between(one, measure(Hosts(2, gigabits), seconds, MIDDLE // 2 // SEGMENTS))
    alpha, beta = alpha_and_beta(one, gap)
    local_alpha, local_beta = alpha_and_beta(measure(None, seconds), 0.0)
    origin = f"measured over network namespaces, links of {gigabits:g} Gb/s, on {machine}"
    return Network(alpha, beta, gap, fold_cost(), local_alpha, local_beta, origin)
