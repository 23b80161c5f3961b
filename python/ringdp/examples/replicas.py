"""Replicas that never drift: 200 steps on N ranks against one machine, and the two ways to break it.

    torchrun --nproc-per-node 8 -m ringdp.examples.replicas        (or without torchrun: python -m ...)

A small network in float64 descends on 4096 samples, all of them in every step. Every rank has the samples of its own
part; gradients are averaged. Then (--all shows the four)

* replicas agree to the bit at every step, and end where one machine ends that takes the whole batch: the distance is
  the rounding of another order of summation, and to one machine that sums the parts in rank order it is 0;
* with parts of unequal sizes (--sizes) the mean of the parts' means (--how mean) is another gradient: one sample of a
  small part counts more. ringdp's weights (--how weighted) divide by all samples once, and the distance is 0 again;
* replicas that begin differently (--starts different) stay different: equal updates keep every difference.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import ringdp
from ringdp.examples import launch
from ringdp.testing import one_process

SAMPLES, INPUTS, HIDDEN = 4096, 16, 32
RATE, STEPS = 0.02, 200
DATA_SEED, PARAMETER_SEED = 7, 0


@dataclass(frozen=True)
class Trained:
    """The result on all ranks.

    parameters: rank 0's, flat. losses: every rank's over all samples. drift: the largest distance between any two ranks
    at any step. offset: the distance of rank 1 from rank 0 at the start; offset_change: the largest change of a rank's
    difference from rank 0. warning: the wrapper's warning about different starts, or "".
    """

    parameters: Tensor
    losses: list[float]
    drift: float
    offset: float
    offset_change: float
    warning: str


@cache
def samples() -> tuple[Tensor, Tensor]:
    """x [SAMPLES, INPUTS] and y [SAMPLES, 1], equal on all ranks."""
    import numpy as np

    source = np.random.default_rng(DATA_SEED)
    x = source.standard_normal((SAMPLES, INPUTS))
    direction = source.standard_normal((INPUTS, 1))
    y = np.tanh(x @ direction) + 0.05 * source.standard_normal((SAMPLES, 1))
    return torch.from_numpy(x), torch.from_numpy(y)


def network(seed: int = PARAMETER_SEED) -> nn.Sequential:
    """Weights of a tenth of a normal deviate, no biases."""
    import numpy as np

    source = np.random.default_rng(seed)
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)).double()
    for layer in (model[0], model[2]):
        layer.weight.data = torch.from_numpy(0.1 * source.standard_normal(layer.weight.T.shape)).T.contiguous()
        nn.init.zeros_(layer.bias)
    return model


def squares(model: nn.Module, which: slice = slice(None)) -> Tensor:
    """The sum of squared errors over these samples."""
    x, y = samples()
    return (model(x[which]) - y[which]).pow(2).sum()


def flat(model: nn.Module) -> Tensor:
    """A copy of the parameters as one vector."""
    return parameters_to_vector(model.parameters()).detach().clone()


def distance(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference of two vectors."""
    return float((one - other).abs().max())


def loss_of(parameters: Tensor) -> float:
    """The mean squared error over all samples."""
    model = network()
    vector_to_parameters(parameters, model.parameters())
    with torch.no_grad():
        return float(squares(model)) / SAMPLES


def parts_of(sizes: list[int]) -> list[slice]:
    """The samples of each rank."""
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def train(sizes: list[int], how: str, different_starts: bool = False) -> Trained:
    """All steps on this rank, which has `sizes[rank]` of the samples; collective over the default group.

    how: "mean" averages the means of the parts; "weighted" divides the sum over all samples by their number.
    """
    rank, part = dist.get_rank(), parts_of(sizes)[dist.get_rank()]
    model = network(PARAMETER_SEED + rank if different_starts else PARAMETER_SEED)
    with warnings.catch_warnings(record=True) as said:
        # With init_sync all ranks would start from the parameters of rank 0.
        ddp = ringdp.DistributedDataParallel(model, init_sync=not different_starts)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE)
    before = after = parameters_by_rank(model)
    drift = spread(before)
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = squares(ddp, part)
        if how == "weighted":
            ddp.backward(total, weight=sizes[rank])
        else:
            (total / sizes[rank]).backward()
        optimizer.step()
        after = parameters_by_rank(model)
        drift = max(drift, spread(after))
    offsets, in_the_end = before - before[0], after - after[0]
    return Trained(
        parameters=after[0],
        losses=[loss_of(parameters) for parameters in after],
        drift=drift,
        offset=float(offsets[1:2].abs().max()) if len(sizes) > 1 else 0.0,
        offset_change=distance(in_the_end, offsets),
        warning=str(said[0].message) if said else "",
    )


def parameters_by_rank(model: nn.Module) -> Tensor:
    """Every rank's parameters: [ranks, parameters]. Collective."""
    mine = flat(model)
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, mine)
    return torch.stack(gathered)


def spread(of_ranks: Tensor) -> float:
    """The largest distance between any two rows."""
    return float((of_ranks.amax(0) - of_ranks.amin(0)).max())


@cache
def one_machine() -> Tensor:
    """Parameters after the same steps in this process, each with the whole batch at once."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (squares(model) / SAMPLES).backward()
        optimizer.step()
    return flat(model)


def parts_in_one_process(sizes: list[int], how: str) -> Tensor:
    """Parameters after the same steps in this process, which sums the gradients of the parts in rank order."""
    model, parts = network(), parts_of(sizes)
    scale = [1.0] * len(sizes) if how == "weighted" else [1.0 / size for size in sizes]
    one_process(
        model,
        torch.optim.SGD(model.parameters(), lr=RATE),
        lambda of_rank, rank, step, micro: squares(of_rank, parts[rank]) * scale[rank],
        ranks=len(sizes),
        steps=STEPS,
        weights=(lambda rank, step: sizes[rank]) if how == "weighted" else None,
    )
    return flat(model)


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
    """The report of one case: what the ranks have, compared with one machine. In one process."""
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
    """All cases on all ranks, then the comparisons on rank 0, for which no rank waits; elsewhere {}. Collective."""
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
    """A sentence about options that are invalid for this number of ranks, or None."""
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
