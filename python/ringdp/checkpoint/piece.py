"""The terms of the format: a tensor of the state (Spec), a range of its elements (Stretch), and its values (Piece).

Elements are counted in row-major order, or in that of the tensor with its dimensions permuted by `order`. So the shards
of a channels_last parameter, order (0, 2, 3, 1), are stretches in memory. () is row-major.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read. Nothing was changed unless the message says so."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns any exception inside, which means a damaged or forged file, into a CheckpointError that names the file."""
    try:
        yield
    except CheckpointError as error:
        raise error if str(path) in str(error) else CheckpointError(f"{path}: {error}") from error
    except Exception as error:
        raise CheckpointError(
            f"{path} is damaged or not what its format promises ({type(error).__name__}: {error}); "
            "take an older checkpoint"
        ) from error


@dataclass(frozen=True, order=True)
class Spec:
    """A tensor of the state. `kind`: "parameter", "buffer", "master", or a key of the optimizer's state ("exp_avg")."""

    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...] = ()

    @property
    def row_major(self) -> Spec:
        """The same tensor, counted in row-major order."""
        return replace(self, order=())

    @property
    def key(self) -> str:
        """The unique name of the tensor in a checkpoint."""
        return f"{self.kind}/{self.name}"

    @property
    def elements(self) -> int:
        """The number of elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype; CheckpointError if this torch has none of that name."""
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype):
            raise CheckpointError(f"{self.key} has the dtype {self.dtype}, unknown to torch {torch.__version__}")
        return found

    def __str__(self) -> str:
        return f"{self.key} ({self.dtype} {list(self.shape)})"


def spec_of(kind: str, name: str, tensor: Tensor) -> Spec:
    """The description of a whole tensor."""
    return Spec(kind, name, tuple(tensor.shape), dtype_name(tensor.dtype))


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in a checkpoint: "float32"."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, order=True)
class Stretch:
    """Elements [offset, offset + length) of a tensor."""

    spec: Spec
    offset: int
    length: int

    @property
    def stop(self) -> int:
        """One past the last element."""
        return self.offset + self.length

    @property
    def bytes(self) -> int:
        """Its size in memory."""
        return self.length * self.spec.torch_dtype.itemsize

    def __str__(self) -> str:
        return f"elements {self.offset} to {self.stop} of {self.spec}"


@dataclass(frozen=True)
class Piece:
    """A stretch of tensor `kind`/`name` of `shape`: `tensor` is flat and holds the elements from `offset` on."""

    kind: str
    name: str
    shape: tuple[int, ...]
    offset: int
    tensor: Tensor
    order: tuple[int, ...] = ()

    @property
    def stretch(self) -> Stretch:
        """Its range of elements. CheckpointError for a tensor that is not flat or too long."""
        spec = Spec(self.kind, self.name, tuple(self.shape), dtype_name(self.tensor.dtype), tuple(self.order))
        if spec.order and sorted(spec.order) != list(range(len(spec.shape))):
            raise CheckpointError(f"{spec} has the order {list(spec.order)}, not a permutation of its dimensions")
        found = Stretch(spec, self.offset, self.tensor.numel())
        if self.tensor.dim() != 1 or found.offset < 0 or found.stop > spec.elements:
            raise CheckpointError(
                f"a piece of shape {list(self.tensor.shape)} at offset {self.offset} is not a flat piece of {spec}"
            )
        return found


def whole(kind: str, name: str, tensor: Tensor) -> Piece:
    """A whole tensor as one piece; a view where the tensor is contiguous, else a copy."""
    return Piece(kind, name, tuple(tensor.shape), 0, tensor.detach().reshape(-1))


def reordered(flat: Tensor, spec: Spec, order: tuple[int, ...]) -> Tensor:
    """All elements of `spec`, given in its own order, in another order."""
    if spec.order == order:
        return flat
    tensor = flat.view(spec.shape)
    if spec.order:
        back = sorted(range(len(spec.order)), key=lambda dimension: spec.order[dimension])
        tensor = flat.view([spec.shape[dimension] for dimension in spec.order]).permute(back)
    return (tensor.permute(order) if order else tensor).reshape(-1)


def sha256_of(tensor: Tensor) -> str:
    """The sha256 of a flat tensor's bytes."""
    flat = tensor.detach().cpu().contiguous()
    if not flat.nbytes:
        return hashlib.sha256().hexdigest()
    return hashlib.sha256((ctypes.c_char * flat.nbytes).from_address(flat.data_ptr())).hexdigest()
