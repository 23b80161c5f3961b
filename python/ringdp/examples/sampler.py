"""What ranks are fed: torch's DistributedSampler, and what happens without it. One process, no ranks needed.

    python -m ringdp.examples.sampler

A plain shuffling DataLoader on every rank draws from the whole data set. With one seed all ranks take the same
samples; with seeds of their own they overlap, and in an epoch of 1/N of the data per rank a third of it is never seen.
The shares are counted here, beside what is expected of random draws.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.data import DistributedSampler, RandomSampler, TensorDataset

from ringdp.text.units import counted

MODULE = "ringdp.examples.sampler"
Feed = Callable[[int, int], list[int]]  # (rank, epoch) -> the samples of that rank in their order


@dataclass(frozen=True)
class Shares:
    """distinct_in_a_step: the share of distinct samples among those that all ranks take in a step (mean).

    seen_in_an_epoch: the share of the data that is taken by any rank when each takes 1/N of it. fresh_order: whether
    the next epoch has another order.
    """

    distinct_in_a_step: float
    seen_in_an_epoch: float
    fresh_order: bool


def feeds(samples: int, ranks: int, seed: int = 0) -> dict[str, Feed]:
    """By name, ways to feed ranks."""
    dataset = TensorDataset(torch.empty(samples, 0))

    def shuffled(seed_of_rank: int, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed_of_rank + 1000 * epoch)
        return list(RandomSampler(dataset, generator=generator))[: samples // ranks]

    def distributed(rank: int, epoch: int) -> list[int]:
        sampler = DistributedSampler(dataset, ranks, rank, shuffle=True, seed=seed, drop_last=True)
        sampler.set_epoch(epoch)
        return list(sampler)

    return {
        "plain loader, one seed": lambda rank, epoch: shuffled(seed, epoch),
        "plain loader, own seeds": lambda rank, epoch: shuffled(seed + 1 + rank, epoch),
        "DistributedSampler": distributed,
        "DistributedSampler, no set_epoch": lambda rank, epoch: distributed(rank, 0),
    }


def count(feed: Feed, samples: int, ranks: int, batch: int) -> Shares:
    """What this feed does in epoch 0, in steps of `batch` samples per rank."""
    taken = torch.tensor([feed(rank, 0) for rank in range(ranks)])
    steps = taken.shape[1] // batch
    distinct = sum(len(taken[:, step * batch : (step + 1) * batch].unique()) for step in range(steps))
    return Shares(
        distinct_in_a_step=distinct / (steps * ranks * batch),
        seen_in_an_epoch=len(taken.unique()) / samples,
        fresh_order=feed(0, 1) != feed(0, 0),
    )


def expected(samples: int, ranks: int, batch: int) -> dict[str, tuple[float, float]]:
    """(distinct_in_a_step, seen_in_an_epoch) in the mean: N draws miss a sample with probability (1 - share)^N."""
    missed_in_a_step, missed_in_an_epoch = (1 - batch / samples) ** ranks, (1 - 1 / ranks) ** ranks
    return {
        "plain loader, one seed": (1 / ranks, 1 / ranks),
        "plain loader, own seeds": (samples * (1 - missed_in_a_step) / (ranks * batch), 1 - missed_in_an_epoch),
        "DistributedSampler": (1.0, 1.0),
        "DistributedSampler, no set_epoch": (1.0, 1.0),
    }


def report_of(samples: int, ranks: int, batch: int) -> dict[str, Any]:
    """Every feed, counted and expected."""
    means = expected(samples, ranks, batch)
    rows = {
        name: {
            **asdict(count(feed, samples, ranks, batch)),
            "expected_distinct_in_a_step": means[name][0],
            "expected_seen_in_an_epoch": means[name][1],
        }
        for name, feed in feeds(samples, ranks).items()
    }
    return {"samples": samples, "ranks": ranks, "batch_per_rank": batch, "feeds": rows}


def render(report: dict[str, Any]) -> str:
    """The report as text."""
    lines = [
        f"{counted(report['samples'], 'sample')}, {counted(report['ranks'], 'rank')}, "
        f"{counted(report['batch_per_rank'], 'sample')} per rank and step",
        f"{'':34}{'distinct in a step':>20}{'seen in an epoch':>20}  next epoch",
    ]
    for name, row in report["feeds"].items():
        cells = [
            f"{row[key]:8.1%} (~{row[f'expected_{key}']:.1%})" for key in ("distinct_in_a_step", "seen_in_an_epoch")
        ]
        lines.append(f"{name:34}{cells[0]:>20}{cells[1]:>20}  {'other' if row['fresh_order'] else 'SAME'} order")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="What ranks are fed with and without care.")
    made.add_argument("--samples", type=int, default=4096, metavar="N", help="in the data set (default %(default)s)")
    made.add_argument("--ranks", type=int, default=8, metavar="N", help="default %(default)s")
    made.add_argument("--batch", type=int, default=64, metavar="N", help="samples per rank and step (default 64)")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    made = parser()
    options = made.parse_args(arguments)
    if min(options.samples, options.ranks, options.batch) < 1:
        made.error("--samples, --ranks and --batch must be at least 1")
    if options.samples % (options.ranks * options.batch):
        made.error(f"--samples is {options.samples}, must be a multiple of --ranks x --batch")
    report = report_of(options.samples, options.ranks, options.batch)
    print(json.dumps(report) if options.json else render(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
