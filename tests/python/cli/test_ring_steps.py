"""Steps by key: forward, back, reset and the end; and what a terminal sees, in a real pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

from ringdp.cli import ring_steps
from ringdp.playback.play import play


@pytest.mark.parametrize(
    ("number", "key", "expected"),
    [
        *((0, " ", 1), (3, "\x1b[C", 4), (3, "b", 2), (0, "\x1b[D", 0)),
        *((5, "r", 0), (2, "x", 2), (6, "n", None), (1, "q", None)),
    ],
)
def test_keys(number: int, key: str, expected: int | None) -> None:
    assert ring_steps.moved(number, 6, key) == expected


def test_every_step_is_shown_as_it_is_asked_for(capsys: Any) -> None:
    keys = iter("nnbnnnnnn")
    ring_steps.show_by_key(play("ring/rotated", 4, 4), None, lambda: next(keys))
    shown = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert shown == ["1", "2", "1", "2", "3", "4", "5", "6"]
    assert next(keys, None) is None


def test_in_a_terminal_keys_need_no_enter() -> None:
    pytest.importorskip("rich")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ringdp", "ring", "--ranks", "2", "--step"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        seen = read_until(ours, b"q: quit")
        assert b"step 1" not in seen
        os.write(ours, b"\x1b[C")
        seen = read_until(ours, b"q: quit")
        assert b"step 1 of 2, round 1 of 2: sums" in seen and b"\x1b[1;32m" in seen
        os.write(ours, b"q")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, end: bytes) -> bytes:
    """What a terminal shows up to and with `end`."""
    seen, poll = b"", select.poll()
    poll.register(terminal, select.POLLIN)
    while end not in seen:
        readable = poll.poll(60_000)
        assert readable, seen
        seen += os.read(terminal, 65536)
    return seen
