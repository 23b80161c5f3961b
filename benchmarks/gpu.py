#!/usr/bin/env python3
"""How fast is an all_reduce of ranks that share one GPU, next to what its memory carries, and a sharded AdamW step?

    python benchmarks/gpu.py --check --json gpu.json --plot gpu.png

All ranks are on GPU 0. `threads`: streams of one process, a kernel per rank (SPIN); `processes`: one per rank, whose
waits are operations of their streams (STREAM); `ringdp`: torch.distributed's call over this backend. Peers: gloo on
CUDA tensors, torch's symmetric memory with overlapping devices, NCCL with several ranks on one GPU (2.30 on), the same
with its ring alone, and NCCL over sockets, whose ranks take one another for other hosts. What cannot run is named with
its reason; the rest goes on. A ddp_step is a backward pass of an MLP in DDP, ringdp's or torch's.

Mind what a ratio compares. `threads` and the steps are replayed as CUDA graphs in one process, whose kernels run side
by side. Peers, `processes` and `ringdp` are called one by one in processes whose kernels the GPU runs in turn: against
them `threads` shows what one process saves, too, not only whose kernel is better. --check counts bars that were
measured; those that were not are named.

Every round runs every candidate once, in shuffled order; the first call of each is checked, element for element. The
roofline is the faster of torch's copy and in-place product over as many bytes as the operation must at least move
through the device's memory (2 N S for N tensors of S bytes). Rows are medians over rounds, ratios medians of ratios
within a round. Small tensors stay in the device's caches, so that a share of the roofline means little for them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devices.cell import ALL_REDUCE, DDP_STEP, ZERO_STEP, Cell
from devices.core import MAX_RANKS
from devices.findings import FAILED, PASSED, Finding, record
from devices.table import HEADER, LIMITS, bars_of, draw, line, rows_of
from devices.team import Rounds, Team
from runner import machine
from runner.program import add_outputs, check_least, check_outputs, sizes, write

HERE = Path(__file__).resolve().parent
# The most wanted first: time may end before the last.
SIZES = "256MiB,64MiB,4KiB,64KiB,16MiB,1MiB"
PEERS = ("gloo", "symm", "nccl", "nccl ring", "nccl sockets")
START_S = 60.0
STEPS = ("fused step", "separate step")
DDP_STEPS = ("ringdp ddp", "gloo ddp", "nccl ddp")
DDP_BYTES = 64 << 20  # of parameters, at most: every step of gloo takes its time
LOCAL = ("threads", "threads one_shot", "threads push", "threads ring")
SHARED = ("ringdp", "processes", "processes one_shot", "gloo", "symm one_shot", "symm two_shot", *PEERS[2:])
SMALL, LARGE = 1 << 20, 16 << 20  # push and one_shot are for what is small, the ring for what is not


def numbers(text: str) -> list[int]:
    """Comma-separated numbers of ranks."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers, as 2,4") from None
    if bad := [n for n in found if not 2 <= n <= MAX_RANKS or n & (n - 1)]:
        raise argparse.ArgumentTypeError(f"invalid number of ranks {bad[0]} (expected one of: 2, 4, 8)")
    return found


def whole_packs(text: str) -> list[int]:
    """Comma-separated sizes, of which every rank's part is whole packs of 16 bytes."""
    found = sizes(text)
    if bad := [size for size in found if size % (16 * MAX_RANKS)]:
        raise argparse.ArgumentTypeError(f"{bad[0]} bytes: write multiples of {16 * MAX_RANKS}")
    return found


def peers(text: str) -> list[str]:
    """Comma-separated peers, `all` or `none`."""
    chosen = {"all": list(PEERS), "none": []}.get(text, text.split(","))
    if unknown := [name for name in chosen if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(PEERS)}, all, none")
    return chosen


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=numbers, default=[2, 4], help="default 2,4")
    parser.add_argument(
        "--sizes", type=whole_packs, default=whole_packs(SIZES), help=f"of a rank's tensor; default {SIZES}"
    )
    parser.add_argument("--peers", type=peers, default=list(PEERS), help=f"of {','.join(PEERS)}; default all")
    parser.add_argument("--seconds", type=float, default=130.0, help="of the whole run, about (default 130)")
    parser.add_argument("--check", action="store_true", help="status 1 when a bar that was measured is not held")
    add_outputs(parser, "rows, bars, settings and machine", "times and shares of the roofline")
    options = parser.parse_args(arguments)
    check_least(parser, options, seconds=1)
    check_outputs(parser, options)
    return options


def wanted(cell: Cell) -> list[str]:
    """The candidates of a cell."""
    if cell.op == ZERO_STEP:
        return [*LIMITS, *STEPS]
    if cell.op == DDP_STEP:
        return list(DDP_STEPS)
    left_out = {"threads ring"} if cell.size < LARGE else set()
    if cell.size > SMALL:
        left_out |= {"threads push", "threads one_shot", "processes one_shot", "symm one_shot"}
    return [name for name in (*LIMITS, *LOCAL, *SHARED) if name not in left_out]


def cells_of(options: argparse.Namespace, world: int) -> list[Cell]:
    """All cells of one number of ranks, the most wanted first."""
    cells = [Cell(ALL_REDUCE, world, size) for size in options.sizes]
    largest = max(options.sizes)
    steps = [Cell(ZERO_STEP, world, largest), Cell(DDP_STEP, world, min(DDP_BYTES, largest))]
    return [*cells[:1], *steps, *cells[1:]]


def teams_of(world: int, kinds: list[str]) -> Iterator[Team]:
    """They start at once."""
    from devices.shared_rank import variables_of
    from runner.session import free_port

    path = os.pathsep.join(p for p in (str(HERE), os.environ.get("PYTHONPATH", "")) if p)
    common = {"PYTHONPATH": path}
    # Streams that share a hardware queue wait for one another.
    own_queues = {**common, "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    yield Team("threads", [[sys.executable, "-m", "devices.local_rank", str(world)]], [own_queues])
    for kind in kinds:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
        place |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        own = [{**common, **place, "RANK": str(rank), **variables_of(kind, rank)} for rank in range(world)]
        yield Team(kind, [[sys.executable, "-m", "devices.shared_rank", kind]] * world, own)


def measure(options: argparse.Namespace, world: int, result: dict[str, Any], end: float) -> None:
    """All cells of one number of ranks, as far as the time goes; rows are printed and kept as they come."""
    rounds = Rounds()
    try:
        begin = time.monotonic()
        for team in list(teams_of(world, ["ringdp", *options.peers])):
            rounds.welcome(team, max(1.0, START_S - (time.monotonic() - begin)))
        cells = cells_of(options, world)
        for number, cell in enumerate(cells):
            left = end - time.monotonic()
            if left <= 0:
                result["left_out"][f"{cell.op} of {cell.size} bytes, {world} ranks"] = "the time was over"
                continue
            rows = rows_of(cell, rounds.measure(cell, wanted(cell), left / (len(cells) - number)))
            result["rows"] += rows
            for row in rows:
                print(line(row), flush=True)
                if "FINDINGS" in os.environ:
                    note(row)
            write(options, result)  # so that a run that is cut off leaves something
    finally:
        rounds.close()
        result["left_out"] |= {f"{name}, {world} ranks": why for name, why in rounds.left_out.items()}


def note(row: dict[str, Any]) -> None:
    """A line for who checks a machine (devices/findings.py): whether what was measured was right."""
    name = f"{row['op']} by {row['candidate']}, {row['ranks']} ranks, {row['size']} bytes"
    wrong = row["wrong"]
    record(Finding(name, FAILED if wrong else PASSED, text=f"{wrong} elements are wrong" if wrong else ""))


def device() -> dict[str, str]:
    """The GPU and its drivers' versions; exits with a sentence where there is none."""
    import torch

    if not torch.cuda.is_available():
        sys.exit("gpu.py: no GPU that torch can use; benchmarks/collectives.py measures tensors of the CPU")
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    versions = {"torch": torch.__version__, "cuda": str(torch.version.cuda), "nccl": nccl}
    return {"gpu": torch.cuda.get_device_name(0), **versions}


def finish(options: argparse.Namespace, result: dict[str, Any]) -> int:
    """Bars, what was left out, files; the exit status."""
    bars, unmeasured = bars_of(result["rows"])
    for name, why in result["left_out"].items():
        print(f"left out: {name}: {why}")
    for bar in bars:
        print(bar)
    for what in unmeasured:
        print(f"not measured: {what}")
    wrong = sum(row["wrong"] for row in result["rows"])
    print(f"{len(result['rows'])} rows, {wrong} wrong elements")
    result["bars"] = [{**asdict(bar), "held": bar.held} for bar in bars]
    result["not_measured"] = unmeasured
    write(options, result)
    if options.plot and result["rows"]:
        draw(result, options.plot)
    missed = options.check and not all(bar.held for bar in bars)
    return int(bool(wrong or missed or not result["rows"]))


def main() -> int:
    """Prints the table; 1 when an element was wrong, nothing ran, or with --check a bar is not held."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwinds, so that no rank stays behind
    options = parse()
    facts = {**device(), **machine.describe()}
    print(f"{facts['gpu']}, torch {facts['torch']}, CUDA {facts['cuda']}, NCCL {facts['nccl']}")
    print(f"{machine.sentence(facts)}\n{HEADER}", flush=True)
    result: dict[str, Any] = {"command": shlex.join(["python", *sys.argv]), "machine": facts}
    result |= {"rows": [], "left_out": {}}
    end = time.monotonic() + options.seconds
    for number, world in enumerate(options.ranks):
        left = end - time.monotonic()
        measure(options, world, result, time.monotonic() + left / (len(options.ranks) - number))
    return finish(options, result)


if __name__ == "__main__":
    sys.exit(main())
