"""What standard output is, and styled lines in both forms."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from ringdp.text.terminal import in_terminal, print_styled


@pytest.mark.parametrize(
    ("terminal", "rich", "expected"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_terminal_with_rich(terminal, rich, expected, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if rich else None)
    assert in_terminal() is expected


@pytest.mark.parametrize("terminal", [False, True])
def test_text_is_never_markup(terminal, monkeypatch, capsys):
    if terminal:
        pytest.importorskip("rich")
    monkeypatch.setattr("ringdp.text.terminal.in_terminal", lambda: terminal)
    print_styled(("[red]", "bold"), (" is [no] colour  ", ""))
    printed = capsys.readouterr().out
    assert "[red] is [no] colour" in printed and printed.endswith("\n")
    assert terminal or printed == "[red] is [no] colour\n"


def test_a_style_is_one_in_a_terminal(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_styled(("loud", "bold"))
    assert capsys.readouterr().out == "\x1b[1mloud\x1b[0m\n"
