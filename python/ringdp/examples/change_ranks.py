"""A run on 8 ranks that goes on with 3, and ends with the bits of the run that nobody disturbed.

    python -m ringdp.examples.change_ranks                            # both parts, and the run in one process
    torchrun --nproc-per-node 8 -m ringdp.examples.change_ranks --folder run --until 10      # a part by itself
    torchrun --nproc-per-node 3 -m ringdp.examples.change_ranks --folder run --until 20

A step has 24 micro-batches, whoever runs them (`micro_batches=24`); a part ends with a checkpoint, from which the next
one goes on. The network has dropout and BatchNorm, whose results do not depend on the number of ranks either.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import ringdp
from ringdp.cli.arguments import positive
from ringdp.elastic import Leaves
from ringdp.examples import launch
from ringdp.testing import one_process, parameters_hash
from ringdp.text.units import counted

MODULE = "ringdp.examples.change_ranks"
MICRO_BATCHES, MICRO_BATCH, SAMPLES = 24, 2, 500  # 10 steps an epoch; 20 samples are carried into the next one
STEPS = 20


def network() -> nn.Module:
    """The same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 1))


def samples() -> TensorDataset:
    """x and y, the same in every process."""
    x = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True).sin())


class Feed:
    """The samples of a micro-batch: a function of the number of the step in the run, and of its own."""

    def __init__(self) -> None:
        self.leaves = Leaves(SAMPLES, micro_batch=MICRO_BATCH, micro_batches=MICRO_BATCHES, remainder="carry")
        self._data = samples()

    def loss(self, model: nn.Module, step: int, leaf: int) -> Tensor:
        """Of one micro-batch."""
        epoch = 0
        while step >= self.leaves.first_step(epoch + 1):
            epoch += 1
        x, y = self._data[self.leaves.indices(epoch, step - self.leaves.first_step(epoch), leaf)]
        return nn.functional.mse_loss(model(x), y)


def part(folder: Path, until: int) -> dict[str, Any]:
    """On each rank: from the checkpoint in `folder`, if there is one, to step `until`. Collective."""
    ddp = ringdp.DistributedDataParallel(network(), micro_batches=MICRO_BATCHES)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    feed = Feed()
    first = ringdp.checkpoint.load(folder, ddp, optimizer).extra["step"] if folder.is_dir() else 0
    for step in range(first, until):
        for leaf in feed.leaves.mine():
            with ringdp.leaf(step, leaf):
                feed.loss(ddp, step, leaf).backward()
        optimizer.step()
        optimizer.zero_grad()
    ringdp.checkpoint.save(folder, ddp, optimizer, extra={"step": until})
    return {"ranks": dist.get_world_size(), "first": first, "until": until, "hash": parameters_hash(ddp)}


def undisturbed(steps: int) -> str:
    """The hash of one process that runs all micro-batches of all steps."""
    model, feed = network(), Feed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    one_process(
        model,
        optimizer,
        lambda model, rank, step, leaf: feed.loss(model, step, leaf),
        steps=steps,
        micro_batches=MICRO_BATCHES,
    )
    return parameters_hash(model)


def start_part(ranks: int, arguments: Sequence[str]) -> str:
    """What a torchrun of so many ranks prints. CalledProcessError when it fails."""
    command = launch.torchrun_command(MODULE, ranks, arguments)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def run(ranks: Sequence[int], steps: int) -> dict[str, Any]:
    """All parts, one after the other, and the run without them."""
    with tempfile.TemporaryDirectory(prefix="change-ranks-") as folder:
        arguments = ["--json", "--folder", str(Path(folder) / "run")]
        ends = [steps * (number + 1) // len(ranks) for number in range(len(ranks))]
        parts = [
            json.loads(start_part(count, [*arguments, "--until", str(end)]))
            for count, end in zip(ranks, ends, strict=True)
        ]
    alone = undisturbed(steps)
    return {"micro_batches": MICRO_BATCHES, "parts": parts, "undisturbed": alone, "equal": parts[-1]["hash"] == alone}


def render_part(part: dict[str, Any]) -> str:
    """One line."""
    where = f"on {counted(part['ranks'], 'rank')}"
    return f"steps {part['first']:3} to {part['until']:3}  {where:14}  {part['hash']}"


def render(report: dict[str, Any]) -> str:
    """The table and the verdict."""
    alone = f"steps   0 to {report['parts'][-1]['until']:3}  in one process  {report['undisturbed']}"
    return "\n".join([*map(render_part, report["parts"]), alone, f"equal: {'yes' if report['equal'] else 'NO'}"])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description="A run that changes its number of ranks, against the run that does not.",
        allow_abbrev=False,
    )
    made.add_argument("--ranks", default="8,3", metavar="N,N,...", help="ranks of each part (default %(default)s)")
    made.add_argument("--steps", type=positive(int), default=STEPS, metavar="N", help="in all (default %(default)s)")
    made.add_argument("--folder", type=Path, help="under torchrun: where the checkpoints of all parts are")
    made.add_argument("--until", type=positive(int), metavar="STEP", help="under torchrun: where this part ends")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 where the bits differ."""
    made = parser()
    options = made.parse_args(arguments)
    if launch.started_by_torchrun():
        if options.folder is None or options.until is None:
            made.error("under torchrun a part is run: give --folder and --until")
        return launch.on_ranks(MODULE, options, lambda: part(options.folder, options.until), render_part)
    if options.folder is not None or options.until is not None:
        made.error("--folder and --until are for a part that torchrun starts: leave them out")
    try:
        ranks = [positive(int, launch.MAX_RANKS)(text) for text in options.ranks.split(",")]
    except argparse.ArgumentTypeError as error:
        made.error(f"--ranks {options.ranks}: {error}")
    if options.steps < len(ranks):
        made.error(f"--steps is {options.steps}, must be at least one for each of {len(ranks)} parts")
    report = run(ranks, options.steps)
    print(json.dumps(report) if options.json else render(report))
    return 0 if report["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
