"""How values travel: as float32, or as codes of blocks of elements.

    int8, int4   each element rounded to nearest, with one scale per block
    fp8          the same, to float8 (e4m3)
    sign         signs, and the mean size of a block's elements
    topk         the largest elements of each block, as their places and bfloat16

Nothing is random, and nothing depends on the instruction set, so that equal values have equal codes on every rank. What
codes leave out is owed, and added to the next values (error feedback, arXiv 1809.07599, 1901.09847). Values that are
not finite arrive as such; rounding makes their whole block NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 128  # elements; other blocks are powers of two
TOP = 2  # of them: 1.6 %
_SCALE_BYTES = 4


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
    block: int = BLOCK

    @property
    def block_bytes(self) -> int:  # type: ignore[override]
        """Codes and a scale."""
        return self.block * self.bits // 8 + _SCALE_BYTES

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
        return (torch.stack([packed & 15, packed >> 4], 2).view(len(packed), self.block).float() - 8) * scales


@dataclass(frozen=True)
class Float8(Codec):
    """Rounded to nearest, ties to even."""

    block: int = BLOCK

    @property
    def block_bytes(self) -> int:  # type: ignore[override]
        """Codes and a scale."""
        return self.block + _SCALE_BYTES

    def encode(self, blocks: Tensor) -> Tensor:
        """The scale makes a block's largest value the largest float8, 448."""
        largest = torch.finfo(torch.float8_e4m3fn).max
        scales = blocks.abs().amax(1, keepdim=True) / largest
        codes = (blocks / scales).nan_to_num(0.0, 0.0, 0.0).clamp(-largest, largest)  # 0 / 0 is NaN
        codes = codes.to(torch.float8_e4m3fn)
        return torch.cat([codes.view(torch.uint8), scales.view(torch.uint8)], 1)

    def decode(self, encoded: Tensor) -> Tensor:
        """Codes times scales."""
        codes = encoded[:, :-_SCALE_BYTES].contiguous().view(torch.float8_e4m3fn)
        return codes.float() * encoded[:, -_SCALE_BYTES:].contiguous().view(torch.float32)


@dataclass(frozen=True)
class Sign(Codec):
    """Of -0.0 and of 0.0 it is that of 1."""

    block: int = BLOCK

    @property
    def block_bytes(self) -> int:  # type: ignore[override]
        """A bit for each element, and a scale."""
        return self.block // 8 + _SCALE_BYTES

    def encode(self, blocks: Tensor) -> Tensor:
        """The scale is the mean size of what is not 0, as zeros fill up the last block of a parameter.

        Sizes are added up half by half: other sums depend on the instruction set.
        """
        sums = blocks.abs()
        while (half := sums.shape[1] // 2) > 0:
            sums = sums[:, :half] + sums[:, half:]
        scales = sums / blocks.count_nonzero(1).clamp(min=1)[:, None]
        bits = (blocks >= 0).view(len(blocks), -1, 8).to(torch.uint8)
        packed = (bits << torch.arange(8, dtype=torch.uint8)).sum(2, dtype=torch.uint8)
        return torch.cat([packed, scales.view(torch.uint8)], 1)

    def decode(self, encoded: Tensor) -> Tensor:
        """The scale, with signs."""
        packed, scales = encoded[:, :-_SCALE_BYTES], encoded[:, -_SCALE_BYTES:].contiguous().view(torch.float32)
        bits = packed[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1
        return (2.0 * bits.view(len(packed), self.block).float() - 1.0) * scales


@dataclass(frozen=True)
class TopK(Codec):
    """kept: elements of each block, the largest; of equal ones the first. Blocks have 256 elements at most."""

    kept: int
    block: int = BLOCK

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
    rounded = Rounded({"int8": 8, "int4": 4}[compress])
    return Codecs(rounded, rounded)


def in_blocks(values: Tensor, blocks: int, block: int = BLOCK) -> Tensor:
    """Flat values in so many blocks, filled up with zeros."""
    return functional.pad(values, (0, blocks * block - len(values))).view(blocks, block)
