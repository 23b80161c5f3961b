"""Progress: silent above rank 0, about twenty plain lines when not in a terminal, a live line in one."""

from __future__ import annotations

import sys

import pytest
from ringdp.examples import progress
from ringdp.observe.run_history import History


def steps(count: int) -> list[History]:
    return [History([4.0] * n, [(0, 5.0)], [0.1] * n) for n in range(1, count + 1)]


def test_other_ranks_print_nothing(capsys):
    with progress.progress_for(1, 0, 5, 10) as shown:
        for history in steps(5):
            shown.show(history)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("count", [1, 7, 400])
def test_plain_lines_are_few_and_end_with_the_last_step(capsys, count):
    with progress.progress_for(0, 0, count, 10) as shown:
        for history in steps(count):
            shown.show(history)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == min(count, 20)
    assert lines[-1].startswith(f"step {count}/{count}  loss 4.0000  val 5.0000")
    assert "tokens/s" in lines[-1]
    assert lines[-1].endswith(" s left")


def test_a_terminal_gets_a_live_line(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with progress.progress_for(0, 2, 5, 10) as shown:
        assert isinstance(shown, progress.Live)
        for history in steps(5)[2:]:
            shown.show(history)
    assert shown._bar.finished
