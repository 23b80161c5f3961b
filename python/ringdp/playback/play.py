"""Plays the recorded plans of all ranks side by side: one frame per round of the links, or per pass between barriers.

A frame sends what is ready at its beginning and belongs to the earliest open round, delivers it, and then runs every
fold and copy that became possible. A barrier that is complete lets its ranks pass in the next frame.
"""

from __future__ import annotations

from typing import Any

from ringdp.playback.memory import Cell, Memory, PlaybackError
from ringdp.playback.schemes import SCHEMES, Plan, hosts_of, record
from ringdp.playback.trace import LINK, MEMORY, Frame, Held, Move, Trace

Step = dict[str, Any]
Lane = tuple[int, int]  # rank, number of the lane in its plan


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
        self._steps: dict[Lane, list[Step]] = {
            (rank, number): lane["steps"]
            for rank, plan in enumerate(plans)
            for number, lane in enumerate(plan["lanes"])
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
        while any(self._done[lane] < len(steps) for lane, steps in self._steps.items()):
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
        sent = [lane for lane in self._steps if self._send(lane, gate, before)]
        while any([self._advance(lane, passed) for lane in self._steps]):
            pass
        if self._done == before:
            raise PlaybackError(f"nothing can move any more: {self._stuck()}")
        held = tuple(self._held[key] for key in sorted(self._held))
        round_shown = gate + 1 if sent else None
        return Frame(round_shown, tuple(self._moves), held, tuple(self._sent), tuple(self._touched))

    def _current(self, lane: Lane) -> Step | None:
        steps, done = self._steps[lane], self._done[lane]
        return steps[done] if done < len(steps) else None

    def _open_round(self) -> int:
        """The earliest round that is not over; -1 when all are."""
        rest = (step["round"] for lane, steps in self._steps.items() for step in steps[self._done[lane] :])
        return min((number for number in rest if number >= 0), default=-1)

    def _barriers_passed(self) -> list[int]:
        """By rank: barriers of its host that everybody has reached."""
        reached = {rank: min(self._signals[r] for r in host) for host in self._hosts for rank in host}
        return [reached[rank] for rank in range(self._ranks)]

    def _is_due(self, lane: Lane, step: Step, done: dict[Lane, int]) -> bool:
        return all(done[lane[0], after["lane"]] >= after["steps"] for after in step["after"])

    def _send(self, lane: Lane, gate: int, before: dict[Lane, int]) -> bool:
        step = self._current(lane)
        if step is None or step["verb"] != "send" or step["round"] != gate or not self._is_due(lane, step, before):
            return False
        rank, peer = lane[0], step["peer"]
        cells = self._memory.load(rank, step["srcs"][0])
        self._on_links.setdefault((rank, peer), []).append(cells)
        self._moved(rank, peer, LINK, cells, step["bytes"])
        self._sent[rank] += step["bytes"]
        self._done[lane] += 1
        return True

    def _advance(self, lane: Lane, passed: list[int]) -> bool:
        """One step that is no send; False when it has to wait."""
        step, rank = self._current(lane), lane[0]
        if step is None or step["verb"] == "send" or not self._is_due(lane, step, self._done):
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
        self._done[lane] += 1
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
        lane = next(lane for lane in self._steps if self._current(lane))
        return f"rank {lane[0]}, lane {lane[1]}, step {self._done[lane] + 1} ({self._current(lane)['verb']})"
