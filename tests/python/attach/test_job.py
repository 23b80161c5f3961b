"""ringdp/attach/job.py: a command runs to its end or to a reason to stop, and leaves no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import pytest
from ringdp.attach import job
from ringdp.attach.assignment import Assignment

# A parent that is not asked twice, with a child in a session of its own.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
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
    with tempfile.TemporaryFile() as output:
        tick = when_ready(output, lambda: "seen enough")
        ended = job.run([sys.executable, "-c", STUBBORN], told, tick, output)
    assert ended == job.Ended(137, "seen enough")
    assert job.watched(told) == []


def when_ready(output, then):
    def tick():
        output.seek(0)
        return then() if b"ready" in output.read() else ""

    return tick


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

    with tempfile.TemporaryFile() as output, pytest.raises(KeyboardInterrupt):
        job.run([sys.executable, "-c", STUBBORN], told, when_ready(output, interrupt), output)
    assert job.watched(told) == []


def test_a_process_that_is_older_than_the_job_is_not_the_job_s(tmp_path):
    told = {"RINGDP_TRACE": str(tmp_path)}
    code = "print('ready', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    shell = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **told}, **pipes)
    try:
        shell.stdout.readline()
        assert job.watched(told) == [shell.pid]
        time.sleep(0.05)  # ticks of the kernel are of 10 ms
        assert job.run([sys.executable, "-c", ""], told) == job.Ended(0)
        assert shell.poll() is None
    finally:
        shell.communicate(b"\n")


def test_only_processes_of_this_job_are_watched(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert other.pid not in job.watched({"RINGDP_ATTACH": f"audit:{tmp_path}"})
    finally:
        other.communicate(b"\n")


def test_a_command_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="no-such-command"):
        job.run(["no-such-command"], {})
