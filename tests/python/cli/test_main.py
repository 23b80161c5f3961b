"""ringdp/cli/main.py: the command line as a whole."""

import subprocess
import sys

import pytest
import ringdp
from ringdp.cli import main as command_line


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        command_line.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"ringdp {ringdp.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["info", "--no-such-option"]])
def test_a_wrong_command_line_is_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        command_line.main(arguments)
    assert stop.value.code == 2
    assert "usage: ringdp" in capsys.readouterr().err


def test_the_status_is_the_command_s(monkeypatch):
    monkeypatch.setattr(command_line.info, "run", lambda options: 1 + options.json)
    assert command_line.main(["info"]) == 1
    assert command_line.main(["info", "--json"]) == 2


def test_a_reader_that_leaves_is_no_error():
    command = [sys.executable, "-m", "ringdp", "plan"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert (process.stderr.read(), process.wait(120)) == ("", 141)


def test_what_follows_two_dashes_is_a_command_to_run(monkeypatch, capsys):
    monkeypatch.setattr(command_line.trace, "run", lambda options: len(options.command))
    assert command_line.main(["trace", "--", "torchrun", "--nproc-per-node", "2", "--", "x"]) == 5
    assert command_line.main(["trace"]) == 0
    with pytest.raises(SystemExit) as stop:
        command_line.main(["info", "--", "torchrun", "x"])
    assert stop.value.code == 2
    assert "leave out -- torchrun x" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", *(module.__name__.rpartition(".")[2] for module in command_line.COMMANDS)])
def test_help_fits_a_screen_and_has_an_example(command, capsys):
    with pytest.raises(SystemExit):
        command_line.main([*command.split(), "--help"])
    said = capsys.readouterr().out
    assert said.count("\n") <= 40
    assert f"ringdp {command}".strip() in said[said.index("example") :]


def test_python_m_ringdp_is_the_same_command(run_python):
    result = run_python("-m", "ringdp", "--version")
    assert result.stdout == f"ringdp {ringdp.__version__}\n", result.stderr
