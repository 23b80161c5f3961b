"""`ringdp ring`: the corrected worked example, every algorithm in text and JSON, and what is refused."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from typing import Any

import pytest
from ringdp.cli import main, ring
from ringdp.tools.plan_viewer.play import play
from ringdp.tools.plan_viewer.schemes import SCHEMES
from ringdp.tools.plan_viewer.trace import DONE, PARTIAL, RAW


def ran(capsys: Any, *arguments: str) -> str:
    assert main.main(["ring", *arguments]) == 0
    return capsys.readouterr().out


def test_the_worked_example_of_four_ranks(capsys: Any) -> None:
    """B12 with erratum E4: after the reduce-scatter rank r owns chunk (r + 1) mod 4."""
    report = json.loads(ran(capsys, "--json"))
    assert report["owned"] == {"0": {"1": 104.0}, "1": {"2": 108.0}, "2": {"3": 112.0}, "3": {"0": 100.0}}
    first = report["frames"][0]
    assert {(h["rank"], h["chunk"]): h["value"] for h in first["held"]} == {
        (0, 3): 56.0,
        (1, 0): 30.0,
        (2, 1): 52.0,
        (3, 2): 74.0,
    }
    assert report["results"] == [[100.0, 104.0, 108.0, 112.0]] * 4
    assert report["rounds"] == 6 and report["frames"][-1]["sent"] == [24] * 4
    assert [frame["phase"] for frame in report["frames"]] == ["sums"] * 3 + ["results"] * 3


@pytest.mark.parametrize("order", ["ring/rotated", "ring"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_executor_does_what_is_shown(ranks: int, order: str) -> None:
    trace = play(order, ranks, 5)
    done = ring.executed(trace)
    assert done is not None
    assert done["results"] == trace.results
    assert tuple(done["bytes_sent"]) == trace.frames[-1].sent


def test_the_executor_s_partial_sums_are_those_shown() -> None:
    trace = play("ring/rotated", 4, 4)
    shown = {(h.rank, h.chunk, h.value) for frame in trace.frames for h in frame.held}
    done = ring.executed(trace)
    assert done is not None
    assert {(e["rank"], e["begin"], e["values"][0]) for e in done["events"]} == shown


def test_only_rings_are_executed() -> None:
    assert ring.executed(play("tree", 3, 3)) is None


@pytest.mark.parametrize("name", SCHEMES)
def test_every_algorithm_as_text(name: str, capsys: Any) -> None:
    text = ran(capsys, "--algorithm", name, "--ranks", "3")
    assert text.count("ends with 60 63 66") == 3
    assert text.startswith(SCHEMES[name].title)
    assert ("the executor, over links in shared memory: the same" in text) == (SCHEMES[name].algorithm == "ring")


def test_the_page_is_written(tmp_path: Any, capsys: Any) -> None:
    file = tmp_path / "ring.html"
    assert str(file) in ran(capsys, "--html", str(file))
    assert file.read_text().startswith("<!doctype html>")


def test_a_missing_extension_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def gone(*_: Any) -> None:
        raise ImportError("ringdp's extension is not built here")

    monkeypatch.setattr(ring, "play", gone)
    assert main.main(["ring"]) == 1
    assert capsys.readouterr().err == "ringdp ring: ringdp's extension is not built here\n"


@pytest.mark.parametrize(
    ("number", "key", "expected"),
    [
        *((0, " ", 1), (3, "\x1b[C", 4), (3, "b", 2), (0, "\x1b[D", 0)),
        *((5, "r", 0), (2, "x", 2), (6, "n", None), (1, "q", None)),
    ],
)
def test_keys(number: int, key: str, expected: int | None) -> None:
    assert ring.moved(number, 6, key) == expected


def test_every_step_is_shown_as_it_is_asked_for(capsys: Any) -> None:
    keys = iter("nnbnnnnnn")
    ring.show_by_key(play("ring/rotated", 4, 4), None, lambda: next(keys))
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


def plain(lines: list[ring.Line]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_the_first_step_of_four_ranks() -> None:
    assert plain(ring.step(play("ring/rotated", 4, 4), 1)) == [
        "step 1 of 6, round 1 of 6: sums",
        "  rank 0 -> 1            link   a         4 B  of rank 0",
        "  rank 1 -> 2            link   b         4 B  of rank 1",
        "  rank 2 -> 3            link   c         4 B  of rank 2",
        "  rank 3 -> 0            link   d         4 B  of rank 3",
        "              a      b      c      d    sent",
        "  rank 0     10     11     12    >56+    4 B",
        "  rank 1    >30+    21     22     23     4 B",
        "  rank 2     30    >52+    32     33     4 B",
        "  rank 3     40     41    >74+    43     4 B",
    ]


def test_cells_carry_their_state() -> None:
    trace = play("ring/rotated", 3, 3)
    states = [[style for _, style in line if style] for line in ring.step(trace, 2)[-3:]]
    assert states == [[RAW, DONE, PARTIAL], [PARTIAL, RAW, DONE], [DONE, PARTIAL, RAW]]


def test_memory_is_named_where_nothing_is_sent() -> None:
    lines = plain(ring.step(play("arena/one-shot", 2, 2), 1))
    assert lines[0] == "step 1 of 2, in memory: sums"
    assert lines[1] == "  rank 0 into its slot   memory a,b       8 B  of rank 0"


def test_the_summary_counts() -> None:
    lines = plain(ring.summary(play("ring/rotated", 4, 4), None))
    finished = ("b=104", "c=108", "d=112", "a=100")
    assert lines[:4] == [f"rank {rank} finished {what}" for rank, what in enumerate(finished)]
    assert "rounds counted   6 = 2(N-1)" in lines
    assert "bytes sent       24 24 24 24 by rank; a tensor has 16" in lines


def test_one_rank_has_nothing_to_do() -> None:
    trace = play("ring/rotated", 1, 2)
    assert trace.frames == [] and trace.results == [[10.0, 11.0]]
    assert "bytes sent       0 by rank; a tensor has 8" in plain(ring.summary(trace, None))


@pytest.mark.parametrize(("sent", "said"), [([2, 2], "DIFFERENT"), ([8, 8], "the same results, and as many bytes")])
def test_the_executor_is_compared(sent: list[int], said: str) -> None:
    trace = play("ring/rotated", 2, 2)
    done = {"results": trace.results, "bytes_sent": sent}
    assert said in plain(ring.summary(trace, done))[-1]
