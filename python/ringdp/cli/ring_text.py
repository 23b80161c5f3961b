"""A trace as text: lines of (text, style) pieces, which a terminal colours and a pipe does not.

Styles are the states of a chunk (raw, partial, done), "head" for headings, and "" for the rest.
"""

from __future__ import annotations

from typing import Any

from ringdp.playback.schemes import SCHEMES
from ringdp.playback.trace import DONE, PARTIAL, RAW, Frame, Held, Move, Trace, chunk_name
from ringdp.text.units import counted

Line = list[tuple[str, str]]

MARKS = {RAW: " ", PARTIAL: "+", DONE: "*"}


def introduction(trace: Trace) -> list[Line]:
    """What is shown, how to read it, and what everybody brings."""
    scheme = SCHEMES[trace.scheme]
    size = f"{counted(trace.ranks, 'rank')}, {counted(trace.chunks, 'chunk')} of {trace.chunk_bytes} bytes"
    legend: Line = [("raw", RAW), (", ", ""), ("partial sum+", PARTIAL), (", ", ""), ("done*", DONE)]
    return [[(f"{scheme.title}: {size}", "head")], [(scheme.note, "")], legend, *_grid(trace, 0)]


def step(trace: Trace, number: int) -> list[Line]:
    """Step `number`, from 1: what moved, and what every rank holds now."""
    frame = trace.frames[number - 1]
    return [[(heading(trace, number), "head")], *map(_move, frame.moves), *_grid(trace, number)]


def heading(trace: Trace, number: int) -> str:
    """As in: step 3 of 6, round 3 of 6: sums."""
    frame = trace.frames[number - 1]
    where = f"round {frame.round} of {trace.rounds}" if frame.round else "in memory"
    return f"step {number} of {len(trace.frames)}, {where}: {trace.phase(frame)}"


def summary(trace: Trace, executed: dict[str, Any] | None) -> list[Line]:
    """Who finished what, the results, the counters, and whether the executor did the same (None: it was not asked)."""
    owners = [
        f"rank {rank} finished " + ", ".join(f"{chunk_name(held.chunk)}={held.value:g}" for held in done)
        for rank, done in sorted(trace.owned().items())
    ]
    last = trace.frames[-1] if trace.frames else None
    size = trace.chunks * trace.chunk_bytes
    return [
        *([(text, DONE)] for text in owners),
        *([(f"rank {r} ends with {_numbers(row)}", "")] for r, row in enumerate(trace.results)),
        [(f"rounds counted   {trace.rounds}" + (" = 2(N-1)" if trace.scheme == "ring/rotated" else ""), "")],
        [(f"bytes sent       {_counts(last and last.sent)} by rank; a tensor has {size}", "")],
        [(f"bytes in memory  {_counts(last and last.memory)} read and written by folds and copies", "")],
        *([[_executor(trace, executed)]] if executed else []),
    ]


def _executor(trace: Trace, executed: dict[str, Any]) -> tuple[str, str]:
    sent = trace.frames[-1].sent if trace.frames else (0,) * trace.ranks
    same = executed["results"] == trace.results and tuple(executed["bytes_sent"]) == sent
    did = "the same results, and as many bytes sent" if same else "DIFFERENT: please report it"
    return f"the executor, over links in shared memory: {did}", DONE if same else PARTIAL


def _numbers(values: list[float]) -> str:
    return " ".join(f"{value:g}" for value in values)


def _counts(values: tuple[int, ...] | None) -> str:
    return " ".join(map(str, values or (0,)))


def _move(move: Move) -> Line:
    chunks = ",".join(map(chunk_name, move.chunks))
    whose = "of rank" + ("s " if len(move.ranks) > 1 else " ") + "+".join(map(str, move.ranks))
    where = f"rank {move.source} " + ("into its slot" if move.source == move.target else f"-> {move.target}")
    return [(f"  {where:<22} {move.via:<6} {chunks:<6} {move.bytes:>4} B  {whose}", "")]


def _grid(trace: Trace, frames: int) -> list[Line]:
    """Ranks by chunks after so many frames, with the bytes sent so far."""
    grid = trace.after(frames)
    width = max(6, *(len(f"{held.value:g}") + 2 for row in grid for held in row))
    last: Frame | None = trace.frames[frames - 1] if frames else None
    changed = {(held.rank, held.chunk) for held in last.held} if last else set()
    names = "".join(f"{chunk_name(chunk):>{width}} " for chunk in range(trace.chunks))
    lines: list[Line] = [[(f"{'':<9}{names}   sent", "")]]
    for rank, row in enumerate(grid):
        cells = [_cell(trace, held, width, (held.rank, held.chunk) in changed) for held in row]
        sent = last.sent[rank] if last else 0
        lines.append([(f"  rank {rank:<2}", ""), *cells, (f"{sent:>5} B", "")])
    return lines


def _cell(trace: Trace, held: Held, width: int, changed: bool) -> tuple[str, str]:
    state = trace.state(held)
    value = f"{held.value:g}"
    return (f"{'>' + value if changed else value:>{width}}{MARKS[state]}", state)
