"""ringdp/cli/info.py: the report, for people and for programs, with and without a usable extension."""

import json
import platform
import types

import pytest
import ringdp
from ringdp import _native
from ringdp.cli import main as command_line

ROW = {
    "field": "transport",
    "variable": "RINGDP_TRANSPORT",
    "value": "tcp",
    "source": "environment",
    "default": "auto",
    "accepts": "auto|shm|tcp",
    "help": "how bytes reach a peer",
}
BUILT = {"torch": "2.13.0", "python": "3.11.7", "compiler": "g++ 12", "date": "2026-01-01"}


@pytest.fixture
def usable(monkeypatch):
    core = types.SimpleNamespace(instruction_set=lambda: "avx9", setting_table=lambda: [ROW])
    monkeypatch.setattr(_native, "load", lambda: core)
    monkeypatch.setattr(_native, "built_for", lambda: BUILT)


@pytest.fixture
def unusable(monkeypatch):
    def refuse():
        raise ImportError("ringdp was built for torch 2.13 but torch 2.14.1 is installed: run this")

    monkeypatch.setattr(_native, "load", refuse)


def test_text_has_every_part(usable, capsys):
    assert command_line.main(["info"]) == 0
    text = capsys.readouterr().out
    for part in [*BUILT.values(), ringdp.__version__, platform.python_version(), "avx9"]:
        assert part in text
    for part in ("RINGDP_TRANSPORT (transport)", "tcp [environment]", "auto|shm|tcp", "transport=tcp is forced"):
        assert part in text


def test_json_has_the_same_parts(usable, capsys):
    assert command_line.main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ringdp"] == ringdp.__version__
    assert report["built_for"] == BUILT
    assert report["instruction_set"] == "avx9"
    assert report["settings"] == [ROW]
    assert [row["name"] for row in report["transports"]] == ["shm", "tcp"]
    assert report["error"] is None


def test_an_unusable_extension_is_one_line_and_status_1(unusable, capsys):
    assert command_line.main(["info"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("cannot run") and "torch 2.14.1" in last
    assert command_line.main(["info", "--json"]) == 1
    captured = capsys.readouterr()
    assert "torch 2.14.1" in json.loads(captured.out)["error"]
    assert "torch 2.14.1" in captured.err


def test_the_real_command(run_python):
    result = run_python("-m", "ringdp", "info", "--json", RINGDP_TRANSPORT="tcp")
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    transport = next(row for row in report["settings"] if row["field"] == "transport")
    assert (transport["value"], transport["source"]) == ("tcp", "environment")
    assert {row["variable"] for row in report["settings"]} >= {"RINGDP_AUTOLOAD", "RINGDP_LOG", "RINGDP_CUDA"}
    assert report["instruction_set"]
