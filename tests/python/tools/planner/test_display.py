"""Values for people, plain text, and rich in a terminal."""

import sys

import pytest
from ringdp.tools.planner import display
from ringdp.tools.planner.question import Answer, Figure, Table

ANSWER = Answer(
    (Figure("sent", 279.7265625e9, "bytes", "2(N-1)/N |g|"), Figure("fits", False)),
    (Table("by [stage]", (("stage", ""), ("time", "s")), ((0, 0.0697), (1, 3.5))),),
    ("go on",),
    ("mind [the] gap",),
    (("more", Answer((Figure("inner", 4),))),),
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (279.7265625e9, "bytes", "279.73 GB"),
        (12, "bytes", "12 B"),
        (4.4e17, "FLOP", "440.00 PFLOP"),
        (0.697, "s", "697 ms"),
        (62.5e-6, "s", "62.5 us"),
        (3.4789, "s", "3.48 s"),
        (0.167, "share", "16.7 %"),
        (2046, "rounds", "2,046 rounds"),
        (1273.286, "ranks", "1,273.3 ranks"),
        (0.0024, "", "0.0024"),
        (True, "", "yes"),
        (None, "ranks", "none"),
        ({"one": 358.05, "both": [716.1, 2]}, "", "one 358.1, both 716.1 2"),
        ([[1, 104], [2, 108]], "", "1 104; 2 108"),
    ],
)
def test_values_for_people(value, unit, text):
    assert display.text_of(value, unit) == text


def test_plain_text_has_every_part(capsys):
    display.show("comm", ANSWER)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["comm", "  sent  279.73 GB  2(N-1)/N |g|", "  fits  no"]
    assert lines[3:7] == ["by [stage]", "  stage  time", "  0      69.7 ms", "  1      3.50 s"]
    assert lines[7:9] == ["warning: mind [the] gap", "-> go on"]
    assert lines[9:] == ["", "more", "  inner  4"]


def test_a_terminal_gets_the_same_by_rich(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    display.show("comm", ANSWER)
    text = capsys.readouterr().out
    for part in ("comm", "279.73 GB", "by [stage]", "69.7 ms", "mind [the] gap", "go on", "more", "inner", "─"):
        assert part in text
