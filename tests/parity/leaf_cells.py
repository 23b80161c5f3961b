"""Steps of a fixed number of micro-batches (leaves): cells of nine models, numbers of ranks, types, stages, buckets,
transports and allotments of leaves, in each of which every rank ends with the state of one process.

    python tests/parity/leaf_cells.py --cells 600 --seed 1     # a sample of all cells; --minutes 30 ends it earlier
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # pytest has these paths; ranks take them over
    ROOT = Path(__file__).resolve().parents[2]
    sys.path[1:1] = [str(ROOT / folder) for folder in ("tests", "tests/python/ddp", "python")]

import leafy
import ringdp
import torch
import training
from ranks import HERE, KeptWorlds, World, group_of
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from torch import Tensor, nn

# "odd" has no shard or bucket that ends at a cache line, "wide" has more than one bucket of 25 MB.
WIDTHS = {"odd": 173, "wide": 2600}
AXES: dict[str, tuple[Any, ...]] = {
    "model": ("mlp", "gpt", "conv", "unused", *leafy.MODELS, *WIDTHS),
    "ranks": tuple(range(1, 9)),
    "micro_batches": (8, 24),
    "dtype": ("float32", "bfloat16"),
    "stage": (0, 1, 2, 3),
    "bucket": ("1KB", "25MB"),
    "path": ("shm", "tcp", "gloo"),
    "allotment": (0, 1, 2),
}
WITHIN_S = 300.0  # a cell; the ranks' own deadline is 60 for each collective
FAILURES = 5  # then the rest is not run


@dataclass(frozen=True)
class LeafCell:
    """allotment: the number of a random one. path: the transport, or gloo as the group's backend."""

    model: str
    ranks: int
    micro_batches: int
    dtype: str
    stage: int
    bucket: str
    path: str
    allotment: int


def sample(count: int, seed: int, **within: tuple[Any, ...]) -> list[LeafCell]:
    """So many different cells, or all there are. within: the values of some axes that are wanted."""
    axes = {**AXES, **within}
    draw = random.Random(seed)
    chosen: dict[LeafCell, None] = {}
    while len(chosen) < min(count, prod(map(len, axes.values()))):
        chosen[LeafCell(**{name: draw.choice(values) for name, values in axes.items()})] = None
    return list(chosen)


def steps_of(model: str) -> int:
    return 1 if model == "wide" else 3


def made(model: str, dtype: str) -> nn.Module:
    if model in leafy.MODELS:
        return leafy.made(model, dtype)
    if model not in WIDTHS:
        return training.make(model).to(getattr(torch, dtype))
    torch.manual_seed(training.SEED)
    width = WIDTHS[model]
    layers = [nn.Linear(12, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3)]
    return nn.Sequential(*layers).to(getattr(torch, dtype))


def loss_of(name: str, model: nn.Module, step: int, leaf: int) -> Tensor:
    """A function of step and leaf only."""
    if name in leafy.MODELS:
        return leafy.loss_of(model, 0, step, leaf)
    return training.model_loss("mlp" if name in WIDTHS else name, model, leaf, step)


State = tuple[str, str]  # digests of values and of the optimizer's state, '' where this rank has only a part of that


def digest(named: Iterable[tuple[str, Any]]) -> str:
    total = hashlib.sha256()
    for name, value in named:
        flat = torch.as_tensor(value).detach().contiguous().flatten()
        total.update(f"{name} {flat.dtype} {flat.numel()}\0".encode())
        total.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return total.hexdigest()


def state_of(values: dict[str, Tensor], optimizer: dict[str, Any] | None) -> State:
    """Parameters and buffers; and the optimizer's state in torch's form."""
    entries = sorted((optimizer or {}).get("state", {}).items())
    moments = ((f"{number} {key}", value) for number, entry in entries for key, value in sorted(entry.items()))
    return digest(sorted(values.items())), digest(moments) if optimizer else ""


@cache
def in_one_process(name: str, micro_batches: int, dtype: str) -> State:
    model = made(name, dtype)
    optimizer = leafy.optimizer_for(model)

    def loss(model: nn.Module, rank: int, step: int, leaf: int) -> Tensor:
        return loss_of(name, model, step, leaf)

    one_process(model, optimizer, loss, steps=steps_of(name), micro_batches=micro_batches)
    return state_of(model.state_dict(), optimizer.state_dict())


def wrapped(name: str, dtype: str, stage: int, **arguments: Any) -> DistributedDataParallel:
    """Collective. One unit at stage 3 for the model that reads a weight of another module."""
    units = [] if stage == 3 and name == "gpt" else None
    return DistributedDataParallel(made(name, dtype), zero_stage=stage, units=units, **arguments)


def on_this_rank(cell: LeafCell) -> State:
    """After some steps. Collective."""
    ddp = wrapped(
        cell.model,
        cell.dtype,
        cell.stage,
        process_group=group_of("gloo" if cell.path == "gloo" else "ringdp"),
        bucket_cap_mb=training.BUCKETS[cell.bucket],
        micro_batches=cell.micro_batches,
    )
    optimizer = leafy.optimizer_of(ddp)
    mine = leafy.allotment(f"cell {cell.allotment}", cell.micro_batches, HERE.size)[HERE.rank]
    for step in range(steps_of(cell.model)):
        for leaf in mine:
            with ringdp.leaf(step, leaf):
                loss_of(cell.model, ddp, step, leaf).backward()
        optimizer.step()
        optimizer.zero_grad()
    return final_state(ddp, optimizer)


def final_state(ddp: DistributedDataParallel, optimizer: Any) -> State:
    """On a rank; of a sharded optimizer only rank 0 has the state. Collective."""
    if is_sharded := ddp.reducer.zero_stage > 0:
        optimizer.consolidate_state_dict(to=0)
    return state_of(ddp.full_state_dict(), None if is_sharded and HERE.rank else optimizer.state_dict())


def in_rank_order(name: str, micro_batches: int) -> State:
    """On a rank: the default contract. Each rank adds up its block of leaves, then ranks are added up in order."""
    ddp = DistributedDataParallel(made(name, "float32"))
    optimizer = leafy.optimizer_for(ddp)
    blocks = [
        range(rank * micro_batches // HERE.size, (rank + 1) * micro_batches // HERE.size) for rank in range(HERE.size)
    ]
    for step in range(steps_of(name)):
        for leaf in (block := blocks[HERE.rank]):
            ddp.require_backward_grad_sync = leaf == block[-1]
            with ringdp.leaf(step, leaf):
                ddp.backward(loss_of(name, ddp, step, leaf), weight=1)  # divided once, by all weights
        optimizer.step()
        optimizer.zero_grad()
    return state_of(ddp.full_state_dict(), optimizer.state_dict())


def verdict(world: World, cell: LeafCell) -> str:
    """'' if all ranks are equal to one process; else what is wrong."""
    world.begin(on_this_rank, cell)
    try:
        want = in_one_process(cell.model, cell.micro_batches, cell.dtype)
    finally:
        outcomes = world.finish(within=WITHIN_S)
    if failed := next((outcome for outcome in outcomes if outcome.error), None):
        return f"rank {failed.rank} failed: {failed.trace}"
    found = [outcome.value for outcome in outcomes]
    ranks = [rank for rank, state in enumerate(found) if state not in (want, (want[0], ""))]
    return f"ranks {ranks} differ: {found}, not {want}" if ranks or not found[0][1] else ""


def tally(
    world_of: Callable[..., World], cells: Iterable[LeafCell], until: float, progress: Callable[[str], None]
) -> tuple[int, list[str]]:
    """How many were run, and what was wrong. Cells of one world come together."""
    count = 0
    wrong: list[str] = []
    for cell in sorted(cells, key=lambda cell: (cell.ranks, cell.path == "tcp")):
        if time.monotonic() > until or len(wrong) == FAILURES:
            break
        try:
            said = verdict(world_of(cell.ranks, transport="tcp" if cell.path == "tcp" else "shm"), cell)
        except Exception as error:  # a rank has died or hangs, or the one process has failed
            said = f"{type(error).__name__}: {error}"
        count += 1
        if said:
            wrong.append(f"{cell}: {said}")
            world_of.drop_used()  # the state of its ranks is unknown
        progress(f"{cell}: {said or 'equal'}")
    return count, wrong


def main() -> int:
    """Prints the seed, what was equal, and each cell that was not; status 1 if any was not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--verbose", action="store_true", help="a line per cell")
    options = parser.parse_args()
    torch.set_num_threads(1)
    worlds, start = KeptWorlds(), time.monotonic()
    progress = (lambda line: print(line, flush=True)) if options.verbose else (lambda line: None)
    until = start + 60 * options.minutes
    try:
        count, wrong = tally(worlds, sample(options.cells, options.seed), until, progress)
    finally:
        worlds.close()
    print("\n\n".join([*wrong, f"seed {options.seed}, {count} of {options.cells} cells: {len(wrong)} wrong"]))
    print(f"{(time.monotonic() - start) / max(1, count):.2f} s per cell")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
