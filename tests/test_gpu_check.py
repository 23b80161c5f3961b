""".ci/gpu_check.py: every part ends at its limit with all its processes, and what was found is written down."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def gpu_check(monkeypatch) -> ModuleType:
    """The program as a module."""
    spec = importlib.util.spec_from_file_location("gpu_check_under_test", ROOT / ".ci/gpu_check.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("code", "verdict", "status"), [("pass", "passed", 0), ("exit(3)", "failed", 3)])
def test_a_part_ends_with_its_status(gpu_check, tmp_path, code, verdict, status):
    outcome = gpu_check.run(gpu_check.Part("one", python(code), 30), tmp_path / "log", 30)
    assert (outcome.verdict, outcome.status) == (verdict, status)


def test_a_part_is_cut_off_with_its_children(gpu_check, tmp_path, capsys):
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(60)\n"
    )
    gpu_check.GRACE_S = 0.2
    outcome = gpu_check.run(gpu_check.Part("one", python(code), 2), tmp_path / "log", 30)
    assert outcome.verdict == "cut off" and outcome.status is None and outcome.seconds < 20
    child = int((tmp_path / "log").read_text().split()[-1])
    assert str(child) in capsys.readouterr().out  # its last words are shown
    deadline = time.monotonic() + 10
    while is_alive(child):
        assert time.monotonic() < deadline, "a child is left"
        time.sleep(0.01)


def test_a_program_that_is_not_there_is_named(gpu_check, tmp_path):
    outcome = gpu_check.run(gpu_check.Part("one", ["/nowhere/tool"], 5), tmp_path / "log", 30)
    assert "failed" in str(outcome) and "/nowhere/tool" in str(outcome)


def test_a_part_without_its_module_is_skipped_by_name(gpu_check, tmp_path):
    part = gpu_check.Part("one", python("exit(1)"), 30, wants="no_such_module")
    assert gpu_check.run(part, tmp_path / "log", 30).verdict == "skipped: no no_such_module"
    assert gpu_check.run(gpu_check.Part("one", python("pass"), 30, wants="json"), tmp_path / "log", 30).status == 0


def test_nothing_is_begun_when_the_time_is_over(gpu_check, tmp_path):
    outcome = gpu_check.run(gpu_check.Part("one", python("open('here', 'w')"), 30), tmp_path / "log", 1)
    assert outcome.verdict == "not begun" and not (tmp_path / "log").exists()


def test_what_needs_a_failed_part_is_not_begun_and_all_is_written(gpu_check, tmp_path, monkeypatch, capsys):
    chain = [
        gpu_check.Part("first", python("print('out')"), 30),
        gpu_check.Part("second", python("exit(1)"), 30, needed=True),
        gpu_check.Part("third", python("pass"), 30),
    ]
    monkeypatch.setattr(gpu_check, "parts", lambda *_: chain)
    monkeypatch.setenv("OUT", str(tmp_path / "found"))
    assert gpu_check.main(["python"]) == 1
    written = json.loads((tmp_path / "found/summary.json").read_text())
    assert [(one["name"], one["verdict"]) for one in written] == [
        ("first", "passed"),
        ("second", "failed"),
        ("third", "not begun"),
    ]
    assert "out" in (tmp_path / "found/log.txt").read_text()
    assert "1 of 3 parts passed" in capsys.readouterr().out


def test_all_parts_fit_into_nine_minutes(gpu_check, tmp_path):
    assert gpu_check.LIMIT_S + gpu_check.GRACE_S * 2 < 9 * 60
    for part in gpu_check.parts("python", ["VENV=none"], tmp_path):
        assert 0 < part.limit_s < gpu_check.LIMIT_S / 2


def test_the_files_and_modules_that_it_runs_exist(gpu_check, tmp_path):
    words = [word for part in gpu_check.parts("python", [], tmp_path) for word in part.command]
    files = [word for word in words if word.startswith(("tests/", "benchmarks/"))]
    assert len(files) == 3 and all((ROOT / name).exists() for name in files)
    assert (ROOT / "tests/conformance/__main__.py").exists() and "tests.conformance" in words
