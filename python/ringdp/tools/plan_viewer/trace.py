"""A played-back collective as a value: frames of moves and of what every rank then holds."""

from __future__ import annotations

from dataclasses import dataclass

RAW, PARTIAL, DONE = "raw", "partial", "done"
LINK, MEMORY = "link", "memory"


@dataclass(frozen=True)
class Move:
    """Chunks that went from one rank to another, or within one rank's memory (source == target).

    via: link (sent, counted as wire bytes) or memory (read or written where the other rank maps it).
    """

    source: int
    target: int
    via: str
    chunks: tuple[int, ...]
    ranks: tuple[int, ...]  # whose contributions are in them
    bytes: int


@dataclass(frozen=True)
class Held:
    """The most complete version of a chunk that a rank holds. ranks: whose contributions are in it, in order."""

    rank: int
    chunk: int
    ranks: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class Frame:
    """One step of the playback. round: of the links, from 1; None where only memory is touched.

    held: what changed. sent, memory: by rank, bytes since the start; memory: read and written by folds and copies.
    """

    round: int | None
    moves: tuple[Move, ...]
    held: tuple[Held, ...]
    sent: tuple[int, ...]
    memory: tuple[int, ...]


@dataclass(frozen=True)
class Trace:
    """A collective from its inputs to its results. rounds: of the links, as recorded."""

    scheme: str
    ranks: int
    chunks: int
    chunk_bytes: int
    inputs: list[list[float]]
    frames: list[Frame]
    results: list[list[float]]
    rounds: int

    def state(self, held: Held) -> str:
        """raw: a rank's own; partial: the sum of some ranks; done: of all."""
        return state_of(len(held.ranks), self.ranks)

    def phase(self, frame: Frame) -> str:
        """What a frame is about: "sums" while contributions travel, "results" once only finished chunks do."""
        return "results" if all(len(move.ranks) == self.ranks for move in frame.moves) else "sums"

    def after(self, frames: int) -> list[list[Held]]:
        """What every rank holds after so many frames: [rank][chunk]."""
        grid = [[Held(r, c, (r,), value) for c, value in enumerate(row)] for r, row in enumerate(self.inputs)]
        for frame in self.frames[:frames]:
            for held in frame.held:
                grid[held.rank][held.chunk] = held
        return grid

    def values(self, frames: int) -> list[list[float]]:
        """The same as numbers."""
        return [[held.value for held in row] for row in self.after(frames)]

    def owned(self) -> dict[int, list[Held]]:
        """The first finished version of each chunk, by the rank that finished it."""
        owners: dict[int, list[Held]] = {}
        seen: set[int] = set()
        for frame in self.frames:
            done = [held for held in frame.held if len(held.ranks) == self.ranks and held.chunk not in seen]
            for held in done:
                owners.setdefault(held.rank, []).append(held)
            seen |= {held.chunk for held in done}
        return owners


def state_of(contributions: int, ranks: int) -> str:
    """The state of a chunk with so many contributions."""
    return DONE if contributions == ranks else PARTIAL if contributions > 1 else RAW


def chunk_name(chunk: int) -> str:
    """a, b, ..., z, then numbers."""
    return chr(ord("a") + chunk) if chunk < 26 else str(chunk)
