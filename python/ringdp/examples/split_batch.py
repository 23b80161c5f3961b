"""The first idea: split the batch, copy the weights. The forward pass then needs no communication.

    torchrun --nproc-per-node 2 -m ringdp.examples.split_batch        (or without torchrun: python -m ...)

Every rank multiplies its rows by the whole weights. Laid end to end the ranks' outputs are the whole output; in
backward one all_reduce with AVG gives all of them the gradient of the whole batch, so the copies stay equal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ringdp.examples import launch
from ringdp.text.units import counted

MODULE = "ringdp.examples.split_batch"
ROWS, INPUTS, OUTPUTS = 5120, 2048, 1024
# Sums of so small whole numbers are exact in float32, so equality does not hang on how a matrix product adds up.
LARGEST = 4


def whole_numbers(rows: int, columns: int, seed: int) -> Tensor:
    """float32 values from -LARGEST to LARGEST."""
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-LARGEST, LARGEST + 1, (rows, columns), generator=source).float()


def multiply(rows: Tensor, weights: Tensor) -> Tensor:
    """The layer: [b, d] by [d, f]."""
    return torch.einsum("bd,df->bf", rows, weights)


def work() -> dict[str, Any]:
    """The product in parts and whole, and the weights' gradient in parts and whole. Collective."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    batch, weights = whole_numbers(ROWS, INPUTS, 1), whole_numbers(INPUTS, OUTPUTS, 2).requires_grad_()
    mine = batch.tensor_split(ranks)[rank]
    sent_before = counted_bytes()
    output = multiply(mine, weights)
    sent_in_forward = counted_bytes() - sent_before
    output.sum().backward()
    gradient = weights.grad / len(mine)  # of the mean over this rank's rows
    dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
    parts = [output.new_empty(len(part), OUTPUTS) for part in batch.tensor_split(ranks)]
    dist.all_gather(parts, output.detach())
    of_whole_batch = batch.mean(0)[:, None].expand_as(gradient)
    return {
        "ranks": ranks,
        "rows": ROWS,
        "rows_per_rank": len(mine),
        "bytes_moved_in_forward": sent_in_forward,
        "concatenation_equals_whole": torch.equal(torch.cat(parts), multiply(batch, weights.detach())),
        "gradient_gap": float((gradient - of_whole_batch).abs().max()),
    }


def counted_bytes() -> int:
    """What this rank's group has sent on links and read and written in shared memory so far."""
    counters = dist.group.WORLD._get_backend(torch.device("cpu")).counters()
    return sum(value for name, value in counters.items() if "bytes" in name)


def render(report: dict[str, Any]) -> str:
    """The report as text."""
    return "\n".join(
        [
            f"rows on each of {report['ranks']} ranks                   {report['rows_per_rank']} of {report['rows']}",
            f"bytes moved in the forward pass          {report['bytes_moved_in_forward']}",
            f"outputs end to end equal the whole one   {'yes' if report['concatenation_equals_whole'] else 'NO'}",
            f"mean gradient to the whole batch's       {report['gradient_gap']:.1e} at most",
        ]
    )


def problem_of(ranks: int) -> str | None:
    """Equal parts only: with others the mean of the parts' means is not the whole batch's."""
    return f"{ROWS} rows do not come out even on {counted(ranks, 'rank')}; take 2, 4, 5 or 8" if ROWS % ranks else None


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return launch.parser_for(MODULE, "A matrix product whose batch is split over ranks.", 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    return launch.on_ranks(MODULE, parser().parse_args(arguments), work, render, problem_of)


if __name__ == "__main__":
    sys.exit(main())
