"""How values travel: as float32, or as codes of blocks of elements.

    int8, int4   each element rounded to nearest, with one scale per block
    fp8          the same, to float8 (e4m3)
    sign         signs, and the mean size of a block's elements
    topk         the largest elements of each block, as their places and bfloat16

Nothing is random, and nothing depends on the instruction set, so that equal values have equal codes on every rank. What
codes leave out is owed, and added to the next values (error feedback, arXiv 1809.07599, 1901.09847). Values that are
not finite arrive as such, or make their whole block NaN; nothing is owed of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ringdp import _native

_C = _native.load()
BLOCK = 256  # elements, but for signs
TOP = 4  # of them: 1.6 %


class Codec(ABC):
    """Of blocks, float32 [blocks, block], as uint8 [blocks, block_bytes]. block_bytes: of an encoded block."""

    block: int = BLOCK
    block_bytes: int
    is_exact = False

    @abstractmethod
    def encode(self, blocks: Tensor) -> Tensor:
        """Each block by itself."""

    @abstractmethod
    def decode(self, encoded: Tensor) -> Tensor:
        """The inverse, but for what was left out."""

    def encode_owing(self, values: Tensor, owed: Tensor | None, blocks: int) -> Tensor:
        """Encodes flat values + owed, in so many blocks; what the codes leave out of them becomes `owed`, in place."""
        if owed is None:
            return self.encode(in_blocks(values, blocks, self.block))
        values = values + owed
        encoded = self.encode(in_blocks(values, blocks, self.block))
        torch.sub(values, self.decode(encoded).flatten()[: len(values)], out=owed).nan_to_num_(0.0, 0.0, 0.0)
        return encoded


@dataclass(frozen=True)
class Float32(Codec):
    """The values themselves."""

    block: int = BLOCK
    is_exact = True

    @property
    def block_bytes(self) -> int:  # type: ignore[override]
        """Four for each."""
        return 4 * self.block

    def encode(self, blocks: Tensor) -> Tensor:
        """As bytes."""
        return blocks.contiguous().view(torch.uint8)

    def decode(self, encoded: Tensor) -> Tensor:
        """Exact."""
        return encoded.contiguous().view(torch.float32)


@dataclass(frozen=True)
class Coded(Codec):
    """kind: "int8", "fp8", "int4" or "sign". By ringdp's kernels, see csrc/kernels/codes.h."""

    kind: str

    @property
    def block(self) -> int:  # type: ignore[override]
        """Of the code."""
        return _C.code_block(self.kind)

    @property
    def block_bytes(self) -> int:  # type: ignore[override]
        """A scale, and codes."""
        return _C.code_block_bytes(self.kind)

    def encode(self, blocks: Tensor) -> Tensor:
        """Each block by itself."""
        return _C.encode_codes(self.kind, blocks.contiguous(), None, len(blocks))

    def decode(self, encoded: Tensor) -> Tensor:
        """Codes times scales."""
        return _C.decode_codes(self.kind, encoded.contiguous())

    def encode_owing(self, values: Tensor, owed: Tensor | None, blocks: int) -> Tensor:
        """In one pass."""
        return _C.encode_codes(self.kind, values.contiguous(), owed, blocks)


@dataclass(frozen=True)
class TopK(Codec):
    """kept: elements of each block, the largest; of equal ones the first."""

    kept: int

    @property
    def block_bytes(self) -> int:  # type: ignore[override]
        """A place of one byte and a value of two for each."""
        return 3 * self.kept

    def encode(self, blocks: Tensor) -> Tensor:
        """Places, then values. NaN is the largest."""
        places = blocks.abs().sort(dim=1, descending=True, stable=True).indices[:, : self.kept]
        values = blocks.gather(1, places).bfloat16()
        return torch.cat([places.to(torch.uint8), values.view(torch.uint8)], 1)

    def decode(self, encoded: Tensor) -> Tensor:
        """The others are 0."""
        places = encoded[:, : self.kept]
        values = encoded[:, self.kept :].clone(memory_format=torch.contiguous_format).view(torch.bfloat16)  # aligned
        return values.new_zeros(len(encoded), self.block, dtype=torch.float32).scatter_(
            1, places.long(), values.float()
        )


class Codecs(NamedTuple):
    """Of what workers contribute, and of the means."""

    contributions: Codec
    means: Codec

    @property
    def block(self) -> int:
        """Of both."""
        return self.means.block


FLOAT32 = Codecs(Float32(), Float32())
NAMES = (None, "int8", "int4", "topk")


def codecs_of(compress: str | None, workers: int) -> Codecs:
    """By one of NAMES. As many elements of means are kept as all workers may have sent."""
    if compress is None:
        return FLOAT32
    if compress == "topk":
        return Codecs(TopK(TOP), TopK(min(TOP * workers, BLOCK)))
    return Codecs(Coded(compress), Coded(compress))


def in_blocks(values: Tensor, blocks: int, block: int = BLOCK) -> Tensor:
    """Flat values in so many blocks, filled up with zeros."""
    return functional.pad(values, (0, blocks * block - len(values))).view(blocks, block)
