"""Bytes that training holds on this rank, by kind, counted from the existing tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.optim import Optimizer

from ringdp.zero.flat import FlatParameters


@dataclass(frozen=True)
class Memory:
    """Bytes on this rank.

    parameters, gradients, state, master (fp32 copies): without padding. padding: of all of these.
    gathered: the two largest units of stage 3, which exist during forward and backward only; of units that the ranks of
        a host share, this rank's part.
    buckets: gradients in flight, in addition to .grad; at stage 2 the two largest buckets, during backward only.
    copies: after ZeroOptimizer.regroup(keep_next=1), of the next rank's shard; or of gradients, in shared memory.
    """

    parameters: int = 0
    gradients: int = 0
    state: int = 0
    master: int = 0
    padding: int = 0
    gathered: int = 0
    buckets: int = 0
    copies: int = 0

    @property
    def total(self) -> int:
        """The sum of all kinds."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        rows = [f"{field.name} {getattr(self, field.name):,}" for field in fields(self)]
        return f"{self.total:,} bytes: {', '.join(rows)}"


def memory_of(flats: Sequence[FlatParameters], optimizer: Optimizer | None, wrapper: Any | None) -> Memory:
    """The memory of an optimizer, of what it steps, and of the other parameters of the wrapper's module."""
    known = [p for flat in flats for p in flat.parameters]
    parameters = dict.fromkeys([*known, *(wrapper.module.parameters() if wrapper is not None else ())])
    useful, held = _of_parameters(flats, wrapper)
    fp32 = [(flat, b, copy) for flat in flats for b, copy in enumerate(flat.fp32_copies) if copy is not None]
    fp32_bytes = sum(flat.tensors[number].nbytes for flat, bucket, _ in fp32 for number in flat.in_bucket(bucket))
    entries = optimizer.state.values() if optimizer is not None else ()
    state = _bytes(v for entry in entries for v in entry.values() if torch.is_tensor(v))
    gradients = gradients_of(parameters, wrapper)
    return Memory(
        parameters=useful,
        gradients=gradients.gradients,
        state=state,
        master=fp32_bytes,
        padding=held - useful + sum(copy.nbytes for _, _, copy in fp32) - fp32_bytes + gradients.padding,
        gathered=wrapper.gathered_bytes() if wrapper is not None else 0,
        buckets=gradients.buckets,
    )


def _of_parameters(flats: Sequence[FlatParameters], wrapper: Any | None) -> tuple[int, int]:
    """Bytes of parameters without padding, and with it. Parameters in no bucket and no unit count whole."""
    named = dict(wrapper.module.named_parameters()) if wrapper is not None else {}
    if wrapper is not None and wrapper.sharded_model is not None:
        sharded = wrapper.sharded_model
        whole = _bytes(p for name, p in named.items() if name not in sharded.sharded_names)
        return sharded.useful_bytes() + whole, sharded.shard_bytes() + whole
    moved = {id(p) for flat in flats for p in flat.parameters}
    whole = _bytes(p for p in named.values() if id(p) not in moved)
    return sum(flat.useful_bytes for flat in flats) + whole, sum(flat.padded_bytes for flat in flats) + whole


def gradients_of(parameters: Iterable[torch.Tensor], wrapper: Any | None) -> Memory:
    """The memory of gradients alone: in .grad, in sums of micro-batches, in shards, in buckets."""
    if wrapper is None:
        return Memory(gradients=_bytes(p.grad for p in parameters if p.grad is not None))
    leaf_steps = wrapper.reducer.leaf_steps
    stand_ins = wrapper.reducer.stand_ins.shown() | (leaf_steps.shown() if leaf_steps is not None else set())
    whole = _bytes(p.grad for p in parameters if p.grad is not None and id(p.grad) not in stand_ins)
    whole += wrapper.reducer.leaf_bytes()
    facts = wrapper.reducer.buckets()
    if wrapper.zero_stage < 2:
        views = wrapper.gradient_as_bucket_view
        return Memory(
            gradients=whole,
            buckets=sum(max(0, f["memory_bytes"] - (f["bytes"] if views else 0)) for f in facts),
        )
    shards = [s for s in wrapper.reducer.shards() if s is not None]
    useful = _useful(wrapper)
    largest = sorted(wrapper.bucket_bytes(), reverse=True)[:2]
    return Memory(gradients=whole + useful, padding=_bytes(shards) - useful, buckets=sum(largest))


def _useful(wrapper: Any) -> int:
    """Bytes of shards that hold gradients."""
    layout, rank = wrapper.shard_layout(), wrapper.process_group.rank()
    sizes = [s.element_size() if s is not None else 0 for s in wrapper.reducer.shards()]
    return sum(length * sizes[bucket] for _, _, length, bucket, _ in layout.pieces(rank))


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.nbytes for t in tensors)
