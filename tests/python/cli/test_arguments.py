"""Numbers that are accepted or named; errors of a command and of its sub-commands are one line with status 2."""

from __future__ import annotations

import argparse

import pytest
from ringdp.cli.arguments import OneLineParser, positive


@pytest.mark.parametrize(
    ("kind", "most", "text", "value"),
    [(int, None, "3", 3), (float, None, "0.5", 0.5), (int, 16, "16", 16), (float, 2.0, "2", 2.0)],
)
def test_numbers_above_0(kind, most, text, value):
    assert positive(kind, most)(text) == value


@pytest.mark.parametrize(
    ("kind", "most", "text", "said"),
    [
        (int, None, "0", "whole number of 1 or more"),
        (int, None, "1.5", "whole number of 1 or more"),
        (float, None, "inf", "number above 0"),
        (float, None, "nan", "number above 0"),
        (float, None, "x", "number above 0"),
        (int, 16, "17", "whole number from 1 to 16"),
        (int, 16, "four", "whole number from 1 to 16"),
        (float, 0.5, "0.6", "number above 0, up to 0.5"),
    ],
)
def test_other_numbers_are_named(kind, most, text, said):
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        positive(kind, most)(text)
    assert str(refused.value) == f"invalid value '{text}' (expected a {said})"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["paint"], "required: --colour"),
        (["paint", "--colour", "red", "--shade", "many"], "--shade: invalid int value: 'many'"),
        (["jump"], "'jump'"),
        (["paint", "--colour", "red", "rest"], "unrecognized arguments: rest"),
    ],
)
def test_one_line_with_what_is_wrong_and_the_usage(arguments, named, capsys):
    top = OneLineParser(prog="tool")
    paint = top.add_subparsers().add_parser("paint")
    paint.add_argument("--colour", required=True)
    paint.add_argument("--shade", type=int)
    with pytest.raises(SystemExit) as stop:
        top.parse_args(arguments)
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and printed.endswith("\n")
    assert named in printed and "usage: tool" in printed


def test_a_sub_command_s_mistake_is_answered_with_its_own_usage(capsys):
    top = OneLineParser(prog="tool")
    top.add_subparsers().add_parser("paint").add_subparsers().add_parser("wall").add_argument("--colour")
    with pytest.raises(SystemExit):
        top.parse_args(["paint", "wall", "--color", "red"])
    said = "tool paint wall: unrecognized arguments: --color red; usage: tool paint wall [-h] [--colour COLOUR]\n"
    assert capsys.readouterr().err == said
