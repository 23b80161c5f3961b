"""How a fragment travels: as float32, or as codes of blocks of 128 elements.

    int8, int4   each element rounded to nearest, with one scale per block
    topk         the largest elements of each block, as their places and bfloat16

Nothing is random, so that equal values have equal codes on every rank. What codes leave out is owed, and added to the
next values (error feedback, arXiv 1809.07599, 1901.09847). Values that are not finite arrive as such; rounding makes
their whole block NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 128  # elements
TOP = 2  # of them: 1.6 %
_SCALE_BYTES = 4


class Codec(ABC):
    """Of blocks, float32 [blocks, BLOCK], as uint8 [blocks, block_bytes]. block_bytes: of an encoded block."""

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
            return self.encode(in_blocks(values, blocks))
        values = values + owed
        encoded = self.encode(in_blocks(values, blocks))
        torch.sub(values, self.decode(encoded).flatten()[: len(values)], out=owed)
        return encoded


class Float32(Codec):
    """The values themselves."""

    block_bytes = 4 * BLOCK
    is_exact = True

    def encode(self, blocks: Tensor) -> Tensor:
        """As bytes."""
        return blocks.contiguous().view(torch.uint8)

    def decode(self, encoded: Tensor) -> Tensor:
        """Exact."""
        return encoded.contiguous().view(torch.float32)


@dataclass(frozen=True)
class Rounded(Codec):
    """bits: 8 or 4, of an element."""

    bits: int

    @property
    def block_bytes(self) -> int:  # type: ignore[override]
        """Codes and a scale."""
        return BLOCK * self.bits // 8 + _SCALE_BYTES

    def encode(self, blocks: Tensor) -> Tensor:
        """The scale makes a block's largest value the largest code, 127 or 7."""
        largest = 2 ** (self.bits - 1) - 1
        scales = blocks.abs().amax(1, keepdim=True) / largest
        codes = (blocks / scales).round().nan_to_num(0.0, 0.0, 0.0).clamp(-largest, largest)  # 0 / 0 is NaN
        if self.bits == 8:
            packed = codes.to(torch.int8).view(torch.uint8)
        else:
            nibbles = (codes + 8).to(torch.uint8)
            packed = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
        return torch.cat([packed, scales.view(torch.uint8)], 1)

    def decode(self, encoded: Tensor) -> Tensor:
        """Codes times scales."""
        packed = encoded[:, :-_SCALE_BYTES].contiguous()
        scales = encoded[:, -_SCALE_BYTES:].contiguous().view(torch.float32)
        if self.bits == 8:
            return packed.view(torch.int8).float() * scales
        return (torch.stack([packed & 15, packed >> 4], 2).view(len(packed), BLOCK).float() - 8) * scales


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
        places, values = encoded[:, : self.kept], encoded[:, self.kept :].contiguous().view(torch.bfloat16)
        return values.new_zeros(len(encoded), BLOCK, dtype=torch.float32).scatter_(1, places.long(), values.float())


class Codecs(NamedTuple):
    """Of what workers contribute, and of the means."""

    contributions: Codec
    means: Codec


FLOAT32 = Codecs(Float32(), Float32())
NAMES = (None, "int8", "int4", "topk")


def codecs_of(compress: str | None, workers: int) -> Codecs:
    """By one of NAMES. As many elements of means are kept as all workers may have sent."""
    if compress is None:
        return FLOAT32
    if compress == "topk":
        return Codecs(TopK(TOP), TopK(min(TOP * workers, BLOCK)))
    rounded = Rounded({"int8": 8, "int4": 4}[compress])
    return Codecs(rounded, rounded)


def in_blocks(values: Tensor, blocks: int) -> Tensor:
    """Flat values in so many blocks, filled up with zeros."""
    return functional.pad(values, (0, blocks * BLOCK - len(values))).view(blocks, BLOCK)
