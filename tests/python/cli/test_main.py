"""ringdp/cli/main.py: the command line as a whole."""

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


def test_python_m_ringdp_is_the_same_command(run_python):
    result = run_python("-m", "ringdp", "--version")
    assert result.stdout == f"ringdp {ringdp.__version__}\n", result.stderr
