"""ringdp/selftest/display.py: lines where there is no terminal, a table where there is one, and the end of a run."""

from __future__ import annotations

import pytest
from ringdp.selftest import display
from ringdp.selftest.cases import Case
from ringdp.selftest.session import Event
from ringdp.selftest.tally import Tally
from ringdp.selftest.verdict import EXACT, WRONG, Verdict

CASES = [Case("reduce", "int8", "SUM"), Case("reduce", "int16", "SUM"), Case("barrier")]


@pytest.fixture
def tally():
    return Tally(1, ["shm"], CASES)


def shown(tally, chosen):
    with chosen:
        for number in range(len(CASES)):
            event = Event(0, "shm", number, Verdict(EXACT))
            tally.add(event)
            chosen.show(event)


def test_plain_lines_name_each_op_once(tally, capsys):
    shown(tally, display.display_for(tally, quiet=False))
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["shm", "0/3", "reduce"],
        ["shm", "2/3", "barrier"],
    ]


def test_quiet_is_silent(tally, capsys):
    shown(tally, display.display_for(tally, quiet=True))
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_a_table(tally, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    chosen = display.display_for(tally, quiet=False)
    assert isinstance(chosen, display.Live)
    shown(tally, chosen)


def test_the_summary_ends_with_the_totals(tally):
    tally.add(Event(0, "shm", 0, Verdict(EXACT)))
    tally.add(Event(0, "shm", 2, Verdict(WRONG, "late")))
    lines = display.summary(tally, 1.25).splitlines()
    assert lines[0].split() == ["i8", "i16", "-"]
    assert lines[1].split() == ["reduce", "✓", "·"]
    assert "rank 0: shm barrier: late" in lines
    assert lines[-1] == "1 exact, 0 refused, 1 wrong, 1 not run: 1 rank over shm in 1.2 s"
