"""A run whose ranks are killed and replaced while it trains, and that ends with the bits of the run without.

    python -m ringdp.examples.survive                             # 4 ranks, 6 kills, and the run in one process
    ringdp run --nproc-per-node 4 --min-ranks 1 --max-restarts 9 -m ringdp.examples.survive --kills 0 --steps 2000

A step has 24 micro-batches, whoever runs them. The ranks kill themselves here, by SIGKILL in the middle of a step; try
the second line with `kill -9` from another terminal.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringdp
from ringdp.cli.arguments import positive
from ringdp.examples import launch
from ringdp.examples.change_ranks import MICRO_BATCHES, Feed, network, undisturbed
from ringdp.testing import parameters_hash
from ringdp.text.units import counted, seconds

MODULE = "ringdp.examples.survive"
_LINE_EVERY_S = 0.2


class Kills:
    """From which steps on a rank dies, once for each and never the last one; files in `folder` say which have died."""

    def __init__(self, folder: Path, number: int, steps: int, seed: int) -> None:
        chosen = random.Random(seed)
        self._folder = folder
        self._planned = sorted(
            (step, chosen.randrange(MICRO_BATCHES)) for step in chosen.sample(range(1, steps), number)
        )

    def before(self, step: int, leaf: int) -> None:
        """Does not return where this process is one that dies."""
        due = [planned for planned in self._planned if planned[0] <= step and planned[1] == leaf]
        for planned, _ in due if dist.get_world_size() > 1 else []:
            try:
                (self._folder / f"killed-{planned}").touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)


def on_rank(options: argparse.Namespace) -> dict[str, Any]:
    """The training, on every rank of whatever world; what rank 0 of the last one reports."""
    torch.set_num_threads(1)
    dist.init_process_group("ringdp")
    ddp = ringdp.DistributedDataParallel(network(), micro_batches=MICRO_BATCHES)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    feed, kills = Feed(), Kills(options.folder, options.kills, options.steps, options.seed)
    begin = said = time.monotonic()

    @ringdp.elastic.survive(model=ddp, optimizer=optimizer)
    def train(step: int, leaves: Sequence[int]) -> None:
        nonlocal said
        for leaf in leaves:
            kills.before(step, leaf)
            with ringdp.leaf(step, leaf):
                feed.loss(ddp, step, leaf).backward()
        if dist.get_rank() == 0 and not options.json and time.monotonic() > said + _LINE_EVERY_S:
            said = time.monotonic()
            print(f"step {step:5} of {options.steps}  {counted(dist.get_world_size(), 'rank')}", flush=True)

    train(options.steps)
    took = time.monotonic() - begin
    worlds = [vars(recovery) for recovery in train.recoveries]
    report = {"rank": dist.get_rank(), "ranks": dist.get_world_size(), "steps": options.steps}
    dist.destroy_process_group()
    return {**report, "seconds": took, "worlds": worlds, "hash": parameters_hash(ddp)}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The ranks by `ringdp run`, and the run that nothing disturbs. CalledProcessError where the job fails."""
    with tempfile.TemporaryDirectory(prefix="survive-") as folder:
        numbers = ["--steps", str(options.steps), "--kills", str(options.kills), "--seed", str(options.seed)]
        program = ["-m", MODULE, *numbers, "--folder", folder, *["--json"] * options.json]
        command = [sys.executable, "-m", "ringdp", "run", "--standalone", "--nproc-per-node", str(options.nproc)]
        command += ["--min-ranks", "1", "--max-restarts", str(options.kills), *program]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=sys.stderr, check=True)
        report = json.loads((Path(folder) / "report").read_text())
        report["killed"] = sum(name.startswith("killed") for name in os.listdir(folder))
    report["undisturbed"] = undisturbed(options.steps)
    return {**report, "equal": report["hash"] == report["undisturbed"]}


def render(report: dict[str, Any]) -> str:
    """For people."""
    return "\n".join(
        [
            f"{counted(report['steps'], 'step')}, {counted(report['killed'], 'rank')} killed, "
            f"{counted(report['ranks'], 'rank')} at the end, {seconds(report['seconds'])}",
            f"with deaths      {report['hash']}",
            f"in one process   {report['undisturbed']}",
            f"equal: {'yes' if report['equal'] else 'NO'}",
        ]
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description="A run whose ranks are killed while it trains, against the run that nothing disturbs.",
        allow_abbrev=False,
    )
    ranks = positive(int, launch.MAX_RANKS)
    made.add_argument("--nproc", type=ranks, default=4, metavar="N", help="ranks at first (default %(default)s)")
    made.add_argument("--steps", type=positive(int), default=200, metavar="N", help="in all (default %(default)s)")
    made.add_argument("--kills", type=int, default=6, metavar="N", help="ranks that die (default %(default)s)")
    made.add_argument("--seed", type=int, default=0, help="of the steps in which they do (default %(default)s)")
    made.add_argument("--folder", type=Path, help="under ringdp run: where ranks note who has died")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 where the bits differ or the job fails."""
    made = parser()
    options = made.parse_args(arguments)
    if not 0 <= options.kills < options.steps:
        made.error(f"--kills is {options.kills}, must be from 0 to one less than --steps, which is {options.steps}")
    if launch.started_by_torchrun():
        with tempfile.TemporaryDirectory(prefix="survive-") as own:
            if options.folder is None and options.kills:
                made.error("under ringdp run, deaths need a folder to be noted in: give --folder, or --kills 0")
            options.folder = options.folder or Path(own)
            report = on_rank(options)
            if report["rank"] == 0:
                (options.folder / "report").write_text(json.dumps(report))
                print(f"hash {report['hash']}", flush=True)
        return 0
    try:
        report = run(options)
    except subprocess.CalledProcessError as error:
        print(f"survive: the job has ended with status {error.returncode}", file=sys.stderr)
        return 1
    print(json.dumps(report) if options.json else render(report))
    return 0 if report["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
