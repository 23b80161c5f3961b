"""What every rank tells the others at the end of a step of micro-batches (leaves), and what all conclude from it.

All ranks see the same table, so that all raise the same error, and nobody waits for a rank that has raised one.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringdp.text.units import names, ranks_by_value

_HEADER = 6


@dataclass
class Told:
    """Of one rank: what it has run since the latest average.

    step: None without a leaf. weights: of the leaves that were given one. used: by parameter, whether a leaf had a
    gradient. optimizer_steps: how many times optimizers have stepped the wrapper's parameters. sent: whether what it
    has sent ahead are the sums that it holds. changed: whether a leaf has changed gradients after its backward pass.
    expected: a number that stands for the allotment by which it has sent (`number_of`).
    """

    step: int | None = None
    leaves: list[int] = field(default_factory=list)
    weights: dict[int, float] = field(default_factory=dict)
    used: list[bool] = field(default_factory=list)
    optimizer_steps: int = 0
    sent: bool = True
    changed: bool = False
    expected: int = 0

    def numbers(self, micro_batches: int) -> list[float]:
        """As many on every rank; the inverse of `told`."""
        counted = Counter(self.leaves)
        outside = next((leaf for leaf in counted if not 0 <= leaf < micro_batches), None)
        header = [math.nan if n is None else n for n in (self.step, self.optimizer_steps, outside)]
        header += [self.sent, self.changed, self.expected]
        counts = [counted[leaf] for leaf in range(micro_batches)]
        weights = [self.weights.get(leaf, math.nan) for leaf in range(micro_batches)]
        return [*header, *counts, *weights, *self.used]


def told(numbers: Sequence[float], micro_batches: int) -> Told:
    """From the numbers of a rank."""
    step, optimizer_steps, outside, sent, changed, expected = numbers[:_HEADER]
    counts = numbers[_HEADER : _HEADER + micro_batches]
    weights = numbers[_HEADER + micro_batches : _HEADER + 2 * micro_batches]
    leaves = [leaf for leaf, count in enumerate(counts) for _ in range(int(count))]
    return Told(
        None if math.isnan(step) else int(step),
        leaves if math.isnan(outside) else [*leaves, int(outside)],
        {leaf: weight for leaf, weight in enumerate(weights) if not math.isnan(weight)},
        [bool(used) for used in numbers[_HEADER + 2 * micro_batches :]],
        int(optimizer_steps),
        bool(sent),
        bool(changed),
        int(expected),
    )


@dataclass
class Agreed:
    """leaves: by rank, sorted. used: by parameter, whether any leaf had a gradient. divisor: of the sum of all leaves.

    weighted: whether it is the sum of weights. sent, changed: whether all ranks have sent what they hold; whether any
    leaf has changed gradients.
    """

    leaves: list[list[int]]
    used: list[bool]
    divisor: float
    weighted: bool
    sent: bool
    changed: bool

    def rank_of(self, leaf: int) -> int:
        """Which rank has run it."""
        return next(rank for rank, leaves in enumerate(self.leaves) if leaf in leaves)


def agreed(by_rank: Sequence[Told], micro_batches: int) -> Agreed:
    """RuntimeError names what is wrong, unless each micro-batch of one step was run once."""
    _check_expected(by_rank)
    _check_steps(by_rank)
    _check_leaves(by_rank, micro_batches)
    weights = {leaf: weight for one in by_rank for leaf, weight in one.weights.items()}
    if weights and len(weights) < micro_batches:
        without = names((leaf for leaf in range(micro_batches) if leaf not in weights), "micro-batch")
        raise _error(
            f"{names(weights, 'micro-batch')} had a weight and {without} had none: give all of them one, or none"
        )
    divisor = _tree_sum(weights, 0, micro_batches) if weights else float(micro_batches)
    if not (divisor > 0 and math.isfinite(divisor)):
        raise _error(f"the weights of all micro-batches add up to {divisor}, must be above 0 and finite")
    return Agreed(
        [sorted(one.leaves) for one in by_rank],
        [any(used) for used in zip(*(one.used for one in by_rank), strict=True)],
        divisor,
        bool(weights),
        all(one.sent for one in by_rank),
        any(one.changed for one in by_rank),
    )


def number_of(allotment: Sequence[Sequence[int]] | None) -> int:
    """A checksum of the leaves of each rank; 0 for None."""
    return zlib.crc32(repr([list(leaves) for leaves in allotment]).encode()) if allotment is not None else 0


def _check_expected(by_rank: Sequence[Told]) -> None:
    ranks_of = ranks_by_value({rank: one.expected for rank, one in enumerate(by_rank)})
    if len(ranks_of) > 1:
        different = "; ".join(f"{names(ranks)}: {number:#010x}" for number, ranks in ranks_of.items())
        raise _error(
            f"the ranks have sent sums by different allotments of micro-batches ({different}), though each is the one "
            "that all of them have agreed on: a memory error. Nothing of it is used: restart from a checkpoint"
        )


def _check_steps(by_rank: Sequence[Told]) -> None:
    ranks_of = ranks_by_value({rank: one.step for rank, one in enumerate(by_rank) if one.step is not None})
    if len(ranks_of) > 1:
        different = "; ".join(f"{names(ranks)}: step {step}" for step, ranks in ranks_of.items())
        raise _error(f"the ranks have run leaves of different steps ({different}): every rank ends every step")
    counts = [one.optimizer_steps for one in by_rank]
    if len(set(counts)) > 1:
        raise _error(
            f"by rank, optimizers have stepped {', '.join(map(str, counts))} times: a rank without a leaf calls "
            "optimizer.step() as well, and ddp.finish_step() before it where several optimizers take turns"
        )


def _check_leaves(by_rank: Sequence[Told], micro_batches: int) -> None:
    ranks_of: dict[int, list[int]] = {}
    for rank, one in enumerate(by_rank):
        for leaf in one.leaves:
            ranks_of.setdefault(leaf, []).append(rank)
    for leaf, ranks in sorted(ranks_of.items()):
        if not 0 <= leaf < micro_batches:
            raise _error(f"{names(ranks)} ran micro-batch {leaf}, must be one of 0 to {micro_batches - 1}")
        if len(ranks) > 1:
            who = names(ranks) if len(set(ranks)) > 1 else f"rank {ranks[0]} twice"
            raise _error(f"micro-batch {leaf} was run by {who}: each is run once in a step, by one rank")
    if missing := [leaf for leaf in range(micro_batches) if leaf not in ranks_of]:
        raise _error(f"no rank has run {names(missing, 'micro-batch')} of {micro_batches}: each is run once in a step")


def _tree_sum(weights: dict[int, float], begin: int, end: int) -> float:
    """Along the tree of the gradients, so that fractions have the same bits for every allotment, too."""
    if end - begin == 1:
        return weights[begin]
    middle = begin + (end - begin + 1) // 2
    return _tree_sum(weights, begin, middle) + _tree_sum(weights, middle, end)


def _error(text: str) -> RuntimeError:
    return RuntimeError(f"DistributedDataParallel(micro_batches): {text}")
