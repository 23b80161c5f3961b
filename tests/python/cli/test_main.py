"""The command line as a whole."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import ringdp
from ringdp.cli import main as command_line

HANDLED = (signal.SIGTERM, signal.SIGHUP)


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        command_line.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"ringdp {ringdp.__version__}\n"


def test_the_status_is_the_command_s(monkeypatch):
    monkeypatch.setattr(command_line.info, "run", lambda options: 1 + options.json)
    assert command_line.main(["info"]) == 1
    assert command_line.main(["info", "--json"]) == 2


def test_a_reader_that_leaves_is_no_error():
    command = [sys.executable, "-m", "ringdp", "plan"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert (process.stderr.read(), process.wait(120)) == ("", 141)


# Whatever the tests themselves were started with: nohup, or in a shell's background.
HEARS_SIGNALS = """
import signal, sys
from ringdp.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.exit(main())
"""
WAITS = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


SIGNALS = {"audit": signal.SIGINT, "doctor": signal.SIGTERM, "trace": signal.SIGHUP}


@pytest.mark.parametrize(
    ("tool", "number"),
    [
        pytest.param(tool, number, marks=() if number == own else pytest.mark.long)
        for tool, own in SIGNALS.items()
        for number in SIGNALS.values()
    ],
)
def test_a_signal_ends_the_command_with_its_job_and_its_folders(tmp_path, tool, number):
    temporary, ready = tmp_path / "temporary", tmp_path / "ready"
    temporary.mkdir()
    job = [sys.executable, "-c", WAITS, str(ready)]
    process = subprocess.Popen(
        [sys.executable, "-c", HEARS_SIGNALS, tool, "--", *job],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
    )
    while not ready.exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    assert (process.communicate(timeout=60)[1], process.returncode) == (b"", 128 + number)
    assert list(temporary.iterdir()) == []
    assert processes_with(str(ready)) == []


def processes_with(argument):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if argument.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def test_handlers_are_put_back_and_an_ignored_signal_stays_ignored(monkeypatch):
    seen = []
    monkeypatch.setattr(
        command_line.info, "run", lambda options: seen.append([signal.getsignal(n) for n in HANDLED]) or 0
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        command_line.main(["info"])
        assert seen[0][0] == command_line._end and seen[0][1] == signal.SIG_IGN
        assert [signal.getsignal(n) for n in HANDLED] == [signal.SIG_DFL, signal.SIG_IGN]
    finally:
        signal.signal(signal.SIGHUP, before)


REFUSED = [
    ([], "usage: ringdp"),
    (["no-such-command"], "usage: ringdp"),
    (["info", "--no-such-option"], "usage: ringdp"),
    (["info", "--", "torchrun", "x"], "leave out -- torchrun x"),
    (
        ["plan", "memory", "--devic", "3"],
        "ringdp plan memory: unrecognized arguments: --devic 3; usage: ringdp plan memory",
    ),
    (["ring", "--foo", "1"], "ringdp ring: unrecognized arguments: --foo 1; usage: ringdp ring "),
    (["ring", "--ranks", "0"], "invalid value '0' (expected a whole number from 1 to 16"),
    (["ring", "--ranks", "four"], "invalid value 'four' (expected a whole number from 1 to 16"),
    (["ring", "--chunks", "33"], "invalid value '33' (expected a whole number from 1 to 32"),
    (["ring", "--algorithm", "bubble"], "'bubble'"),
    (["ring", "--html", "x.html", "--json"], "--json: not allowed with argument --html"),
    (["ring", "--html", "x.html", "--step"], "--step: not allowed with argument --html"),
    (["ring", "--json", "--step"], "--step: not allowed with argument --json"),
    (["ring", "--step"], "--step needs a terminal"),
    (["report", "x.json", "--json", "--html", "x.html"], "not allowed with argument"),
    (["audit"], "no command: ringdp audit -- torchrun"),
    (["audit", "--foo", "--", "true"], "ringdp audit: unrecognized arguments: --foo; usage: ringdp audit "),
    (["audit", "torchrun", "train.py"], "'torchrun': put -- before"),
    (["audit", "--records", "/no/such/folder"], "--records /no/such/folder: no such folder"),
    (["audit", "--records", "/", "--steps", "3"], "--steps is for a job that is run"),
    (["audit", "--records", "/", "--epochs", "9"], "--epochs is for a job that is run"),
    (["audit", "--png", "/no/such/folder/x.png", "--", "true"], "--png /no/such/folder/x.png"),
    (["audit", "--", "/no/such/command"], "/no/such/command"),
    (["audit", "--steps", "0", "--", "true"], "invalid value '0' (expected a whole number"),
    (["audit", "--steps", "-1", "--", "true"], "invalid value '-1' (expected a whole number"),
    (["audit", "--steps", "many", "--", "true"], "invalid value 'many' (expected a whole number"),
    (["selftest", "--ops", "all_reduce,juggle"], "invalid value 'juggle' (expected one of: all_reduce"),
    (["selftest", "--transport", "pigeon"], "invalid value 'pigeon' (expected one of: shm, tcp"),
    (["selftest", "-n", "0"], "must be above 0"),
    (["selftest", "--timeout", "0"], "must be above 0"),
    (["tune", "-n", "1"], "-n 1"),
    (["tune", "--seconds", "0"], "--seconds 0"),
    (["tune", "--seconds", "inf"], "--seconds inf"),
    (["tune", "--seconds", "nan"], "--seconds nan"),
]


@pytest.mark.parametrize(("arguments", "named"), REFUSED, ids=str)
def test_a_wrong_command_line_is_one_line_and_status_2(refusal, arguments, named):
    assert named in refusal(*arguments)


def test_what_follows_two_dashes_is_a_command_to_run(monkeypatch):
    monkeypatch.setattr(command_line.trace, "run", lambda options: len(options.command))
    assert command_line.main(["trace", "--", "torchrun", "--nproc-per-node", "2", "--", "x"]) == 5
    assert command_line.main(["trace"]) == 0


NAMES = [module.__name__.rpartition(".")[2].replace("_", "-") for module in command_line.COMMANDS]


@pytest.mark.parametrize("command", ["", *NAMES])
def test_help_fits_a_screen_and_has_an_example(command, capsys):
    with pytest.raises(SystemExit):
        command_line.main([*command.split(), "--help"])
    said = capsys.readouterr().out
    assert said.count("\n") <= 40 or command == "run"  # torchrun's options are its own
    assert f"ringdp {command}".strip() in said[said.index("example") :]


def test_python_m_ringdp_is_the_same_command(run_python):
    result = run_python("-m", "ringdp", "--version")
    assert result.stdout == f"ringdp {ringdp.__version__}\n", result.stderr
