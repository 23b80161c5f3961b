"""`ringdp ring`: the corrected worked example, every algorithm in text and JSON, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch")

from ringdp.cli import main, ring
from ringdp.playback.play import play
from ringdp.playback.schemes import SCHEMES


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


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--ranks", "0"], "'0' is no whole number from 1 to 16"),
        (["--ranks", "four"], "'four' is no whole number from 1 to 16"),
        (["--chunks", "33"], "'33' is no whole number from 1 to 32"),
        (["--algorithm", "bubble"], "'bubble'"),
        (["--html", "x.html", "--json"], "--json: not allowed with argument --html"),
        (["--html", "x.html", "--step"], "--step: not allowed with argument --html"),
        (["--json", "--step"], "--step: not allowed with argument --json"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], named: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main(["ring", *arguments])
    assert stop.value.code == 2
    assert named in capsys.readouterr().err


def test_steps_need_a_terminal(capsys: Any) -> None:
    assert main.main(["ring", "--step"]) == 2
    assert "--step needs a terminal" in capsys.readouterr().err


def test_a_missing_extension_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def gone(*_: Any) -> None:
        raise ImportError("ringdp's extension is not built here")

    monkeypatch.setattr(ring, "play", gone)
    assert main.main(["ring"]) == 1
    assert capsys.readouterr().err == "ringdp ring: ringdp's extension is not built here\n"
