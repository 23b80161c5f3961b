"""ringdp/cli/one_line_parser.py: errors of a command and of its sub-commands are one line with status 2."""

import pytest
from ringdp.cli.one_line_parser import OneLineParser


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
