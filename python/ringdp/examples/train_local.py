"""A small GPT whose workers step alone and meet every H steps (DiLoCo), against the process that plays them all.

    python -m ringdp.examples.train_local                             # 4 workers on 2 ranks
    torchrun --nproc-per-node 3 -m ringdp.examples.train_local --compress int4 --fragments 2 --delay 3

The text is that of Python's standard library. At the end it prints what a rank sends per step, beside what
DistributedDataParallel would, the held-out loss, and whether the parameters have the bits of one process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import ringdp
from ringdp.cli.arguments import positive
from ringdp.compress.codec import NAMES
from ringdp.examples import launch
from ringdp.examples.gpt import Shape, check_same_text
from ringdp.examples.gpt_task import Task
from ringdp.local.options import Options
from ringdp.testing import one_process_local, parameters_hash
from ringdp.text.units import byte_size, counted

MODULE = "ringdp.examples.train_local"
SHAPE = Shape(context=64, dim=64, layers=2, dropout=0.1)
BATCH, RATE = 4, 3e-3


def inner(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Of each worker."""
    return torch.optim.AdamW(parameters, lr=RATE)


def arguments_of(options: argparse.Namespace) -> dict[str, Any]:
    """Of the DiLoCo, and of the process that it is compared with."""
    return {name: getattr(options, name) for name in ("workers", "every", "fragments", "delay", "compress")}


def work(options: argparse.Namespace) -> dict[str, Any]:
    """The training, on every rank; the report. Collective."""
    ranks, task = dist.get_world_size(), Task(SHAPE, BATCH, options.workers)
    check_same_text(task.corpus)
    arguments = arguments_of(options)
    model = task.model()
    before = task.held_out_loss(model)
    local = ringdp.DiLoCo(model, inner, **arguments)
    says = dist.get_rank() == 0 and not options.json
    if says:
        print(local.describe(), flush=True)
    losses = []
    for step in range(options.steps):
        total = torch.zeros(())
        for worker in local.workers():
            with local.worker(worker):
                loss = task.loss(model, worker, step)
                loss.backward()
            total += loss.detach()
        local.step()
        if local.steps % options.every == 0 or local.steps == options.steps:
            dist.all_reduce(total)
            losses.append(total.item() / options.workers)
            if says:
                print(f"step {local.steps:4} of {options.steps}  loss {losses[-1]:.4f}", flush=True)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    with local.outer():
        after, found = task.held_out_loss(model), parameters_hash(model)
    alone = task.model()
    one_process_local(alone, inner, task.loss, steps=options.steps, **arguments)
    return {
        "ranks": ranks,
        **arguments,
        "losses": losses,
        "held_out": [before, after],
        "bytes_per_step": local.bytes_sent() / options.every,
        "bytes_per_step_of_ddp": 2 * (ranks - 1) / ranks * 4 * parameters,
        "hash": found,
        "equal": found == parameters_hash(alone),
    }


def render(report: dict[str, Any]) -> str:
    """The report as text."""
    sent, ddp = report["bytes_per_step"], report["bytes_per_step_of_ddp"]
    less = f", {ddp / sent:.0f} times less than DDP's {byte_size(ddp)}" if sent else ""
    before, after = report["held_out"]
    return "\n".join(
        [
            f"{counted(report['workers'], 'worker')} on {counted(report['ranks'], 'rank')}",
            f"sent by rank 0 per step     {byte_size(sent)}{less}",
            f"held-out loss               {before:.4f} before, {after:.4f} after",
            f"hash                        {report['hash']}",
            f"bits of one process         {'yes' if report['equal'] else 'NO'}",
        ]
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = launch.parser_for(MODULE, "A small GPT whose workers step alone and meet every H steps.", 2)
    made.add_argument("--workers", type=positive(int), default=4, metavar="W", help="in all (default %(default)s)")
    made.add_argument("--steps", type=positive(int), default=60, metavar="N", help="of each (default %(default)s)")
    made.add_argument("--every", type=positive(int), default=10, metavar="H", help="steps alone (default %(default)s)")
    made.add_argument("--fragments", type=positive(int), default=1, metavar="P", help="(default %(default)s)")
    made.add_argument("--delay", type=int, default=0, metavar="D", help="steps on the way (default %(default)s)")
    made.add_argument("--compress", choices=NAMES[1:], help="codes instead of float32")
    return made


def problem_of(options: argparse.Namespace, ranks: int) -> str | None:
    """What does not fit together, or not the number of ranks."""
    try:
        Options(**arguments_of(options)).check(ranks)
    except ValueError as error:
        return str(error).removeprefix("DiLoCo: ")
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 where the bits differ."""
    options = parser().parse_args(arguments)
    report: dict[str, Any] = {}

    def reported() -> dict[str, Any]:
        report.update(work(options))
        return report

    status = launch.on_ranks(MODULE, options, reported, render, lambda ranks: problem_of(options, ranks))
    return status or int(not report["equal"])


if __name__ == "__main__":
    sys.exit(main())
