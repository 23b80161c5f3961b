"""Starting the ranks: torchrun does it. Without torchrun an example runs torchrun in this process's place."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ringdp.cli.numbers import positive

MAX_RANKS = 64  # here; torchrun starts more


def started_by_torchrun() -> bool:
    """Whether this process is one of the ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def how_to_start(module: str) -> str:
    """Two command lines that work."""
    return (
        f"{module.rpartition('.')[2]} runs as several ranks. Start it with one of:\n"
        f"  torchrun --nproc-per-node 2 -m {module}\n"
        f"  {os.path.basename(sys.executable)} -m {module} --nproc 2"
    )


def torchrun_command(module: str, ranks: int, arguments: Sequence[str]) -> list[str]:
    """The torchrun line for `ranks` ranks here. Without --nproc, which torchrun would take for its own."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--nproc")
    _, others = parser.parse_known_args(arguments)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*torchrun, "-m", module, *others]


def become_torchrun(module: str, ranks: int, arguments: Sequence[str]) -> None:
    """Replace this process by torchrun, so that signals and exit status need no relay. Does not return."""
    # torchrun would set one thread per rank anyway, with a warning.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.stdout.flush()
    os.execv(sys.executable, torchrun_command(module, ranks, arguments))


def parser_for(module: str, description: str, ranks: int) -> argparse.ArgumentParser:
    """A command line with --nproc (default `ranks`) and --json; an example adds its own options."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        epilog=f"or: torchrun --nproc-per-node {ranks} -m {module}",
        allow_abbrev=False,
    )
    number = positive(int, MAX_RANKS)
    parser.add_argument("--nproc", type=number, default=ranks, metavar="N", help="ranks (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def on_ranks(
    module: str,
    options: argparse.Namespace,
    work: Callable[[], dict[str, Any]],
    render: Callable[[dict[str, Any]], str],
    problem: Callable[[int], str | None] = lambda ranks: None,
) -> int:
    """Runs `work` on every rank in a group over ringdp; rank 0 prints its report. The exit status.

    In a process that is no rank yet, torchrun takes over with `options.nproc` ranks. `problem` says what does not fit
    a number of ranks, or None; then status 2. Every rank computes on one thread, because only then do two processes
    add up in the same order.
    """
    is_rank = started_by_torchrun()
    rank, ranks = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) if is_rank else (0, options.nproc)
    if wrong := problem(ranks):
        if rank == 0:
            print(f"{module.rpartition('.')[2]}: {wrong}", file=sys.stderr)
        return 2
    if not is_rank:
        become_torchrun(module, options.nproc, sys.argv[1:])
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("ringdp")
    try:
        report = work()
        if rank == 0:
            print(json.dumps(report) if options.json else render(report), flush=True)
    finally:
        dist.destroy_process_group()
    return 0
