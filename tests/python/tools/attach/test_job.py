"""A command runs to its end or to a reason to stop, and leaves no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from ringdp.tools.attach import job
from ringdp.tools.attach.assignment import Assignment

# A parent that is not asked twice, with a child in a session of its own.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.environ["RINGDP_JOB"], flush=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def test_the_status_is_the_command_s_and_it_has_the_assignment(tmp_path):
    given = Assignment("audit", tmp_path)
    code = "import os, sys; sys.exit(os.environ['RINGDP_ATTACH'] != sys.argv[1]); "
    assert job.run([sys.executable, "-c", code, str(given)], given.environment) == job.Ended(0)
    assert job.run([sys.executable, "-c", "import sys; sys.exit(7)"], given.environment) == job.Ended(7)
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert job.run([sys.executable, "-c", killed], given.environment) == job.Ended(137)


def test_a_reason_ends_it_with_all_its_processes(tmp_path, monkeypatch):
    told = {"RINGDP_TRACE": str(tmp_path)}
    monkeypatch.setattr(job, "_GRACE_S", 0.2)
    said = tmp_path / "said"
    with said.open("wb") as output:
        tick = when_ready(said, lambda: "seen enough")
        ended = job.run([sys.executable, "-c", STUBBORN], told, tick, output)
    assert ended == job.Ended(137, "seen enough")
    assert left_of(said) == []


def when_ready(said, then):
    return lambda: then() if "ready" in said.read_text() else ""


def left_of(said):
    """The processes of the job that has printed its mark first."""
    return job.marked(said.read_text().split()[0])


def test_who_interrupts_and_then_interrupts_the_grace_leaves_nothing_behind(tmp_path, monkeypatch):
    told = {"RINGDP_TRACE": str(tmp_path)}
    real = subprocess.Popen.wait

    def interrupted(process, timeout=None):
        if timeout == job._GRACE_S:
            raise KeyboardInterrupt
        return real(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)

    def interrupt():
        raise KeyboardInterrupt

    said = tmp_path / "said"
    with said.open("wb") as output, pytest.raises(KeyboardInterrupt):
        job.run([sys.executable, "-c", STUBBORN], told, when_ready(said, interrupt), output)
    assert left_of(said) == []


def test_an_interrupt_while_it_starts_leaves_nothing_behind(tmp_path, monkeypatch):
    said = tmp_path / "said"
    real = subprocess.Popen.__init__

    def interrupted(process, *arguments, **named):
        real(process, *arguments, **named)
        while "ready" not in said.read_text():
            time.sleep(0.02)
        raise SystemExit(143)

    monkeypatch.setattr(subprocess.Popen, "__init__", interrupted)
    with said.open("wb") as output, pytest.raises(SystemExit):
        job.run([sys.executable, "-c", STUBBORN], {}, output=output)
    assert left_of(said) == []


def test_an_interrupt_reaches_the_command_as_an_interrupt(tmp_path):
    left = tmp_path / "left"
    code = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whatever the tests were started with
        "try:\n    print('ready', flush=True); time.sleep(600)\n"
        f"except KeyboardInterrupt:\n    pathlib.Path({str(left)!r}).write_text('all it had')"
    )

    def interrupt():
        raise KeyboardInterrupt

    said = tmp_path / "said"
    with said.open("wb") as output, pytest.raises(KeyboardInterrupt):
        job.run([sys.executable, "-c", code], {}, when_ready(said, interrupt), output)
    assert left.read_text() == "all it had"


def test_a_stranger_with_the_same_setting_lives_on(tmp_path):
    told = {"RINGDP_TRACE": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    code = "print('ready', flush=True); input()"
    strangers = []

    def another_begins():
        if not strangers:
            strangers.append(subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **told}, **pipes))
            strangers[0].stdout.readline()
        return "seen enough"

    assert job.run([sys.executable, "-c", "import time; time.sleep(600)"], told, another_begins).stopped
    try:
        assert strangers[0].poll() is None
    finally:
        strangers[0].communicate(b"\n")


def test_a_job_within_a_job_belongs_to_both(tmp_path, monkeypatch):
    monkeypatch.setenv(job.VARIABLE, "outer")
    seen = tmp_path / "jobs"
    code = f"import os, pathlib; pathlib.Path({str(seen)!r}).write_text(os.environ['{job.VARIABLE}'])"
    assert job.run([sys.executable, "-c", code], {}) == job.Ended(0)
    outer, own = seen.read_text().split()
    assert outer == "outer" and job.marked(own) == []


def test_a_command_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="no-such-command"):
        job.run(["no-such-command"], {})
