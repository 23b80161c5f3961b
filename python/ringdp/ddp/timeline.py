"""The latest step of a wrapper: when its buckets were launched and reduced, and how much communication was hidden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringdp import _native
from ringdp.text.units import counted, ms

_C = _native.load()
_NS = 1e-9


@dataclass(frozen=True)
class BucketTimes:
    """Seconds since the backward pass began. ready: its last gradient arrived; done: its collective ended."""

    ready: float
    launched: float
    done: float


@dataclass(frozen=True)
class StepTimes:
    """The latest synchronised step on this rank, in seconds.

    forward: the forward pass. backward: computing gradients. wait: from then until every .grad was in place.
    """

    step: int
    forward: float
    backward: float
    wait: float
    buckets: tuple[BucketTimes, ...]

    @property
    def communication(self) -> float:
        """Seconds during which at least one collective was in flight."""
        return self._in_flight(float("-inf"))

    @property
    def exposed(self) -> float:
        """The part of `communication` during which nothing was left to compute."""
        return self._in_flight(self.backward)

    def _in_flight(self, since: float) -> float:
        return _C.covered([(b.launched, b.done) for b in self.buckets], since)

    @property
    def overlap(self) -> float:
        """The share of communication that the backward pass has hidden, 0 to 1; 1 if there was none."""
        return 1 - self.exposed / self.communication if self.communication else 1.0

    @property
    def verdict(self) -> str:
        """How much was hidden, in one sentence."""
        if not self.buckets:
            return "No step has been synchronised yet."
        if not self.communication:
            return "There was nothing to communicate."
        if self.overlap <= 0:
            return (
                "0 % of the communication was hidden: every bucket was launched after the last gradient. "
                "Smaller buckets (bucket_cap_mb), overlap=True, or a model of more than one bucket would hide some."
            )
        return f"{self.overlap:.0%} of the communication was hidden behind the backward pass."

    def __str__(self) -> str:
        head = (
            f"step {self.step}: forward {ms(self.forward)}, backward {ms(self.backward)}, then {ms(self.wait)} of "
            f"waiting; communication {ms(self.communication)}, exposed {ms(self.exposed)}. {self.verdict}"
        )
        rows = [
            f"  bucket {number}: ready {ms(b.ready)}, launched {ms(b.launched)}, done {ms(b.done)}"
            for number, b in enumerate(self.buckets)
        ]
        return "\n".join([head, *rows])


def step_times(raw: Mapping[str, Any]) -> StepTimes:
    """From Reducer.timeline(), in nanoseconds; buckets that were not reduced are left out."""
    start = raw["backward"]
    buckets = tuple(BucketTimes(*((t - start) * _NS for t in times)) for times in raw["buckets"] if all(times))
    computed = raw["computed"] or start
    return StepTimes(
        step=raw["step"],
        forward=(start - raw["forward"]) * _NS,
        backward=(computed - start) * _NS,
        wait=(max(raw["finished"], computed) - computed) * _NS,
        buckets=buckets,
    )


_MEANS = {
    "fused": "summed in rank order and divided once by the backend: the bits of one process",
    "exchanged": "shards exchanged, folded in rank order and divided once: the bits of one process",
    "leaves": "summed along the tree of micro-batches and divided once: the bits of one process at any number of ranks",
    "hook": "what the communication hook returns",
    "compressed": "compressed, then summed in rank order: the bits of one process that plays all ranks",
    "summed": "summed by the backend in its own order, divided once: not the bits of one process",
}
_SHOWN = 4


@dataclass(frozen=True)
class BucketPlan:
    """One bucket, in launch order.

    bytes: of its gradients. memory_bytes: of the memory that it keeps between steps, padding included; 0 for a bucket
    of one gradient that is reduced in place. of_leaves: its memory is made for each micro-batch.
    """

    parameters: tuple[str, ...]
    bytes: int
    memory_bytes: int
    dtype: str
    device: str
    sparse: bool
    of_leaves: bool
    shared: bool

    def __str__(self) -> str:
        names = ", ".join(self.parameters[:_SHOWN])
        if len(self.parameters) > _SHOWN:
            names += f", ... ({len(self.parameters)} parameters)"
        memory = "shared memory" if self.shared else "ordinary memory"
        if self.of_leaves:
            place = f"sums of micro-batches in {memory}"
        else:
            place = "sparse" if self.sparse else memory if self.memory_bytes else f"in place, {memory}"
        return f"{self.bytes:,} bytes of {self.dtype} on {self.device}, {place}: {names}"


@dataclass(frozen=True)
class Explanation:
    """The buckets, where their memory is, how the mean is computed, and the times of the latest step."""

    buckets: tuple[BucketPlan, ...]
    rebuilt: bool
    gradients_are_views: bool
    overlap: bool
    mean: str
    times: StepTimes

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buckets on this rank; .grad of theirs is a second copy unless gradients are views."""
        return sum(bucket.memory_bytes for bucket in self.buckets)

    def __str__(self) -> str:
        order = "in the order in which gradients arrived" if self.rebuilt else "in reverse order of the parameters"
        copies = "gradients are views into them" if self.gradients_are_views else "gradients have memory of their own"
        when = "while gradients are computed" if self.overlap else "one after the other when all gradients are computed"
        rows = [f"  bucket {number}: {bucket}" for number, bucket in enumerate(self.buckets)]
        return "\n".join(
            [
                f"{counted(len(self.buckets), 'bucket')}, {order}, {self.buffer_bytes:,} bytes of buffers; {copies}",
                *rows,
                f"launched {when}; {_MEANS[self.mean]}",
                str(self.times),
            ]
        )


def _mean_of(reducer: Any) -> str:
    if reducer.leaf_steps is not None:
        return "leaves"
    if reducer.compression is not None:
        return "compressed"
    return "hook" if reducer.has_hook else str(reducer.mean_name())


def explanation(reducer: Any, *, gradients_are_views: bool, overlap: bool) -> Explanation:
    """Of this reducer, as it is now."""
    plans = []
    for facts in reducer.buckets():
        names = tuple(reducer.names[index] for index in facts.pop("indices"))
        plans.append(BucketPlan(names, **facts))
    return Explanation(
        buckets=tuple(plans),
        rebuilt=bool(reducer.stats()["rebuilt"]),
        gradients_are_views=gradients_are_views,
        overlap=overlap,
        mean=_mean_of(reducer),
        times=step_times(reducer.timeline()),
    )
