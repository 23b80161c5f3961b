"""How a fragment travels: as float32, or as codes of 8 or 4 bits with one scale per block of 128 elements.

Codes are rounded to nearest, without random numbers, so that equal values have equal codes on every rank. What rounding
leaves out is owed, and added to the next values (error feedback, arXiv 1901.09847). A block with a value that is not
finite decodes to NaN as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 128  # elements
_SCALE_BYTES = 4


@dataclass(frozen=True)
class Codec:
    """bits: of an element; 32 is float32 itself."""

    bits: int

    @property
    def is_exact(self) -> bool:
        """Whether nothing is left out."""
        return self.bits == 32

    @property
    def block_bytes(self) -> int:
        """Of an encoded block."""
        return BLOCK * self.bits // 8 + (0 if self.is_exact else _SCALE_BYTES)

    def encode(self, blocks: Tensor) -> Tensor:
        """float32 [blocks, BLOCK] -> uint8 [blocks, block_bytes]."""
        if self.is_exact:
            return blocks.contiguous().view(torch.uint8)
        largest = 2 ** (self.bits - 1) - 1  # 127 or 7
        scales = blocks.abs().amax(1, keepdim=True) / largest
        codes = (blocks / scales).round().nan_to_num(0.0, 0.0, 0.0).clamp(-largest, largest)  # 0 / 0 is NaN
        if self.bits == 8:
            packed = codes.to(torch.int8).view(torch.uint8)
        else:
            nibbles = (codes + 8).to(torch.uint8)
            packed = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
        return torch.cat([packed, scales.view(torch.uint8)], 1)

    def decode(self, encoded: Tensor) -> Tensor:
        """The inverse, but for the rounding."""
        if self.is_exact:
            return encoded.contiguous().view(torch.float32)
        packed = encoded[:, :-_SCALE_BYTES].contiguous()
        scales = encoded[:, -_SCALE_BYTES:].contiguous().view(torch.float32)
        if self.bits == 8:
            return packed.view(torch.int8).float() * scales
        return (torch.stack([packed & 15, packed >> 4], 2).view(len(packed), BLOCK).float() - 8) * scales

    def encode_owing(self, values: Tensor, owed: Tensor | None, blocks: int) -> Tensor:
        """Encodes flat values + owed, in so many blocks; what the codes leave out of them becomes `owed`, in place."""
        if owed is None:
            return self.encode(in_blocks(values, blocks))
        values = values + owed
        encoded = self.encode(in_blocks(values, blocks))
        torch.sub(values, self.decode(encoded).flatten()[: len(values)], out=owed)
        return encoded


FLOAT32 = Codec(32)
CODECS = {None: FLOAT32, "int8": Codec(8), "int4": Codec(4)}


def in_blocks(values: Tensor, blocks: int) -> Tensor:
    """Flat values in so many blocks, filled up with zeros."""
    return functional.pad(values, (0, blocks * BLOCK - len(values))).view(blocks, BLOCK)
