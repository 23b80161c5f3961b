"""How values travel: as float32, or as codes of blocks of elements.

    int8, int4   each element rounded to nearest, with one scale per block
    fp8          the same, to float8 (e4m3)
    sign         signs, and the mean size of a block's elements
    topk         the largest elements of each block, as their places and bfloat16
    topk-2bit    the same of larger blocks, as their places, signs, and one of two magnitudes (SparseLoCo)

Nothing is random, and nothing depends on the instruction set, so that equal values have equal codes on every rank. What
codes leave out, the residual, is added to the next values (error feedback, arXiv 1809.07599, 1901.09847). Values that
are not finite arrive as such, or make their whole block NaN; they leave no residual.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ringdp import _native

_C = _native.load()
BLOCK = 256  # elements, but for signs and two bits
TOP = 4  # of them: 1.6 %
SPARSE_BLOCK, SPARSE_TOP = 4096, 64  # as in Covenant-72B (arXiv 2603.08163): 1.6 %, in blocks that share two magnitudes


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

    def encode_with_feedback(self, values: Tensor, residuals: Tensor | None, blocks: int) -> Tensor:
        """Encodes flat values + residuals, in so many blocks; the residuals become what the codes leave out."""
        if residuals is None:
            return self.encode(in_blocks(values, blocks, self.block))
        values = values + residuals
        encoded = self.encode(in_blocks(values, blocks, self.block))
        torch.sub(values, self.decode(encoded).flatten()[: len(values)], out=residuals).nan_to_num_(0.0, 0.0, 0.0)
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

    def encode_with_feedback(self, values: Tensor, residuals: Tensor | None, blocks: int) -> Tensor:
        """In one pass."""
        return _C.encode_codes(self.kind, values.contiguous(), residuals, blocks)


@dataclass(frozen=True)
class TopK(Codec):
    """kept: elements of each block, the largest; of equal ones the first."""

    kept: int

    @property
    def block_bytes(self) -> int:  # type: ignore[override]
        """A place of one byte and a value of two for each."""
        return 3 * self.kept

    def encode(self, blocks: Tensor) -> Tensor:
        """Places, then values."""
        places = _places(_largest(_sizes(blocks), self.kept), self.kept)
        values = blocks.gather(1, places).bfloat16()
        return torch.cat([places.to(torch.uint8), values.view(torch.uint8)], 1)

    def decode(self, encoded: Tensor) -> Tensor:
        """The others are 0."""
        places, values = encoded[:, : self.kept].long(), _bfloat16(encoded[:, self.kept :])
        return values.new_zeros(len(encoded), self.block).scatter_(1, places, values)


@dataclass(frozen=True)
class TopK2Bit(Codec):
    """The largest `kept` of each block as signs and two magnitudes, after SparseLoCo (arXiv 2508.15706).

    The magnitudes are bfloat16: the means of sizes above the mean of all that are kept, and of the others, which is 0
    where fewer than `kept` are not 0. Places are 12 bits each, or a bit for each of the block, whichever is shorter.
    kept: a multiple of 8.
    """

    kept: int
    block: int = SPARSE_BLOCK

    @property
    def _place_bits(self) -> int:
        return (self.block - 1).bit_length()

    @property
    def _place_bytes(self) -> int:
        return min(self._place_bits * self.kept, self.block) // 8

    @property
    def block_bytes(self) -> int:  # type: ignore[override]
        """Two magnitudes, places, and two bits for each."""
        return 4 + self._place_bytes + self.kept // 4

    def encode(self, blocks: Tensor) -> Tensor:
        """Each block by itself. One that holds an infinity or a NaN, or whose sizes add up to infinity, is NaN."""
        sizes = _sizes(blocks)
        chosen = _largest(sizes, self.kept)
        places = _places(chosen, self.kept)
        sizes, is_negative = sizes.gather(1, places), blocks.gather(1, places) < 0
        middle = _mean_of(sizes, torch.ones_like(is_negative)).where((sizes > 0).all(1, keepdim=True), 0.0)
        is_large = sizes > middle
        levels = torch.cat([_mean_of(sizes, ~is_large), _mean_of(sizes, is_large)], 1).bfloat16()
        levels[~levels.isfinite().all(1)] = math.nan
        where = _packed(places, self._place_bits) if self._lists_places else _packed(chosen, 1)
        return torch.cat([levels.view(torch.uint8), where, _packed(is_negative + 2 * is_large, 2)], 1)

    def decode(self, encoded: Tensor) -> Tensor:
        """The others are 0."""
        levels, where, codes = encoded.split([4, self._place_bytes, self.kept // 4], 1)
        listed = self._lists_places
        places = _unpacked(where, self._place_bits) if listed else _places(_unpacked(where, 1), self.kept)
        levels, codes = _bfloat16(levels), _unpacked(codes, 2)
        values = levels.gather(1, codes >> 1)
        values = torch.where(codes & 1 == 1, -values, values)
        blocks = values.new_zeros(len(encoded), self.block).scatter_(1, places, values)
        return blocks.masked_fill_(levels[:, :1].isnan(), math.nan)

    @property
    def _lists_places(self) -> bool:
        return self._place_bytes < self.block // 8


class Codecs(NamedTuple):
    """Of what workers contribute, and of the means."""

    contributions: Codec
    means: Codec

    @property
    def block(self) -> int:
        """Of both."""
        return self.means.block

    @property
    def exact(self) -> Codecs:
        """float32 in blocks of the same size."""
        return Codecs(Float32(self.block), Float32(self.block))


FLOAT32 = Codecs(Float32(), Float32())
NAMES = (None, "int8", "int4", "topk", "topk-2bit")


def codecs_of(compress: str | None, workers: int) -> Codecs:
    """By one of NAMES. As many elements of means are kept as all workers may have sent."""
    if compress is None:
        return FLOAT32
    if compress == "topk":
        return Codecs(TopK(TOP), TopK(min(TOP * workers, BLOCK)))
    if compress == "topk-2bit":
        return Codecs(TopK2Bit(SPARSE_TOP), TopK2Bit(min(SPARSE_TOP * workers, SPARSE_BLOCK)))
    return Codecs(Coded(compress), Coded(compress))


def in_blocks(values: Tensor, blocks: int, block: int = BLOCK) -> Tensor:
    """Flat values in so many blocks, filled up with zeros."""
    return functional.pad(values, (0, blocks * block - len(values))).view(blocks, block)


def _sizes(blocks: Tensor) -> Tensor:
    """Magnitudes; NaN is as large as an infinity."""
    return blocks.abs().nan_to_num_(math.inf, math.inf)


def _largest(sizes: Tensor, kept: int) -> Tensor:
    """Which are so many largest ones of each row; of equal ones the first."""
    least = sizes.kthvalue(sizes.shape[1] - kept + 1, dim=1, keepdim=True).values
    above, equal = sizes > least, sizes == least
    return above | (equal & (equal.cumsum(1) <= kept - above.sum(1, keepdim=True)))


def _places(chosen: Tensor, kept: int) -> Tensor:
    """Of those that are chosen, so many in each row, in their order."""
    return chosen.nonzero()[:, 1].view(-1, kept)


def _mean_of(sizes: Tensor, chosen: Tensor) -> Tensor:
    """[rows, 1], of those chosen; 0 of none. Added up by halves, as bits of torch.sum depend on the instruction set."""
    count = sizes.shape[1]
    total = functional.pad(sizes.where(chosen, 0.0), (0, (1 << (count - 1).bit_length()) - count))
    while total.shape[1] > 1:
        total = total[:, : total.shape[1] // 2] + total[:, total.shape[1] // 2 :]
    return total / chosen.sum(1, keepdim=True).clamp(min=1)


def _packed(numbers: Tensor, width: int) -> Tensor:
    """Whole numbers of so many bits, in bytes; the lowest bit first. Those of a row fill whole bytes."""
    bits = numbers.long().unsqueeze(-1) >> torch.arange(width, device=numbers.device) & 1
    octets = bits.view(len(numbers), -1, 8) << torch.arange(8, device=numbers.device)
    return octets.sum(-1).to(torch.uint8)


def _unpacked(packed: Tensor, width: int) -> Tensor:
    """The inverse, int64."""
    bits = packed.long().unsqueeze(-1) >> torch.arange(8, device=packed.device) & 1
    numbers = bits.view(len(packed), -1, width) << torch.arange(width, device=packed.device)
    return numbers.sum(-1)


def _bfloat16(encoded: Tensor) -> Tensor:
    """As float32."""
    return encoded.clone(memory_format=torch.contiguous_format).view(torch.bfloat16).float()  # aligned
