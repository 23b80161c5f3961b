"""The buckets of stage 3: their layout, the memory of gathered parameters, and this rank's shards of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from ringdp import _native
from ringdp.zero.flat import (
    FlatParameters,
    Piece,
    all_gather,
    check_tensor_layout,
    flat_memory,
    in_memory_order,
    laid_out,
    restore_view,
    tensor_layout,
)
from ringdp.zero.shared_blocks import SharedBlocks, SharedGather
from ringdp.zero.units import Unit

_C = _native.load()


@dataclass(frozen=True)
class BucketPlan:
    """Bucket `number` of a layout: these parameters of one unit."""

    unit: int
    names: tuple[str, ...]
    layout: Any
    number: int
    trainable: bool


def bucket_plans(units: Sequence[Unit], named: Mapping[str, torch.Tensor], ranks: int) -> list[BucketPlan]:
    """The buckets of all units, the last unit first. Trainable and frozen parameters have separate layouts."""
    return [plan for trainable in (True, False) for plan in _of_kind(units, named, ranks, trainable)]


def _of_kind(units: Sequence[Unit], named: Mapping[str, torch.Tensor], ranks: int, trainable: bool) -> list[BucketPlan]:
    sharded = {name for unit in units for name in unit.parameters}
    numbers = {
        name: number
        for number, name in enumerate(n for n, p in named.items() if n in sharded and p.requires_grad is trainable)
    }
    members: list[tuple[int, list[str]]] = []
    for place in reversed(range(len(units))):
        by_dtype: dict[torch.dtype, list[str]] = {}
        for name in units[place].parameters:
            if name in numbers:
                by_dtype.setdefault(named[name].dtype, []).append(name)
        members.extend((place, names) for names in by_dtype.values())
    lengths = [named[name].numel() for name in numbers]
    layout = _C.ShardLayout(lengths, [[numbers[n] for n in names] for _, names in members], ranks)
    return [BucketPlan(unit, tuple(names), layout, n, trainable) for n, (unit, names) in enumerate(members)]


_KEPT = 2  # blocks of memory: of one unit in use and one being gathered


class Blocks:
    """Memory of units: what all ranks of a host share, and this rank's own, of which freed blocks are used again."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device = group, device
        self._free: list[torch.Tensor] = []
        self.shared = SharedBlocks.of(group, device)

    def regroup(self, group: dist.ProcessGroup) -> None:
        """Memory is that of another group from now on."""
        self._group = group
        self._free.clear()
        if self.shared is not None:
            self.shared.forget()
        self.shared = SharedBlocks.of(group, self._device)

    def take(self, nbytes: int) -> torch.Tensor:
        """A flat uint8 tensor of `nbytes` of this rank's own, not initialized."""
        for number, block in enumerate(self._free):
            if block.nbytes == nbytes:
                return self._free.pop(number)
        self._free.clear()
        if self.shared is not None:  # blocks of its own are rare then, and a heap keeps its pages
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        return flat_memory(nbytes, torch.uint8, self._device, self._group)

    def put(self, block: torch.Tensor) -> None:
        """Gives a block back."""
        self._free = [block, *self._free][: _KEPT if self.shared is None else 0]


class Bucket:
    """Parameters of one unit, one dtype, and one kind (trainable or frozen).

    They have memory from construction to the first `free()`, then between `start()` and `free()`.
    """

    def __init__(
        self,
        unit: str,
        parameters: Sequence[torch.Tensor],
        plan: BucketPlan,
        device: torch.device,
        group: dist.ProcessGroup,
        blocks: Blocks,
    ) -> None:
        self.plan = plan
        self.parameters: list[torch.Tensor] = list(parameters)
        self.shard_elements, self.dtype = plan.layout.shard(plan.number), parameters[0].dtype
        self._group = group
        self._gather: SharedGather | None = None  # whose memory all ranks read
        self._versions: list[int] = []  # of the parameters when they were shown; of none where they may be written
        self._lay_out(blocks)
        self._absent = _gone(unit)
        texts = [_absent(name, unit) for name in plan.names]
        self._stand_ins = [_C.without_memory(v, text) for v, text in zip(self._views, texts, strict=True)]
        self.shard = torch.empty(0, dtype=self.dtype, device=device)

    def recut(self, layout: Any, group: dist.ProcessGroup, blocks: Blocks) -> None:
        """For another group: its parameters are freed, and its shard has the size that it has there, without values."""
        self.plan, self._gather = replace(self.plan, layout=layout), None
        self._group, self.shard_elements = group, layout.shard(self.plan.number)
        self._lay_out(blocks)
        self.free(blocks)
        self.shard = flat_memory(self.shard_elements, self.dtype, self.shard.device, group).zero_()

    def _lay_out(self, blocks: Blocks) -> None:
        layout, number = self.plan.layout, self.plan.number
        self._flat = blocks.take(layout.padded(number) * self.dtype.itemsize).view(self.dtype)
        self._offsets = layout.offsets(number)
        self._views = laid_out(self._flat, self.parameters, self._offsets)

    @property
    def nbytes(self) -> int:
        """Bytes when gathered, padding included."""
        return int(self._flat.nbytes)

    @property
    def useful_bytes(self) -> int:
        """Bytes of this rank's shard without padding."""
        pieces = self.plan.layout.pieces(self._group.rank())
        return sum(length for _, _, length, n, _ in pieces if n == self.plan.number) * self.dtype.itemsize

    def view(self, position: int) -> torch.Tensor:
        """The view of the parameter at this position into the bucket's memory."""
        return self._views[position]

    def restore_views(self) -> None:
        """Copies values that were assigned by `.data = ...` into its memory. RuntimeError if their layout differs."""
        for name, parameter, view in zip(self.plan.names, self.parameters, self._views, strict=True):
            check_tensor_layout(parameter, tensor_layout(view), name)
            restore_view(parameter, view)

    def write_shard(self, root: int | None) -> None:
        """Copies this rank's part of the bucket into its shard, after a broadcast from rank `root` if that is given."""
        if root is not None and self._group.size() > 1 and self._flat.numel():
            dist.broadcast(self._flat.view(torch.uint8), group_src=root, group=self._group)
        own = self._flat[self._group.rank() * self.shard_elements :][: self.shard_elements]
        if not self.shard.numel():
            self.shard = flat_memory(own.numel(), self.dtype, own.device, self._group)
        self.shard.copy_(own)

    def start(self, blocks: Blocks, *, shared: bool) -> list[Any]:
        """Starts the gather of the bucket, into memory that all ranks read if they can share it; returns its works."""
        part = self.shard.view(torch.uint8)
        if shared and blocks.shared is not None and self._flat.numel():
            self._gather = blocks.shared.gather(part)
            return self._gather.works
        _C.give_memory(self._flat, blocks.take(self._flat.nbytes))
        if self._group.size() == 1 or not self._flat.numel():
            self._flat.copy_(self.shard)
            return []
        return [all_gather(self._flat.view(torch.uint8), part, group=self._group, async_op=True)]

    def show(self) -> None:
        """The bucket is gathered: its parameters can be read."""
        if self._gather is not None:
            _C.give_memory(self._flat, self._gather.memory())
        _C.set_values(self.parameters, self._views)
        self._versions = self._current_versions()

    def written(self) -> list[str]:
        """Names of parameters that were written since show(), but for `.data`: the shards would not have the values."""
        found = zip(self.plan.names, self._versions, self._current_versions(), strict=False)
        return [name for name, before, now in found if before != now]

    def _current_versions(self) -> list[int]:
        return [0 if p.is_inference() else p._version for p in self.parameters]

    def own_memory(self, blocks: Blocks) -> None:
        """The bucket is shown: its memory becomes this rank's own, which may be written."""
        self._versions = []
        if self._gather is not None:
            own = blocks.take(self._flat.nbytes)
            own.copy_(self._flat.view(torch.uint8))
            self._gather = None
            _C.take_memory(self._flat, self._absent)
            _C.give_memory(self._flat, own)

    def check_free(self) -> None:
        """RuntimeError names a parameter whose .data was assigned while it was freed."""
        for name, parameter, stand_in in zip(self.plan.names, self.parameters, self._stand_ins, strict=True):
            check_tensor_layout(parameter, tensor_layout(stand_in), name)
            if parameter.untyped_storage()._cdata != stand_in.untyped_storage()._cdata:
                raise RuntimeError(
                    f"DistributedDataParallel: .data of parameter {name} was assigned while it was freed "
                    "(zero_stage=3), and would be lost: assign inside `with ddp.gathered(writes=True):`"
                )

    def free(self, blocks: Blocks) -> None:
        """Gives the memory back. From now on, reading a parameter raises an error that names it."""
        _C.set_values(self.parameters, self._stand_ins)
        memory = _C.take_memory(self._flat, self._absent)
        if self._gather is None:
            blocks.put(memory)
        self._gather = None

    def lend_memory(self, position: int) -> torch.Tensor:
        """Gives one parameter memory of its own, for a value that is whole on every rank, until keep_part()."""
        parameter = self.parameters[position]
        parameter.data = torch.empty_strided(
            parameter.shape, parameter.stride(), dtype=parameter.dtype, device=parameter.device
        )
        return parameter.data

    def keep_part(self, position: int) -> None:
        """Ends lend_memory(): copies this rank's part of the value into the shard, and frees the rest."""
        parameter, stand_in = self.parameters[position], self._stand_ins[position]
        begin, first = self._offsets[position], self._group.rank() * self.shard_elements
        low, high = max(first, begin), min(first + self.shard_elements, begin + parameter.numel())
        if low < high:
            part = in_memory_order(parameter.data, stand_in)[low - begin : high - begin]
            self.shard[low - first : high - first].copy_(part)
        parameter.data = stand_in


class UnitStorage:
    """The buckets of one unit, and how many passes and gathered() contexts use them."""

    def __init__(self, number: int, name: str, buckets: Sequence[Bucket], blocks: Blocks) -> None:
        self.number, self.name, self.buckets = number, name, list(buckets)
        self.holders = self.pins = 0  # passes and contexts; contexts only
        self.has_memory = True  # new buckets have
        self._is_arriving = False
        self._blocks = blocks
        self._works: list[Any] = []

    @property
    def nbytes(self) -> int:
        """Bytes when gathered, padding included."""
        return sum(bucket.nbytes for bucket in self.buckets)

    def start(self, *, shared: bool = True) -> None:
        """Starts the gathers of the unit, after Bucket.check_free() of all buckets. shared: it will only be read."""
        for bucket in self.buckets:
            bucket.check_free()
        begun: list[Bucket] = []
        works: list[Any] = []
        try:
            with self._named():
                for bucket in self.buckets:
                    begun.append(bucket)
                    works.extend(bucket.start(self._blocks, shared=shared))
        except BaseException:  # the group has failed
            for work in works:
                with suppress(dist.DistError):
                    work.wait()  # until then it may write
            for bucket in begun:
                bucket.free(self._blocks)
            raise
        self._works = works
        self.has_memory = self._is_arriving = True

    def wait(self) -> None:
        """Waits until the unit is gathered. If that fails, its parameters stay as if they were freed."""
        works, self._works = self._works, []
        arrives, self._is_arriving = self._is_arriving, False
        with self._named():
            for work in works:
                work.wait()
        for bucket in self.buckets if arrives else ():
            bucket.show()

    def own_memory(self) -> None:
        """Gathers the unit if it is not gathered, into memory of this rank's own, which may be written."""
        if not self.has_memory:
            self.start(shared=False)
        self.wait()
        for bucket in self.buckets:
            bucket.own_memory(self._blocks)

    def written(self) -> list[str]:
        """See Bucket.written(); of a unit that is gathered."""
        return [name for bucket in self.buckets for name in bucket.written()]

    def free(self) -> None:
        """Frees the memory of the gathered unit."""
        if self.has_memory:
            self.wait()
            self.has_memory = False
            for bucket in self.buckets:
                bucket.free(self._blocks)

    def recut(self, layouts: Mapping[bool, Any], group: dist.ProcessGroup) -> None:
        """See Bucket.recut(). layouts: of trainable and frozen buckets."""
        self._works.clear()
        self.holders = self.pins = 0
        self.has_memory = self._is_arriving = False
        for bucket in self.buckets:
            bucket.recut(layouts[bucket.plan.trainable], group, self._blocks)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Adds the unit's name to an error of its gather, and advice if ranks gather different units."""
        try:
            yield
        except dist.DistBackendError as error:
            advice = ": all ranks must run the same modules in the same order, equally often"
            raise dist.DistBackendError(
                f"{error} This rank was gathering unit {self.name} (zero_stage=3)"
                + (advice if str(error).startswith("Mismatch") else "")
            ) from error


_WAY_OUT = (
    "read it inside `with ddp.gathered():`, use ddp.full_state_dict(), or put the module that reads it and the module "
    "that owns it into one unit with units=[...]"
)


def _absent(name: str, unit: str) -> str:
    return (
        f"parameter {name} is read outside the forward of its unit {unit} (zero_stage=3), where it is freed: "
        + _WAY_OUT
    )


def _gone(unit: str) -> str:
    return (
        f"autograd, or a view that was kept, reads parameters of unit {unit} after they were freed "
        "(zero_stage=3): a module must return all that depends on its parameters in tuples, lists, dicts or "
        "dataclasses; second derivatives (create_graph) need zero_stage=2"
    )


class ShardedParameters(FlatParameters):
    """FlatParameters at stage 3: this rank's shards of all buckets of one layout.

    Other ranks get stepped values when units are gathered.
    """

    def __init__(
        self, buckets: Sequence[Bucket], group: dist.ProcessGroup, master_dtype: torch.dtype | None = None
    ) -> None:
        self._buckets = list(buckets)
        self._copies: list[torch.Tensor] | None = None  # of another rank's shards
        layout = buckets[0].plan.layout
        by_number = {}
        for members, bucket in zip(layout.buckets, buckets, strict=True):
            by_number.update(zip(members, bucket.parameters, strict=True))
        super().__init__([by_number[n] for n in range(len(by_number))], layout, group, master_dtype)

    @property
    def padded_bytes(self) -> int:
        """See FlatParameters."""
        return sum(bucket.shard.nbytes for bucket in self._buckets)

    @property
    def useful_bytes(self) -> int:
        """See FlatParameters."""
        return sum(bucket.useful_bytes for bucket in self._buckets)

    def as_owned_by(self, rank: int) -> ShardedParameters:
        """The pieces of another rank, with memory of their own, without values."""
        other = copy.copy(self)
        other._copies = [torch.zeros_like(bucket.shard) for bucket in self._buckets]
        other._number_pieces(rank)
        other._make_tensors()
        return other

    def own(self, bucket: int) -> torch.Tensor:
        """The shard."""
        return self._buckets[bucket].shard if self._copies is None else self._copies[bucket]

    def kept(self, bucket: int) -> torch.Tensor:
        """The shard."""
        return self.own(bucket)

    def _assigned(self, piece: Piece) -> torch.Tensor:
        return self.own(piece.bucket)[piece.place]

    def restore_views(self, bucket: int) -> None:
        """Copies loaded values into the fp32 copy."""
        self._renew_fp32_copy(bucket)

    def gather(self, bucket: int) -> None:
        """Nothing: units are gathered when they are used."""

    def hides(self, bucket: int) -> bool:
        """No: parameters are freed."""
        return False

    def _lay_out(self) -> None:
        """Nothing: parameters stay in their units."""
