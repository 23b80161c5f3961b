"""ringdp/attach/job.py: a command runs to its end or to a reason to stop, and leaves no process behind."""

from __future__ import annotations

import subprocess
import sys
import tempfile

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
    assert job.run([sys.executable, "-c", code, str(given)], given, lambda: "") == job.Ended(0)
    assert job.run([sys.executable, "-c", "import sys; sys.exit(7)"], given, lambda: "") == job.Ended(7)


def test_a_reason_ends_it_with_all_its_processes(tmp_path, monkeypatch):
    given = Assignment("audit", tmp_path)
    monkeypatch.setattr(job, "_GRACE_S", 0.2)
    with tempfile.TemporaryFile() as output:

        def tick():
            output.seek(0)
            return "seen enough" if b"ready" in output.read() else ""

        ended = job.run([sys.executable, "-c", STUBBORN], given, tick, output)
    assert ended.stopped == "seen enough" and ended.status != 0
    assert job.watched(str(given)) == []


def test_only_processes_of_this_job_are_watched(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert other.pid not in job.watched(f"audit:{tmp_path}")
    finally:
        other.communicate(b"\n")


def test_a_command_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="no-such-command"):
        job.run(["no-such-command"], Assignment("audit", tmp_path), lambda: "")
