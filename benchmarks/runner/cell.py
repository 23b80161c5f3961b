"""What is measured: a collective, a dtype, a number of ranks and a size; and the bytes that each of them is about."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import NamedTuple

from runner.native import DTYPES

OPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all")
SUMS = ("all_reduce", "reduce_scatter", "reduce")
ROOTED = ("broadcast", "reduce")
IN_PLACE = ("all_reduce", *ROOTED)


class Expected(NamedTuple):
    """`count` elements from `begin` of a buffer are the sum over `ranks` of what they filled in at `first` and on."""

    begin: int
    count: int
    first: int
    ranks: list[int]


@dataclass(frozen=True)
class Cell:
    """`size` is in bytes, of the larger buffer of a rank, as nccl-tests counts; whole elements for every rank."""

    op: str
    dtype: str
    ranks: int
    size: int

    @property
    def count(self) -> int:
        """Elements of the larger buffer: at least one per rank, the same number for all."""
        return max(1, self.size // DTYPES[self.dtype] // self.ranks) * self.ranks

    @property
    def nbytes(self) -> int:
        """Bytes of the larger buffer after that rounding."""
        return self.count * DTYPES[self.dtype]

    @property
    def part(self) -> int:
        """Elements of one rank's part."""
        return self.count // self.ranks

    @property
    def input_count(self) -> int:
        """Elements that a rank brings."""
        return self.part if self.op == "all_gather" else self.count

    @property
    def output_count(self) -> int:
        """Elements of a separate output; 0 where the result replaces the input."""
        if self.op in IN_PLACE:
            return 0
        return self.part if self.op == "reduce_scatter" else self.count

    @property
    def bus_factor(self) -> float:
        """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it."""
        n = self.ranks
        return {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0, "reduce": 1.0}.get(self.op, (n - 1) / n)

    def expected(self, rank: int, root: int) -> list[Expected]:
        """What `rank` must hold afterwards, in its output or in place; nothing where a result is unspecified."""
        all_ranks = list(range(self.ranks))
        if self.op == "all_reduce" or (self.op == "reduce" and rank == root):
            return [Expected(0, self.count, 0, all_ranks)]
        if self.op == "broadcast":
            return [Expected(0, self.count, 0, [root])]
        if self.op == "reduce_scatter":
            return [Expected(0, self.part, rank * self.part, all_ranks)]
        if self.op == "all_gather":
            return [Expected(r * self.part, self.part, 0, [r]) for r in all_ranks]
        if self.op == "all_to_all":
            return [Expected(r * self.part, self.part, rank * self.part, [r]) for r in all_ranks]
        return []


def seed_of(cell: Cell, turn: int, rank: int) -> int:
    """32 bits that differ for every cell, turn and rank, the same in every process."""
    text = f"{cell.op} {cell.dtype} {cell.ranks} {cell.size} {turn} {rank}"
    return int.from_bytes(hashlib.blake2s(text.encode(), digest_size=4).digest(), "little")


def parse_size(text: str) -> int:
    """Bytes from "4096", "4KiB", "1M"; ValueError names what it cannot read."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if not found or int(found[1]) == 0:
        raise ValueError(f"{text!r} is no size: write bytes, or 4KiB, 16MiB, 1GiB")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]


def size_name(size: int) -> str:
    """The shortest exact spelling: "16 MiB"."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size} B"
