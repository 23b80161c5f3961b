"""Shows a trace in a terminal: all steps in colour, or one at a time at the press of a key; plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ringdp.cli.ring_text import Line, introduction, step, summary
from ringdp.playback.trace import DONE, PARTIAL, RAW, Trace
from ringdp.text.terminal import print_styled

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
