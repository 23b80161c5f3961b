"""Parameters in flat buckets. A rank owns an equal part (shard) of each: one piece per parameter that it overlaps."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ringdp import _native, allocate
from ringdp.zero import registry

_C = _native.load()
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13


@dataclass(frozen=True)
class Piece:
    """Elements begin..begin+length of a parameter in memory order, at `offset` in this rank's shard of a bucket."""

    parameter: int
    begin: int
    length: int
    bucket: int
    offset: int

    @property
    def part(self) -> slice:
        """Its elements of the flat parameter."""
        return slice(self.begin, self.begin + self.length)

    @property
    def place(self) -> slice:
        """Its elements of the shard."""
        return slice(self.offset, self.offset + self.length)


def bucketed(parameters: Sequence[torch.Tensor], limit: int, ranks: int) -> Any:
    """A layout without a reducer: buckets of one dtype and device, of about `limit` bytes."""
    kinds: dict[object, int] = {}
    parts = [(p.nbytes, kinds.setdefault((p.dtype, p.device), len(kinds)), False) for p in parameters]
    buckets = _C.make_layout(parts, list(range(len(parts))), [limit])
    return _C.ShardLayout([p.numel() for p in parameters], buckets, ranks)


def in_memory_order(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The elements of `tensor`, flat, in the memory order of `like`: a view if the strides are equal, else a copy."""
    if not is_dense(like):
        return tensor.contiguous().view(-1)
    if tensor.stride() != like.stride():
        tensor = torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


def order_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of a tensor from the slowest to the fastest in memory; () for row-major order."""
    if not is_dense(tensor):
        return ()
    order = sorted(range(tensor.dim()), key=lambda dimension: -tensor.stride(dimension))
    longer = [dimension for dimension in order if tensor.shape[dimension] > 1]
    return () if longer == sorted(longer) else tuple(order)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill its memory, each once."""
    return torch.ops.aten.is_non_overlapping_and_dense.default(tensor)


def shaped(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A view of flat elements in the memory order of `like`, with its shape."""
    return flat.as_strided(like.shape, like.stride()) if is_dense(like) else flat.view(like.shape)


def laid_out(flat: torch.Tensor, parameters: Sequence[torch.Tensor], offsets: Sequence[int]) -> list[torch.Tensor]:
    """Views for parameters of these shapes into a bucket's memory; writes zeros between and behind them."""
    views, end = [], 0
    for parameter, offset in zip(parameters, offsets, strict=True):
        flat[end:offset].zero_()
        end = offset + parameter.numel()
        views.append(shaped(flat[offset:end], parameter))
    flat[end:].zero_()
    return views


TensorLayout = tuple[torch.dtype, torch.device, torch.Size, tuple[int, ...]]


def tensor_layout(tensor: torch.Tensor) -> TensorLayout:
    """The dtype, device, shape and strides of a parameter, which its gradient and its state must match."""
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride()


def check_tensor_layout(parameter: torch.Tensor, known: TensorLayout, name: str = "") -> None:
    """RuntimeError names the parameter if its layout has changed since it was sharded."""
    if tensor_layout(parameter) == known:
        return
    which = f"parameter {name}" if name else registry.described(parameter)
    dtype, device, shape, strides = known
    if (parameter.dtype, parameter.device) != (dtype, device):
        raise RuntimeError(
            f"ZeroOptimizer: {which} was {dtype} on {device} when it was sharded, and was converted to "
            f"{parameter.dtype} on {parameter.device} after that: convert the model before it is wrapped and given to "
            "the optimizer"
        )
    raise RuntimeError(
        f"ZeroOptimizer: {which} had shape {list(shape)} and strides {list(strides)} when it was sharded, and has "
        f"{list(parameter.shape)} and {list(parameter.stride())} now, which its gradient and its state do not follow: "
        "change shapes and memory formats before the model is wrapped and given to the optimizer"
    )


def restore_view(parameter: torch.Tensor, view: torch.Tensor) -> None:
    """Copies a value that was assigned by `.data = ...` into the bucket."""
    if parameter.data_ptr() != view.data_ptr() and view.numel():
        view.copy_(parameter.data)
        parameter.data = view


class FlatParameters:
    """Moves parameters into flat buckets; from then on each `.data` is a view there."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        layout: Any,
        group: dist.ProcessGroup,
        master_dtype: torch.dtype | None = None,
    ) -> None:
        self.parameters, self.layout = list(parameters), layout
        self._group, self._master_dtype = group, master_dtype
        self._number_pieces(group.rank())
        self._lay_out()
        self._tensor_layouts = [tensor_layout(p) for p in self.parameters]
        self._make_tensors()

    def as_owned_by(self, rank: int) -> FlatParameters:
        """The same memory, with the pieces of another rank, and with fp32 copies of its own."""
        other = copy.copy(self)
        other._number_pieces(rank)
        other._make_tensors()
        return other

    def __len__(self) -> int:
        """The number of buckets."""
        return len(self.layout.buckets)

    @property
    def padded_bytes(self) -> int:
        """Bytes of parameters on this rank, padding included."""
        return sum(flat.nbytes for flat in self._flats)

    @property
    def useful_bytes(self) -> int:
        """Bytes of parameters on this rank without padding."""
        return sum(p.nbytes for p in self.parameters)

    @property
    def device(self) -> torch.device:
        """The device of all buckets."""
        return self.own(0).device

    def places(self) -> dict[torch.Tensor, tuple[int, int]]:
        """The bucket of each of this rank's pieces, and the offset in its shard."""
        return {tensor: (piece.bucket, piece.offset) for piece, tensor in zip(self.pieces, self.tensors, strict=True)}

    def kept(self, bucket: int) -> torch.Tensor:
        """The part of a bucket that stays on this rank between passes: all of it."""
        return self._flats[bucket]

    def own(self, bucket: int) -> torch.Tensor:
        """This rank's part of a bucket of parameters."""
        shard = self.layout.shard(bucket)
        return self._flats[bucket][self._rank * shard : (self._rank + 1) * shard]

    def in_bucket(self, bucket: int) -> list[int]:
        """The numbers of this rank's pieces of a bucket."""
        return self._numbers[bucket]

    def check_unchanged(self, bucket: int | None = None) -> None:
        """RuntimeError names a parameter (of a bucket) whose dtype, device, shape or strides have changed."""
        for index in range(len(self.parameters)) if bucket is None else self.layout.buckets[bucket]:
            check_tensor_layout(self.parameters[index], self._tensor_layouts[index])

    def values_of(self, number: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The elements of a piece, and of its fp32 copy, as restore_views() would leave them.

        Nothing is written: the bucket may hold what a caller has swapped with the parameter's `.data`.
        """
        piece = self.pieces[number]
        part, fp32_copy = self._assigned(piece), self.fp32_copies[piece.bucket]
        return part, None if fp32_copy is None else _up_to_date(fp32_copy[piece.place], part)

    def _assigned(self, piece: Piece) -> torch.Tensor:
        parameter, view = self.parameters[piece.parameter], self._views[piece.parameter]
        if parameter.data_ptr() == view.data_ptr():
            return self.own(piece.bucket)[piece.place]
        return in_memory_order(parameter.data, view)[piece.part]

    def restore_views(self, bucket: int) -> None:
        """Copies values that were assigned by `.data = ...` into the bucket, and changed values into the fp32 copy.

        RuntimeError as in check_unchanged, before anything is copied.
        """
        self.check_unchanged(bucket)
        for index in self.layout.buckets[bucket]:
            restore_view(self.parameters[index], self._views[index])
        self._renew_fp32_copy(bucket)

    def _renew_fp32_copy(self, bucket: int) -> None:
        fp32_copy = self.fp32_copies[bucket]
        if fp32_copy is not None:
            renewed = _up_to_date(fp32_copy, self.own(bucket))
            if renewed is not fp32_copy:
                fp32_copy.copy_(renewed)

    def gather_stepped(self, bucket: int) -> Any | None:
        """Starts the all_gather of a bucket that was stepped; returns its work, or None on one rank."""
        self.round_to_parameters(bucket)
        return self.gather(bucket)

    def gather(self, bucket: int) -> Any | None:
        """Starts the all_gather of a bucket of parameters as it is; returns its work, or None on one rank."""
        return self.gather_in(self._flats[bucket]) if self.travels(bucket) else None

    def travels(self, bucket: int) -> bool:
        """Whether other ranks own parts of this bucket, so that it must be gathered."""
        return self._group.size() > 1 and self._flats[bucket].numel() > 0

    def hides(self, bucket: int) -> bool:
        """Whether the bucket has memory that must not be read until other ranks' parts have come."""
        return self.travels(bucket)

    def gather_in(self, memory: torch.Tensor) -> Any:
        """As `gather`, in the given memory of a whole bucket."""
        backend = sharing(memory.device, self._group)
        if backend is not None and backend.shares(memory):
            return backend.gather_whole(memory)
        whole = memory.view(torch.uint8)
        length = whole.numel() // self._group.size()
        part = whole[self._rank * length : (self._rank + 1) * length]
        return all_gather(whole, part, group=self._group, async_op=True)

    def whole(self, bucket: int) -> torch.Tensor:
        """The memory of a whole bucket."""
        return self._flats[bucket]

    def views(self, bucket: int) -> dict[torch.Tensor, torch.Tensor]:
        """The view of each parameter into this bucket."""
        return {self.parameters[index]: self._views[index] for index in self.layout.buckets[bucket]}

    def round_to_parameters(self, bucket: int) -> None:
        """Rounds the fp32 copy into this rank's part, and tells autograd that the parameters have changed."""
        fp32_copy = self.fp32_copies[bucket]
        if fp32_copy is not None:
            self.own(bucket).copy_(fp32_copy)
        torch.autograd.graph.increment_version([self.parameters[i] for i in self.layout.buckets[bucket]])

    def _number_pieces(self, rank: int) -> None:
        self._rank = rank
        self.pieces = [Piece(*facts) for facts in self.layout.pieces(rank)]
        self._numbers: list[list[int]] = [[] for _ in range(len(self))]
        for number, piece in enumerate(self.pieces):
            self._numbers[piece.bucket].append(number)

    def _make_tensors(self) -> None:
        self.fp32_copies = [self._fp32_copy(bucket, self._master_dtype) for bucket in range(len(self))]
        self.tensors = [self._tensor(piece) for piece in self.pieces]

    def _lay_out(self) -> None:
        self._flats = [self._moved(bucket) for bucket in range(len(self))]
        self._views = {i: self.parameters[i].data for members in self.layout.buckets for i in members}

    def _moved(self, bucket: int) -> torch.Tensor:
        members = [self.parameters[index] for index in self.layout.buckets[bucket]]
        flat = lasting_memory(self.layout.padded(bucket), members[0].dtype, members[0].device, self._group)
        for parameter, view in zip(members, laid_out(flat, members, self.layout.offsets(bucket)), strict=True):
            view.copy_(parameter.data)
            parameter.data = view
        return flat

    def _fp32_copy(self, bucket: int, dtype: torch.dtype | None) -> torch.Tensor | None:
        own = self.own(bucket)
        if dtype is None or not own.dtype.is_floating_point or own.dtype == dtype:
            return None
        return flat_memory(own.numel(), dtype, own.device, self._group).copy_(own)

    def _tensor(self, piece: Piece) -> torch.nn.Parameter:
        """What the optimizer steps: a view of the fp32 copy, or of the parameters themselves."""
        fp32_copy = self.fp32_copies[piece.bucket]
        stepped = self.own(piece.bucket) if fp32_copy is None else fp32_copy
        part = stepped[piece.place]
        return torch.nn.Parameter(part, requires_grad=part.is_floating_point() or part.is_complex())


def _up_to_date(fp32_copy: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The copy, or where it does not round to the values a new one that has them widened."""
    stale = fp32_copy.to(values.dtype) != values
    return torch.where(stale, values.to(fp32_copy.dtype), fp32_copy) if bool(stale.any()) else fp32_copy


def lasting_memory(elements: int, dtype: torch.dtype, device: torch.device, group: dist.ProcessGroup) -> torch.Tensor:
    """As `flat_memory`, for memory that many gathers use: on devices that run gathers, they share it. Collective."""
    backend = sharing(device, group)
    shared = backend.share_memory(elements, dtype, device) if backend and elements and dtype.is_floating_point else None
    return flat_memory(elements, dtype, device, group) if shared is None else shared


def sharing(device: torch.device, group: dist.ProcessGroup) -> Any | None:
    """The backend if its devices may share memory; None for the CPU, and for other backends."""
    backend = None if device.type == "cpu" or group.size() == 1 else group._get_backend(device)
    return backend if hasattr(backend, "share_memory") else None


def flat_memory(elements: int, dtype: torch.dtype, device: torch.device, group: dist.ProcessGroup) -> torch.Tensor:
    """A flat tensor in shared memory, so that gathers copy nothing; in ordinary memory if the group has none left."""
    if device.type == "cpu" and not dtype.is_complex and elements and group.size() > 1:
        try:
            return allocate.empty(elements, dtype=dtype, group=group, fallback=True)
        except (RuntimeError, AttributeError):  # it is full, or the group is written in Python
            pass
    return torch.empty(elements, dtype=dtype, device=device)
