"""What the buffers of all ranks hold while plans are played: for every chunk, whose contributions are in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SLOTS = 2  # an arena member's slots; stages take turns

Ref = dict[str, Any]
Place = tuple[str, int, int]  # kind of buffer, its rank, its slot


class PlaybackError(RuntimeError):
    """Plans that do not fit together: a deadlock, or a sum that counts somebody twice or not at all."""


@dataclass(frozen=True)
class Cell:
    """One chunk's content. ranks: whose contributions have been summed, in that order."""

    chunk: int
    ranks: tuple[int, ...]
    value: float

    def __add__(self, other: Cell) -> Cell:
        if self.chunk != other.chunk or set(self.ranks) & set(other.ranks):
            raise PlaybackError(f"chunk {self.chunk} of ranks {self.ranks} + chunk {other.chunk} of {other.ranks}")
        return Cell(self.chunk, self.ranks + other.ranks, self.value + other.value)


class Memory:
    """The tensors (reduced in place), scratch and slots of all ranks, in units of one chunk."""

    def __init__(self, inputs: list[list[float]], chunk_bytes: int, hosts: list[int]) -> None:
        self._chunk_bytes = chunk_bytes
        self._host_of = [max(first for first in hosts if first <= rank) for rank in range(len(inputs))]
        self._cells: dict[Place, dict[int, Cell]] = {
            ("tensor", rank, 0): {chunk: Cell(chunk, (rank,), value) for chunk, value in enumerate(row)}
            for rank, row in enumerate(inputs)
        }

    def owner(self, rank: int, ref: Ref) -> int:
        """Whose memory a plan of `rank` means; members of an arena are counted from their host's first rank."""
        of_member = ref["space"] in ("slot", "peer input", "peer output")
        return self._host_of[rank] + ref["index"] if of_member else rank

    def load(self, rank: int, ref: Ref) -> list[Cell]:
        """The chunks that a plan of `rank` reads there."""
        held = self._cells.get(self._place(rank, ref), {})
        try:
            return [held[unit] for unit in self._units(ref)]
        except KeyError as unit:
            raise PlaybackError(f"rank {rank} reads chunk {unit} of {ref['space']} before it is written") from None

    def store(self, rank: int, ref: Ref, cells: list[Cell]) -> None:
        """Writes them there."""
        held = self._cells.setdefault(self._place(rank, ref), {})
        held.update(zip(self._units(ref), cells, strict=True))

    def tensor(self, rank: int) -> list[Cell]:
        """What the tensor of a rank holds, by position."""
        held = self._cells["tensor", rank, 0]
        return [held[position] for position in sorted(held)]

    def _place(self, rank: int, ref: Ref) -> Place:
        kind = ref["space"] if ref["space"] in ("slot", "scratch") else "tensor"
        return kind, self.owner(rank, ref), ref["stage"] % SLOTS if kind == "slot" else 0

    def _units(self, ref: Ref) -> range:
        first, beyond = divmod(ref["offset"], self._chunk_bytes)
        count, rest = divmod(ref["bytes"], self._chunk_bytes)
        if beyond or rest:
            raise PlaybackError(f"{ref['bytes']} bytes at {ref['offset']} are no whole chunks of {self._chunk_bytes}")
        return range(first, first + count)
