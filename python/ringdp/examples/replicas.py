"""Replicas that never drift: 200 steps on N ranks against one machine, and the two ways to break it.

    torchrun --nproc-per-node 8 -m ringdp.examples.replicas        (or without torchrun: python -m ...)

A small network in float64 descends on 4096 samples, all of them in every step. Every rank has the samples of its own
part; gradients are averaged. Then (--all shows the four)

* replicas agree to the bit at every step, and end where one machine ends that takes the whole batch: the distance is
  the rounding of another order of summation, and to one machine that sums the parts in rank order it is 0;
* with parts of unequal sizes (--sizes) the mean of the parts' means (--how mean) is another gradient: one sample of a
  small part counts more. ringdp's weights (--how weighted) divide by all samples once, and the distance is 0 again;
* replicas that begin unlike (--starts different) stay unlike: equal updates keep every difference for ever.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from ringdp.examples import launch
from ringdp.examples.regression import (
    SAMPLES,
    Trained,
    distance,
    loss_of,
    one_machine,
    parts_in_one_process,
    train,
)

MODULE = "ringdp.examples.replicas"
REPLICAS = 8


def even_sizes(replicas: int) -> list[int]:
    """All samples dealt out, the first ranks getting one more where it does not come out even."""
    return [len(part) for part in torch.arange(SAMPLES).tensor_split(replicas)]


def lopsided_sizes(replicas: int) -> list[int]:
    """Half of the samples for rank 0, the rest dealt out."""
    half = SAMPLES // 2
    return [half, *(len(part) for part in torch.arange(half).tensor_split(replicas - 1))]


@dataclass(frozen=True)
class Case:
    """One training. how: "mean" of the means of parts, or "weighted" by samples. starts: "same" or "different"."""

    sizes: list[int]
    how: str = "mean"
    starts: str = "same"


def cases_of(ranks: int) -> dict[str, Case]:
    """What --all runs."""
    even, lopsided = even_sizes(ranks), lopsided_sizes(ranks)
    return {
        "even": Case(even),
        "mean": Case(lopsided),
        "weighted": Case(lopsided, how="weighted"),
        "starts": Case(even, starts="different"),
    }


def compare(case: Case, trained: Trained) -> dict[str, Any]:
    """The report of one case: what the ranks have, beside one machine. In one process."""
    alone = one_machine()
    return {
        "replicas": len(case.sizes),
        **asdict(case),
        "drift": trained.drift,
        "gap": distance(trained.parameters, alone),
        "gap_in_parts": distance(trained.parameters, parts_in_one_process(case.sizes, case.how)),
        "loss_single": loss_of(alone),
        "loss_replica0": trained.losses[0],
        "losses": trained.losses,
        "offset": trained.offset,
        "offset_change": trained.offset_change,
        "warning": trained.warning,
    }


def report_of(cases: dict[str, Case]) -> dict[str, Any]:
    """All cases on all ranks, then the comparisons on rank 0, which nobody waits for; elsewhere {}. Collective."""
    trained = {name: train(case.sizes, case.how, case.starts == "different") for name, case in cases.items()}
    if dist.get_rank() != 0:
        return {}
    return {name: compare(case, trained[name]) for name, case in cases.items()}


def render(report: dict[str, Any]) -> str:
    """The report as text."""
    if "replicas" not in report:
        return "\n\n".join(render(each) for each in report.values())
    lines = [
        f"replicas {report['replicas']}, samples {'+'.join(map(str, report['sizes']))}, "
        f"{'weighted by samples' if report['how'] == 'weighted' else 'mean of means'}, {report['starts']} starts",
        f"  largest drift at any step      {report['drift']:.2e}",
    ]
    if report["starts"] == "same":
        lines += [
            f"  to one machine, whole batch    {report['gap']:.2e}",
            f"  to one machine, part by part   {report['gap_in_parts']:.2e}",
            f"  loss: one machine, replica 0   {report['loss_single']:.6f}, {report['loss_replica0']:.6f}",
        ]
    else:
        lines += [
            f"  replica 1 from 0 at the start  {report['offset']:.3f}",
            f"  differences have changed by    {report['offset_change']:.1e}",
            f"  losses of the replicas         {min(report['losses']):.3f} to {max(report['losses']):.3f}",
            f"  what the wrapper says          {report['warning'].partition(' First difference')[0]}",
        ]
    return "\n".join(lines)


def problem_of(options: argparse.Namespace, ranks: int) -> str | None:
    """What in the options does not fit this number of ranks."""
    if options.all and (options.sizes or options.how or options.starts):
        return "--all runs four cases of its own: leave it out, or --sizes, --how and --starts"
    if options.all and ranks < 2:
        return "--all needs at least 2 ranks"
    if options.sizes and len(options.sizes) != ranks:
        return f"--sizes has {len(options.sizes)} parts for {ranks} ranks, must be one per rank"
    if options.sizes and (sum(options.sizes) != SAMPLES or min(options.sizes) < 1):
        return f"--sizes are parts of {SAMPLES} samples, at least 1 each; these sum up to {sum(options.sizes)}"
    return None


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = launch.parser_for(MODULE, "Replicas on N ranks against one machine, over 200 steps.", REPLICAS)
    made.add_argument("--sizes", type=_sizes, metavar="A,B,...", help=f"parts of {SAMPLES} samples (default: even)")
    made.add_argument("--how", choices=("mean", "weighted"), help="what is averaged (default mean)")
    made.add_argument("--starts", choices=("same", "different"), help="initial parameters (default same)")
    made.add_argument("--all", action="store_true", help="even parts, unequal ones both ways, different starts")
    return made


def _sizes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of whole numbers, such as 2048,1024,1024") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    options = parser().parse_args(arguments)

    def work() -> dict[str, Any]:
        ranks = dist.get_world_size()
        if options.all:
            return report_of(cases_of(ranks))
        one = Case(options.sizes or even_sizes(ranks), options.how or "mean", options.starts or "same")
        return report_of({"one": one}).get("one", {})

    return launch.on_ranks(MODULE, options, work, render, lambda ranks: problem_of(options, ranks))


if __name__ == "__main__":
    sys.exit(main())
