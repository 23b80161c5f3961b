"""What is measured: microbenchmarks of several ways to do the same all_reduce, and how a threshold follows from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from random import Random
from statistics import mean, median, quantiles

from ringdp.text.units import counted

KIB, MIB = 1 << 10, 1 << 20
_NEVER, _ALWAYS = 0, 1 << 30
_DEMAND = {"algorithm": "auto", "order": "rank", "wire": "fp32", "transport": "shm"}  # whatever the environment says
_WORTH = 0.03  # a value other than the default has to be faster by so much

# Seconds by size: one list per round, with one time per candidate.
Times = Mapping[int, Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Microbenchmark:
    """Candidates for one field, each a group with these options; `shared`: tensors that need no copy.

    With `crossing` the first candidate is meant for small sizes and the second for large ones, and the field's value is
    the largest size that is still small. Otherwise it is one of `values`, the first of which is the default; with
    `doubling`, neighbours of the others are as good as alike. most_calls: timed together.
    """

    field: str
    ranks: int
    candidates: tuple[Mapping[str, object], ...]
    sizes: tuple[int, ...]
    shared: bool = False
    crossing: bool = True
    values: tuple[int, ...] = ()
    doubling: bool = False
    most_calls: int = 20


def _ratio(times: Times, size: int, candidate: int, against: int) -> float:
    """Median over rounds of candidate's time over the other's."""
    return median(row[candidate] / row[against] for row in times[size])


def crossing_of(times: Times) -> int:
    """Up to where the first candidate is the better choice: no other limit loses less, over all sizes by ratio."""
    sizes = sorted(times)
    limit = sizes[0] // 2
    best = loss = 0.0
    for size in sizes:
        loss += log(_ratio(times, size, 0, 1))
        if loss < best:
            best, limit = loss, size
    return limit


def fastest_of(times: Times, values: Sequence[int]) -> int:
    """The value of the fastest candidate; the first unless another is faster by _WORTH."""
    losses = [mean(log(_ratio(times, size, i, 0)) for size in times) for i in range(len(values))]
    fastest = min(range(len(values)), key=losses.__getitem__)
    return values[fastest] if losses[fastest] < -_WORTH else values[0]


def decide(benchmark: Microbenchmark, times: Times) -> int:
    """The field's value."""
    return crossing_of(times) if benchmark.crossing else fastest_of(times, benchmark.values)


_FEWEST_ROUNDS, _RESAMPLES = 5, 100


def confidence(benchmark: Microbenchmark, times: Times) -> float:
    """Share of resamplings of the rounds (a bootstrap) that decide alike; limits within a factor of two are.

    0 where there were too few rounds to tell.
    """
    rounds = min(map(len, times.values()))
    if rounds < _FEWEST_ROUNDS:
        return 0.0
    chosen, draw = decide(benchmark, times), Random(0)
    factor = 2 if benchmark.crossing or benchmark.doubling else 1
    alike = 0
    for _ in range(_RESAMPLES):
        rows = draw.choices(range(rounds), k=rounds)
        value = decide(benchmark, {size: [those[row] for row in rows] for size, those in times.items()})
        alike += max(value, chosen) <= factor * min(value, chosen)
    return alike / _RESAMPLES


def at_the_edge(benchmark: Microbenchmark, value: int) -> bool:
    """Whether the best may lie beyond what was tried: a limit below or at the last size, the least or largest value."""
    tried = (benchmark.sizes[0] // 2, benchmark.sizes[-1]) if benchmark.crossing else sorted(benchmark.values)
    return value in (tried[0], tried[-1]) and (benchmark.crossing or value != benchmark.values[0])


def spread(times: Times) -> float:
    """How far rounds are apart: the distance of their quartiles, by their median, of the middle size and candidate."""
    found = []
    for rows in times.values():
        for column in zip(*rows, strict=True):
            if len(column) >= _FEWEST_ROUNDS:
                low, middle, high = quantiles(column, n=4)
                found.append((high - low) / middle)
    return median(found) if found else 0.0


SURE = 0.8  # with less confidence a value is not used


@dataclass(frozen=True)
class Measured:
    """What one benchmark has found; `sure`: confidence()."""

    field: str
    value: int
    ranks: int
    rounds: int
    sure: float
    at_the_edge: bool
    spread: float

    @property
    def is_sure(self) -> bool:
        """Whether it is worth relying on."""
        return self.sure >= SURE

    def __str__(self) -> str:
        found = f"{self.field:<24} {self.value:>8}  {counted(self.ranks, 'rank')}, {counted(self.rounds, 'round')}"
        edge = ", at the edge of what was tried: the best may lie beyond" if self.at_the_edge else ""
        return f"{found}, {self.sure:.0%} sure{edge}"


def judge(benchmark: Microbenchmark, times: Times) -> Measured:
    """The field's value, and how far it is to be relied on."""
    value, rounds = decide(benchmark, times), min(map(len, times.values()))
    judged = confidence(benchmark, times), at_the_edge(benchmark, value), spread(times)
    return Measured(benchmark.field, value, benchmark.ranks, rounds, *judged)


def doublings(first: int, last: int) -> tuple[int, ...]:
    """first, 2 first, ..., up to last."""
    return tuple(first << i for i in range((last // first).bit_length()))


def _candidates(field: str, values: tuple[int, ...], more: Mapping[str, object]) -> tuple[Mapping[str, object], ...]:
    return tuple({**_DEMAND, **more, field: value} for value in values)


def microbenchmarks(ranks: int, defaults: Mapping[str, int], spin: bool) -> list[Microbenchmark]:
    """All for this number of ranks; `spin`: with the one that does not depend on it. `defaults` by field."""
    suffix = "of_two" if ranks == 2 else "of_more"
    one_shot, one_pass, slot = (f"{name}_bytes_{suffix}" for name in ("one_shot", "one_pass", "slot"))
    slots = tuple(dict.fromkeys((defaults[slot], *doublings(256 * KIB, 2 * MIB))))
    found = [
        Microbenchmark(
            one_shot, ranks, _candidates(one_shot, (_ALWAYS, _NEVER), {"slot_bytes": MIB}), doublings(4 * KIB, MIB)
        ),
        Microbenchmark(
            one_pass, ranks, _candidates(one_pass, (_ALWAYS, _NEVER), {}), doublings(4 * KIB, MIB), shared=True
        ),
        Microbenchmark(
            slot, ranks, _candidates("slot_bytes", slots, {}), (MIB, 4 * MIB, 16 * MIB), crossing=False, values=slots
        ),
    ]
    if spin:
        waits = tuple(dict.fromkeys((defaults["spin_us"], 10, 50, 200)))
        candidates = _candidates("spin_us", waits, {})
        found.append(
            Microbenchmark("spin_us", ranks, candidates, (4 * KIB, 64 * KIB, MIB), crossing=False, values=waits)
        )
    return found
