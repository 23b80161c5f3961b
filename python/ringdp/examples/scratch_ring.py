"""One step of data-parallel descent with nothing hidden: the textbook's ring all-reduce in plain Python.

    torchrun --nproc-per-node 4 -m ringdp.examples.scratch_ring        (or without torchrun: python -m ...)

Every rank fits y = w x + b to points of its own, from w = b = 0. The mean of the ranks' gradients is the gradient of
all points together, so one step with it is the step that one machine takes with the whole batch. The mean is computed
by a ring written out with send and recv, and compared with ringdp's all_reduce of the same numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ringdp.examples import launch

MODULE = "ringdp.examples.scratch_ring"
POINTS = 8  # on every rank
RATE = 0.1
SEED = 0
SLOPE, OFFSET, NOISE = 3.0, 0.5, 0.1
LONG = 1001  # elements of a second tensor, which no number of ranks from 2 to 6 divides


def ring_all_reduce(mine: Tensor) -> Tensor:
    """The sum of all ranks' 1-D tensors, each of which has the same length: any, also less than the number of ranks.

    A tensor is cut into N chunks of nearly equal length. In round s of the first half rank r sends chunk r-s to rank
    r+1, which adds its own to it: after N-1 rounds rank r has the whole sum of chunk r+1. In the second half the sums
    go round once. That is 2(N-1) rounds, in each of which a rank sends 1/N of the tensor.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = mine.clone()
    chunks = total.tensor_split(ranks)  # views; some are empty when there are fewer elements than ranks
    for s in range(ranks - 1):
        coming = chunks[(rank - s - 1) % ranks]  # the chunk that the neighbour sends, which is not the one sent here
        coming += pass_on(chunks[(rank - s) % ranks], torch.empty_like(coming))
    for s in range(ranks - 1):
        pass_on(chunks[(rank - s + 1) % ranks], chunks[(rank - s) % ranks])
    return total


def pass_on(leaving: Tensor, arriving: Tensor) -> Tensor:
    """Sends to the next rank and receives from the one before, at once; otherwise all would wait for one another."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sending = dist.isend(leaving, (rank + 1) % ranks)
    dist.recv(arriving, (rank - 1) % ranks)
    sending.wait()
    return arriving


def shards(ranks: int) -> list[tuple[Tensor, Tensor]]:
    """(x, y) of every rank, float64: drawn once, so what is compared in the end is what was trained on."""
    import numpy as np

    source = np.random.RandomState(SEED)
    drawn = []
    for rank in range(ranks):
        x = source.randn(POINTS).astype(np.float32) + rank  # each rank sees another part of the line
        y = SLOPE * x + OFFSET + NOISE * source.randn(POINTS)
        drawn.append((torch.from_numpy(x).double(), torch.from_numpy(y)))
    return drawn


def gradient(x: Tensor, y: Tensor) -> Tensor:
    """Of the mean squared error with respect to (w, b), at w = b = 0. float64."""
    error = 0.0 * x + 0.0 - y
    return torch.stack([(2 * error * x).mean(), (2 * error).mean()])


def work() -> dict[str, Any]:
    """One step on this rank, and what it is compared with. Collective."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    by_rank = shards(ranks)
    mine = gradient(*by_rank[rank]).float()
    mean = ring_all_reduce(mine) / ranks
    whole = gradient(torch.cat([x for x, _ in by_rank]), torch.cat([y for _, y in by_rank]))
    w, b = (-RATE * mean).tolist()
    return {
        "ranks": ranks,
        "local_gradients": [gradient(*shard).tolist() for shard in by_rank],
        "mean_gradient": mean.tolist(),
        "big_batch_gradient": whole.tolist(),
        "w": w,
        "b": b,
        **beside_ringdp(mine),
    }


def beside_ringdp(mine: Tensor) -> dict[str, Any]:
    """The ring by hand against ringdp's all_reduce of the gradient and of a longer tensor. Collective.

    Summed in the same order they are equal to the bit. ringdp's default is rank order at every place of a tensor; the
    ring begins each chunk at another rank, so beyond two ranks it rounds elsewhere.
    """
    rotated = dist.new_group(pg_options={"algorithm": "ring", "order": "rotated"})
    longer = torch.randn(LONG, generator=torch.Generator().manual_seed(dist.get_rank()))
    same, gap = [], 0.0
    for tensor in (mine, longer):
        by_hand = ring_all_reduce(tensor)
        of_ring, in_rank_order = tensor.clone(), tensor.clone()
        dist.all_reduce(of_ring, group=rotated)
        dist.all_reduce(in_rank_order)
        same.append(torch.equal(by_hand, of_ring))
        gap = max(gap, float((by_hand - in_rank_order).abs().max()))
    dist.destroy_process_group(rotated)
    return {"equal_to_ringdp_ring": all(same), "gap_to_rank_order": gap}


def render(report: dict[str, Any]) -> str:
    """The report as text."""
    lines = [f"gradient (w, b) on rank {r}    {_pair(pair)}" for r, pair in enumerate(report["local_gradients"])]
    lines += [
        f"mean over the ring          {_pair(report['mean_gradient'])}",
        f"of the whole batch          {_pair(report['big_batch_gradient'])}",
        f"after one step              w = {report['w']:+.4f}   b = {report['b']:+.4f}",
        f"ringdp's ring, same bits    {'yes' if report['equal_to_ringdp_ring'] else 'NO'}",
        f"to the sum in rank order    {report['gap_to_rank_order']:.1e} at most",
    ]
    return "\n".join(lines)


def _pair(values: Sequence[float]) -> str:
    return f"({values[0]:+.4f}, {values[1]:+.4f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    options = parser().parse_args(arguments)
    return launch.on_ranks(MODULE, options, work, render)


def parser() -> Any:
    """The command line."""
    return launch.parser_for(MODULE, "One step of data-parallel descent over a ring all-reduce in plain Python.", 4)


if __name__ == "__main__":
    sys.exit(main())
