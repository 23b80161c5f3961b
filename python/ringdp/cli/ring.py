"""`ringdp ring`: shows how an all_reduce goes, step by step, as the recorded plans of the real algorithms say."""

from __future__ import annotations

import argparse
import json
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringdp.cli.arguments import positive
from ringdp.text.terminal import print_styled
from ringdp.text.units import counted
from ringdp.tools.plan_viewer.play import execute, play
from ringdp.tools.plan_viewer.schemes import SCHEMES
from ringdp.tools.plan_viewer.trace import DONE, PARTIAL, RAW, Frame, Held, Move, Trace, chunk_name

Line = list[tuple[str, str]]

MARKS = {RAW: " ", PARTIAL: "+", DONE: "*"}


def introduction(trace: Trace) -> list[Line]:
    """What is shown, how to read it, and what every rank contributes."""
    scheme = SCHEMES[trace.scheme]
    size = f"{counted(trace.ranks, 'rank')}, {counted(trace.chunks, 'chunk')} of {counted(trace.chunk_bytes, 'byte')}"
    legend: Line = [("raw", RAW), (", ", ""), ("partial sum+", PARTIAL), (", ", ""), ("done*", DONE)]
    return [[(f"{scheme.title}: {size}", "head")], [(scheme.note, "")], legend, *_grid(trace, 0)]


def step(trace: Trace, number: int) -> list[Line]:
    """Step `number`, from 1: what moved, and what every rank holds now."""
    frame = trace.frames[number - 1]
    return [[(heading(trace, number), "head")], *map(_move, frame.moves), *_grid(trace, number)]


def heading(trace: Trace, number: int) -> str:
    """The heading of a step, as "step 3 of 6, round 3 of 6: sums"."""
    frame = trace.frames[number - 1]
    where = f"round {frame.round} of {trace.rounds}" if frame.round else "in memory"
    return f"step {number} of {len(trace.frames)}, {where}: {trace.phase(frame)}"


def summary(trace: Trace, executed: dict[str, Any] | None) -> list[Line]:
    """What each rank finished, results, counters, and whether the executor did the same (None: it was not asked)."""
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


STYLES = {RAW: "cyan", PARTIAL: "bold yellow", DONE: "bold green", "head": "bold", "": ""}
NEXT, BACK, RESET, QUIT = "next", "back", "reset", "quit"
KEYS = {" ": NEXT, "\r": NEXT, "\n": NEXT, "n": NEXT, "\x1b[C": NEXT, "b": BACK, "\x1b[D": BACK, "r": RESET}
KEYS |= {"q": QUIT, "\x1b": QUIT, "\x03": QUIT, "\x04": QUIT, "": QUIT}
HELP = "space, n or right arrow: next   b or left arrow: back   r: reset   q: quit"


def show_all(trace: Trace, executed: dict[str, Any] | None) -> None:
    """Prints every step. executed: what the executor did, for the summary."""
    _show(introduction(trace))
    for number in range(1, len(trace.frames) + 1):
        _show(step(trace, number))
    _show(summary(trace, executed))


def show_by_key(trace: Trace, executed: dict[str, Any] | None, press: Callable[[], str] | None = None) -> None:
    """One step per key; ends with the last step's summary or `q`. press: gives keys, by default the terminal's."""
    with _keys() if press is None else _given(press) as pressed:
        number = 0
        while True:
            page = step(trace, number) if number else introduction(trace)
            last = number == len(trace.frames)
            _show([*page, *(summary(trace, executed) if last else []), [(HELP, RAW)]])
            number = moved(number, len(trace.frames), pressed())
            if number is None:
                return


def moved(number: int, steps: int, key: str) -> int | None:
    """The step to show after a key, None to end; a key that means nothing shows the same step."""
    action = KEYS.get(key)
    if action == QUIT or (action == NEXT and number == steps):
        return None
    return {NEXT: number + 1, BACK: max(0, number - 1), RESET: 0}.get(action, number)


def _show(lines: list[Line]) -> None:
    for line in lines:
        print_styled(*((text, STYLES[style]) for text, style in line))
    print()


@contextmanager
def _given(press: Callable[[], str]) -> Iterator[Callable[[], str]]:
    yield press


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """Single keys of the terminal on standard input; its settings come back at the end."""
    source = sys.stdin.fileno()
    before = termios.tcgetattr(source)
    try:
        tty.setcbreak(source)
        yield lambda: _read_key(source)
    finally:
        termios.tcsetattr(source, termios.TCSADRAIN, before)


def _read_key(source: int) -> str:
    """One key; arrows are three bytes that come at once."""
    return os.read(source, 8).decode(errors="replace")


MAX_RANKS, MAX_CHUNKS = 16, 32
EXAMPLE = "example: ringdp ring --ranks 4 --html ring.html   (open the page in a browser)"


def add_command(commands: Any) -> None:
    """Adds `ring` to argparse's sub-commands."""
    command = commands.add_parser("ring", help="watch an all_reduce, step by step; also as a page", epilog=EXAMPLE)
    command.add_argument(
        "--ranks", type=positive(int, MAX_RANKS), default=4, metavar="N", help=f"default 4, at most {MAX_RANKS}"
    )
    command.add_argument(
        "--chunks", type=positive(int, MAX_CHUNKS), metavar="C", help=f"per tensor: default N, at most {MAX_CHUNKS}"
    )
    names = ", ".join(SCHEMES)
    command.add_argument("--algorithm", choices=SCHEMES, default="ring/rotated", metavar="NAME", help=names)
    shown = command.add_mutually_exclusive_group()
    shown.add_argument("--step", action="store_true", help="one step per key press (in a terminal)")
    shown.add_argument("--html", type=Path, metavar="FILE", help="write the page: this, and the scaling calculator")
    shown.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def executed(trace: Trace) -> dict[str, Any] | None:
    """What the real executor did with the same inputs over shared-memory links; None where the plan is not a ring."""
    scheme = SCHEMES[trace.scheme]
    if scheme.algorithm != "ring":
        return None
    return execute(trace.inputs, scheme.asks.get("order", "rank"))


def report(trace: Trace) -> dict[str, Any]:
    """The trace for programs, with every step's phase and every rank's chunks, and what the executor did."""
    frames = [
        {**asdict(frame), "phase": trace.phase(frame), "values": trace.values(number)}
        for number, frame in enumerate(trace.frames, 1)
    ]
    owned = {rank: {held.chunk: held.value for held in done} for rank, done in trace.owned().items()}
    return {**asdict(trace), "frames": frames, "owned": owned, "executed": executed(trace)}


def run(options: argparse.Namespace) -> int:
    """Prints the steps, or writes the page; 2 where that cannot be done."""
    if options.step and not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("ringdp ring: --step needs a terminal; without it all steps are printed", file=sys.stderr)
        return 2
    try:
        trace = play(options.algorithm, options.ranks, options.chunks or options.ranks)
    except ImportError as error:  # no torch, or no extension that fits it
        print(f"ringdp ring: {error}", file=sys.stderr)
        return 1
    if options.html:
        return _write_page(options.html, trace)
    if options.json:
        print(json.dumps(report(trace)))
    elif options.step:
        show_by_key(trace, executed(trace))
    else:
        show_all(trace, executed(trace))
    return 0


def _write_page(file: Path, trace: Trace) -> int:
    from ringdp.tools.pages import document, ring_page

    return document.write("ringdp ring", file, ring_page.page(trace))
