"""What a wrapper does with a model's gradients, as a value to look at and to print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringdp.ddp.timeline import StepTimes, step_times
from ringdp.text.units import counted

_MEANS = {
    "fused": "summed in rank order and divided once by the backend: the bits of one process",
    "exchanged": "shards exchanged, folded in rank order and divided once: the bits of one process",
    "summed": "summed by the backend in its own order, divided once: not the bits of one process",
}
_SHOWN = 4


@dataclass(frozen=True)
class BucketPlan:
    """One bucket, in launch order. memory_bytes: what it holds beside the gradients, with padding.

    0 for a bucket of one gradient that is no view: it is reduced where it lies.
    """

    parameters: tuple[str, ...]
    bytes: int
    memory_bytes: int
    dtype: str
    device: str
    sparse: bool
    shared: bool

    def __str__(self) -> str:
        names = ", ".join(self.parameters[:_SHOWN])
        if len(self.parameters) > _SHOWN:
            names += f", ... ({len(self.parameters)} parameters)"
        memory = "shared memory" if self.shared else "ordinary memory"
        place = "sparse" if self.sparse else memory if self.memory_bytes else f"where it lies, {memory}"
        return f"{self.bytes:,} bytes of {self.dtype} on {self.device}, {place}: {names}"


@dataclass(frozen=True)
class Explanation:
    """Buckets, where their memory is, how the mean is made, and the times of the latest step."""

    buckets: tuple[BucketPlan, ...]
    rebuilt: bool
    gradients_are_views: bool
    overlap: bool
    mean: str
    times: StepTimes

    @property
    def buffer_bytes(self) -> int:
        """Memory of all buckets on this rank; their gradients have a copy in .grad unless gradients are views."""
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


def explanation(reducer: Any, *, gradients_are_views: bool, overlap: bool) -> Explanation:
    """What this reducer is about to do."""
    plans = []
    for facts in reducer.buckets():
        names = tuple(reducer.names[index] for index in facts.pop("indices"))
        plans.append(BucketPlan(names, **facts))
    return Explanation(
        buckets=tuple(plans),
        rebuilt=bool(reducer.numbers()["rebuilt"]),
        gradients_are_views=gradients_are_views,
        overlap=overlap,
        mean=reducer.mean_name(),
        times=step_times(reducer.timeline()),
    )
