"""What the replicas train: a tanh network in float64 on 4096 samples; on ranks, and in one process to compare with."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import ringdp
from ringdp.testing import one_process

SAMPLES, INPUTS, HIDDEN = 4096, 16, 32
RATE, STEPS = 0.02, 200
DATA_SEED, PARAMETER_SEED = 7, 0


@dataclass(frozen=True)
class Trained:
    """What all ranks know at the end.

    parameters: rank 0's, flat. losses: every rank's over all samples. drift: the largest distance of any two ranks at
    any step. offset: rank 1's distance from rank 0 at the start; offset_change: by how much the differences of all
    ranks from rank 0 have changed at most. warning: what the wrapper said of the starts, or "".
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
    """The largest difference of two places."""
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
    before = after = everyones(model)
    drift = spread(before)
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = squares(ddp, part)
        if how == "weighted":
            ddp.backward(total, weight=sizes[rank])
        else:
            (total / sizes[rank]).backward()
        optimizer.step()
        after = everyones(model)
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


def everyones(model: nn.Module) -> Tensor:
    """Every rank's parameters: [ranks, parameters]. Collective."""
    mine = flat(model)
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, mine)
    return torch.stack(gathered)


def spread(of_ranks: Tensor) -> float:
    """The largest distance of any two rows."""
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
