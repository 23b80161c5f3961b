"""Starting the ranks: torchrun does it. Without torchrun, --nproc N runs torchrun in this process's place."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

MODULE = "ringdp.examples.train_gpt"


def started_by_torchrun() -> bool:
    """Whether this process is one of the ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def how_to_start() -> str:
    """Two command lines that work."""
    return (
        "train_gpt runs as several ranks. Start it with one of:\n"
        f"  torchrun --nproc-per-node 2 -m {MODULE}\n"
        f"  {os.path.basename(sys.executable)} -m {MODULE} --nproc 2"
    )


def torchrun_command(ranks: int, arguments: Sequence[str]) -> list[str]:
    """The torchrun line for `ranks` ranks here. Without --nproc, which torchrun would take for its own."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--nproc")
    _, others = parser.parse_known_args(arguments)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*torchrun, "-m", MODULE, *others]


def become_torchrun(ranks: int, arguments: Sequence[str]) -> None:
    """Replace this process by torchrun, so that signals and exit status need no relay. Does not return."""
    # torchrun would set one thread per rank anyway, with a warning.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.stdout.flush()
    os.execv(sys.executable, torchrun_command(ranks, arguments))
