"""Plays the recorded plans of all ranks side by side: one frame per round of the links, or per pass between barriers.

A frame sends what is ready at its beginning and belongs to the earliest open round, delivers it, and then runs every
fold and copy that became possible. A barrier that is complete lets its ranks pass in the next frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringdp import _native
from ringdp.tools.plan_viewer.schemes import SCHEMES, Plan, hosts_of, record
from ringdp.tools.plan_viewer.trace import LINK, MEMORY, Frame, Held, Move, Trace

SLOTS = 2  # an arena member's slots; stages take turns

Ref = dict[str, Any]
Place = tuple[str, int, int]  # kind of buffer, its rank, its slot


class PlaybackError(RuntimeError):
    """Plans that do not fit together: a deadlock, or a sum that counts a rank twice or not at all."""


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
        """The rank whose memory a plan of `rank` means; an arena counts members from its host's first rank."""
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


Step = dict[str, Any]
Channel = tuple[int, int]  # rank, number of the channel in its plan


def inputs(ranks: int, chunks: int) -> list[list[float]]:
    """Chunk c of rank r is (r + 1) * 10 + c, so a sum shows which ranks are in it."""
    return [[(r + 1) * 10.0 + c for c in range(chunks)] for r in range(ranks)]


def play(name: str, ranks: int, chunks: int) -> Trace:
    """One scheme on so many ranks and chunks. PlaybackError if its plans do not give every rank the whole sum."""
    scheme = SCHEMES[name]
    plans = record(scheme, ranks, chunks)
    player = Player(plans, inputs(ranks, chunks), scheme.chunk_bytes, hosts_of(scheme, ranks))
    frames = player.run()
    return Trace(
        scheme=name,
        ranks=ranks,
        chunks=chunks,
        chunk_bytes=scheme.chunk_bytes,
        inputs=inputs(ranks, chunks),
        frames=frames,
        results=player.results(),
        rounds=max(plan["totals"]["rounds"] for plan in plans),
    )


class Player:
    """The state of all ranks between frames."""

    def __init__(self, plans: list[Plan], given: list[list[float]], chunk_bytes: int, hosts: list[int]) -> None:
        self._ranks = len(plans)
        self._memory = Memory(given, chunk_bytes, hosts)
        self._hosts = [range(*ends) for ends in zip(hosts, [*hosts[1:], self._ranks], strict=True)]
        self._steps: dict[Channel, list[Step]] = {
            (rank, number): channel["steps"]
            for rank, plan in enumerate(plans)
            for number, channel in enumerate(plan["channels"])
        }
        self._done = dict.fromkeys(self._steps, 0)
        self._signals = [0] * self._ranks
        self._on_links: dict[tuple[int, int], list[list[Cell]]] = {}
        self._sent, self._touched = [0] * self._ranks, [0] * self._ranks
        self._best = {(r, c): (r,) for r, row in enumerate(given) for c in range(len(row))}
        self._moves: list[Move] = []
        self._held: dict[tuple[int, int], Held] = {}

    def run(self) -> list[Frame]:
        """All frames in which something moved."""
        frames = []
        while any(self._done[channel] < len(steps) for channel, steps in self._steps.items()):
            frame = self._frame()
            if frame.moves or frame.held:
                frames.append(frame)
        return frames

    def results(self) -> list[list[float]]:
        """The tensors of all ranks. PlaybackError when a chunk is not the sum of all."""
        tensors = [self._memory.tensor(rank) for rank in range(self._ranks)]
        for rank, cells in enumerate(tensors):
            for position, cell in enumerate(cells):
                if cell.chunk != position or len(cell.ranks) != self._ranks:
                    raise PlaybackError(f"rank {rank} ends with ranks {cell.ranks} of chunk {cell.chunk} at {position}")
        return [[cell.value for cell in cells] for cells in tensors]

    def _frame(self) -> Frame:
        before, passed = dict(self._done), self._barriers_passed()
        self._moves, self._held = [], {}
        gate = self._open_round()
        sent = [channel for channel in self._steps if self._send(channel, gate, before)]
        while any([self._advance(channel, passed) for channel in self._steps]):
            pass
        if self._done == before:
            raise PlaybackError(f"nothing can move any more: {self._stuck()}")
        held = tuple(self._held[key] for key in sorted(self._held))
        round_shown = gate + 1 if sent else None
        return Frame(round_shown, tuple(self._moves), held, tuple(self._sent), tuple(self._touched))

    def _current(self, channel: Channel) -> Step | None:
        steps, done = self._steps[channel], self._done[channel]
        return steps[done] if done < len(steps) else None

    def _open_round(self) -> int:
        """The earliest round that is not over; -1 when all are."""
        rest = (step["round"] for channel, steps in self._steps.items() for step in steps[self._done[channel] :])
        return min((number for number in rest if number >= 0), default=-1)

    def _barriers_passed(self) -> list[int]:
        """For each rank the barriers that all ranks of its host have reached."""
        reached = {rank: min(self._signals[r] for r in host) for host in self._hosts for rank in host}
        return [reached[rank] for rank in range(self._ranks)]

    def _is_due(self, channel: Channel, step: Step, done: dict[Channel, int]) -> bool:
        return all(done[channel[0], after["channel"]] >= after["steps"] for after in step["after"])

    def _send(self, channel: Channel, gate: int, before: dict[Channel, int]) -> bool:
        step = self._current(channel)
        if step is None or step["verb"] != "send" or step["round"] != gate or not self._is_due(channel, step, before):
            return False
        rank, peer = channel[0], step["peer"]
        cells = self._memory.load(rank, step["srcs"][0])
        self._on_links.setdefault((rank, peer), []).append(cells)
        self._moved(rank, peer, LINK, cells, step["bytes"])
        self._sent[rank] += step["bytes"]
        self._done[channel] += 1
        return True

    def _advance(self, channel: Channel, passed: list[int]) -> bool:
        """Makes one step that is not a send; False when it has to wait."""
        step, rank = self._current(channel), channel[0]
        if step is None or step["verb"] == "send" or not self._is_due(channel, step, self._done):
            return False
        if step["verb"] == "recv":
            waiting = self._on_links.get((step["peer"], rank))
            if not waiting:
                return False
            self._store(rank, step["dsts"][0], waiting.pop(0))
        elif step["verb"] == "wait":
            if passed[rank] < self._signals[rank]:
                return False
        elif step["verb"] == "signal":
            self._signals[rank] += 1
        else:
            self._combine(rank, step)
        self._done[channel] += 1
        return True

    def _combine(self, rank: int, step: Step) -> None:
        """A fold or a copy: sums what its sources hold, in their order, into every destination."""
        sources = [self._memory.load(rank, ref) for ref in step["srcs"]]
        for ref, cells in zip(step["srcs"], sources, strict=True):
            self._touch(rank, self._memory.owner(rank, ref), rank, ref, cells)
        total = sources[0]
        for cells in sources[1:]:
            total = [a + b for a, b in zip(total, cells, strict=True)]
        for ref in step["dsts"]:
            self._touch(rank, rank, self._memory.owner(rank, ref), ref, total)
            self._store(rank, ref, total)

    def _touch(self, rank: int, source: int, target: int, ref: dict[str, Any], cells: list[Cell]) -> None:
        """Counts bytes of memory; what crosses ranks, or is laid into a slot for others, is a move."""
        self._touched[rank] += ref["bytes"]
        if source != target or (ref["space"] == "slot" and target == rank):
            self._moved(source, target, MEMORY, cells, ref["bytes"])

    def _moved(self, source: int, target: int, via: str, cells: list[Cell], size: int) -> None:
        if not cells:  # a slice may be empty where there are fewer chunks than ranks
            return
        chunks = tuple(cell.chunk for cell in cells)
        self._moves.append(Move(source, target, via, chunks, cells[0].ranks, size))

    def _store(self, rank: int, ref: dict[str, Any], cells: list[Cell]) -> None:
        self._memory.store(rank, ref, cells)
        owner = self._memory.owner(rank, ref)
        for cell in cells:
            key = (owner, cell.chunk)
            if len(cell.ranks) > len(self._best[key]):
                self._best[key] = cell.ranks
                self._held[key] = Held(owner, cell.chunk, cell.ranks, cell.value)

    def _stuck(self) -> str:
        channel = next(channel for channel in self._steps if self._current(channel))
        step = f"step {self._done[channel] + 1} ({self._current(channel)['verb']})"
        return f"rank {channel[0]}, channel {channel[1]}, {step}"


def execute(given: list[list[float]], order: str) -> dict[str, Any]:
    """What the executor did over shared-memory links with an input per rank: events, results, rounds, bytes_sent.

    order: of the sums, "rank" or "rotated". ImportError where the extension cannot be loaded.
    """
    return _native.load().ring_walkthrough(given, order)
