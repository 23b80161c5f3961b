"""A small GPT on two hosts with a slow and long link between them: DistributedDataParallel, then DiLoCo, over time.

    sudo python -m ringdp.examples.slow_link --plot slow_link.png   # two network namespaces, 100 Mb/s, 50 ms
    python -m ringdp.examples.slow_link --loopback                  # two ranks on this host: no root, and no such link

Both begin with the same parameters, read the same samples and make equally many steps, DiLoCo's workers alone for most
of them. At the end a table compares what a step takes and sends, and when each was at a loss that both have reached.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ringdp
from ringdp.cli.arguments import positive
from ringdp.compress.codec import NAMES
from ringdp.examples import launch
from ringdp.examples.gpt import Shape, check_same_text
from ringdp.examples.gpt_task import Task
from ringdp.examples.over_time import Run, Training, run_of, synchronous, timed
from ringdp.local.options import Options
from ringdp.text.table import columns
from ringdp.text.units import byte_size, counted, seconds
from ringdp.tools.netns.far import FarNetwork, why_not_far
from ringdp.tools.netns.namespaces import MAX_HOSTS, Refused
from ringdp.tools.planner import units

MODULE = "ringdp.examples.slow_link"
SHAPE = Shape(context=64, dim=128, layers=4)
BATCH, RATE, WARM_UP, NOTE = 4, 2e-3, 10, 5
LINK = ("100Mb/s", "50ms")
DDP, DILOCO = "DDP", "DiLoCo"
SENT = 1  # the row of bytes


def inner(parameters: Any) -> torch.optim.Optimizer:
    """Of both."""
    return torch.optim.AdamW(parameters, lr=RATE)


def ddp(options: argparse.Namespace, model: nn.Module) -> Training:
    """torch's own, over ringdp: the mean of all gradients in every step."""
    del options
    return synchronous(DistributedDataParallel(model, gradient_as_bucket_view=True), inner(model.parameters()))


def diloco(options: argparse.Namespace, model: nn.Module) -> Training:
    """Workers that step alone, one on each rank, and meet fragment by fragment."""
    local = ringdp.DiLoCo(model, inner, **arguments_of(options, dist.get_world_size()))
    if dist.get_rank() == 0:
        print(local.describe(), file=sys.stderr, flush=True)
    period = max(1, options.every // options.fragments)
    return Training(model, local.optimizers(), local.step, local.outer, period, end=local.state_dict)  # which waits


TRAININGS: dict[str, Callable[[argparse.Namespace, nn.Module], Training]] = {DDP: ddp, DILOCO: diloco}


def arguments_of(options: argparse.Namespace, ranks: int) -> dict[str, Any]:
    """Of the DiLoCo."""
    own = {name: getattr(options, name) for name in ("every", "fragments", "delay", "alpha", "compress")}
    return {"workers": ranks, "outer_lr": options.outer_lr, "momentum": options.outer_momentum, **own}


class ProgressLine:
    """On rank 0's stderr: one line that moves in a terminal, a line for each copy elsewhere."""

    def __init__(self, name: str, steps: int) -> None:
        self._name, self._steps, self._begun = name, steps, time.monotonic()
        self._moves = sys.stderr.isatty()

    def show(self, step: int, took: float, loss: float) -> None:
        """How far it is, the training's own seconds, and those that are left."""
        left = (time.monotonic() - self._begun) * (self._steps - step) / step
        line = f"{self._name:<6}  step {step:>{len(str(self._steps))}} of {self._steps}  {took:6.1f} s  loss {loss:.4f}"
        line += f"  {left:.0f} s left"
        print(f"\r{line}\x1b[K" if self._moves else line, end="" if self._moves else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """What is printed next begins in a line of its own."""
        if self._moves:
            print(file=sys.stderr, flush=True)


def work(options: argparse.Namespace) -> dict[str, Any]:
    """Both trainings, on every rank; the report. Collective."""
    ranks = dist.get_world_size()
    task = Task(SHAPE, BATCH, ranks)
    check_same_text(task.corpus)
    runs = {name: trained(options, task, name) for name in TRAININGS}
    return {
        "ranks": ranks,
        "parameters": sum(parameter.numel() for parameter in task.model().parameters()),
        "loopback": options.loopback,
        "link": {"bandwidth": options.bandwidth, "rtt": options.rtt} if options.far else None,
        **arguments_of(options, ranks),
        "systems": {name: vars(run) for name, run in runs.items()},
    }


def trained(options: argparse.Namespace, task: Task, name: str) -> Run:
    """One of the trainings. Collective."""
    is_first = dist.get_rank() == 0
    model = task.model()
    training, line = TRAININGS[name](options, model), ProgressLine(name, options.steps)
    own = timed(
        task,
        model,
        training,
        steps=options.steps,
        note=NOTE,
        rate=lambda step: RATE * min(1.0, step / WARM_UP),
        show=line.show if is_first else lambda step, took, loss: None,
    )
    if is_first:
        line.end()
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, own)
    return run_of(of_ranks)


def title_of(report: Mapping[str, Any]) -> str:
    """The ranks, what is between them, and the model."""
    ranks, model = report["ranks"], f"a GPT of {report['parameters']:,} parameters"
    if report["link"] is None:
        return f"{counted(ranks, 'rank')}, without a link of this program between them; {model}"
    rate, rtt = 8e-6 * report["link"]["bandwidth"], 1e3 * report["link"]["rtt"]
    return f"{counted(ranks, 'host')} at {rate:g} Mb/s, {rtt:g} ms apart; {model}"


def rows_of(runs: Mapping[str, Run]) -> list[tuple[str, ...]]:
    """Of the table: a line of each kind of figure, a column of each training."""
    target = max(run.last_loss for run in runs.values())
    sent = [round(run.per_step(run.sent)) for run in runs.values()]
    return [
        ("a step", *(seconds(run.per_step(run.seconds)) for run in runs.values())),
        ("sent by rank 0 in a step", *(byte_size(each) if each else "nothing" for each in sent)),
        ("all steps", *(seconds(run.seconds[-1]) for run in runs.values())),
        ("held-out loss after them", *(f"{run.last_loss:.4f}" for run in runs.values())),
        (f"at a loss of {target:.4f} after", *(seconds(run.time_to(target)) for run in runs.values())),
    ]


def render(report: Mapping[str, Any]) -> str:
    """The table."""
    runs = {name: Run(**run) for name, run in report["systems"].items()}
    rows = rows_of(runs)
    if report["loopback"]:
        del rows[SENT]  # what this host's interface sends is no business of the ranks
    return "\n".join([title_of(report), *columns([("", *runs), *rows])])


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Loss over wall time, as a PNG. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = figure.subplots()
    for (name, run), colour in zip(report["systems"].items(), ("#9aa5b1", "#1f4e8c"), strict=True):
        axes.plot(*zip(*Run(**run).curve, strict=True), "o-", label=name, color=colour, markersize=3)
    axes.set(xlabel="seconds", ylabel="held-out loss, nats per byte")
    axes.set_title(title_of(report), loc="left", fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


def unit(parse: Callable[[str], float]) -> Callable[[str], float]:
    """For argparse: a number with a unit, or an error that says what to type."""

    def parsed(text: str) -> float:
        try:
            return parse(text)
        except units.UnitError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = launch.parser_for(MODULE, "A small GPT over a slow link: DistributedDataParallel and DiLoCo, over time.", 2)
    made.add_argument("--loopback", action="store_true", help="ranks on this host, without a slow link; needs no root")
    made.add_argument("--bandwidth", type=unit(units.bandwidth), help=f"of each host's link (default {LINK[0]})")
    made.add_argument("--rtt", type=unit(units.seconds), help=f"a round trip between hosts (default {LINK[1]})")
    made.add_argument("--far", action="store_true", help=argparse.SUPPRESS)  # this rank is on one of these hosts
    made.add_argument("--steps", type=positive(int), default=160, metavar="N", help="of each (default %(default)s)")
    made.add_argument("--every", type=positive(int), default=20, metavar="H", help="steps alone (default %(default)s)")
    made.add_argument("--fragments", type=positive(int), default=4, metavar="P", help="(default %(default)s)")
    made.add_argument("--delay", type=int, default=4, metavar="D", help="steps on the way (default %(default)s)")
    made.add_argument("--alpha", type=float, default=0.0, help="of a worker's own values (default %(default)s)")
    made.add_argument("--outer-lr", type=float, default=1.0, metavar="LR", help="(default %(default)s)")
    made.add_argument("--outer-momentum", type=float, default=0.0, metavar="M", help="(default %(default)s)")
    made.add_argument("--compress", choices=NAMES[1:], help="codes instead of float32")
    made.add_argument("--plot", type=Path, metavar="PNG", help="draw the loss over wall time; needs matplotlib")
    return made


def problem_of(options: argparse.Namespace, ranks: int) -> str | None:
    """What does not fit together, or not the number of ranks."""
    if options.plot and not importlib.util.find_spec("matplotlib"):
        return "--plot needs matplotlib: pip install matplotlib"
    if options.plot and not options.plot.absolute().parent.is_dir():
        return f"--plot {options.plot}: there is no folder {options.plot.parent}"
    if not options.far and (options.bandwidth or options.rtt):
        return (
            "--bandwidth and --rtt are of the link between namespaces that this program makes: leave them out with "
            "--loopback and under torchrun"
        )
    if options.steps < 2 * options.every:
        return f"--steps is {options.steps}, must be at least two rounds of --every {options.every}"
    try:
        Options(**arguments_of(options, ranks)).check(ranks)
    except ValueError as error:
        return str(error).removeprefix("DiLoCo: ")
    return None


def take_link(options: argparse.Namespace) -> None:
    """Ranks are on hosts with the link that was asked for, or the default one."""
    options.far = True
    options.bandwidth = options.bandwidth or units.bandwidth(LINK[0])
    options.rtt = options.rtt or units.seconds(LINK[1])


def on_far_hosts(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """The ranks in namespaces of this machine; the exit status."""
    take_link(options)
    said = problem_of(options, options.nproc)
    if not said and options.nproc > MAX_HOSTS:
        said = f"--nproc is {options.nproc}: with each rank on a host of its own it can be {MAX_HOSTS} at most"
    if not said and (why := why_not_far()):
        said = f"{why}. --loopback trains on this host instead, where the link is neither slow nor long"
    if said:
        print(f"slow_link: {said}", file=sys.stderr)
        return 2
    launch.Interrupt().install()
    try:
        with FarNetwork(options.nproc, 1e3 * options.rtt, 8e-6 * options.bandwidth) as network:
            return launch.on_hosts(MODULE, network.hosts, ["--far", *arguments])
    except (RuntimeError, Refused, subprocess.TimeoutExpired) as error:
        print(f"slow_link: {error}", file=sys.stderr)
        return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    options = parser().parse_args(arguments)
    if options.far:
        take_link(options)
    if not launch.started_by_torchrun() and not options.loopback:
        return on_far_hosts(options, sys.argv[1:] if arguments is None else arguments)

    def reported() -> dict[str, Any]:
        report = work(options)
        if options.plot and dist.get_rank() == 0:
            draw(report, options.plot)
            print(f"picture: {options.plot}", file=sys.stderr, flush=True)
        return report

    return launch.on_ranks(MODULE, options, reported, render, lambda ranks: problem_of(options, ranks))


if __name__ == "__main__":
    sys.exit(main())
