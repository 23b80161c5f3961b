"""When a run has been long enough, where it stands still, and what of its output is shown."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from ringdp.tools.attach.assignment import Assignment
from ringdp.tools.attach.records import Reader
from ringdp.tools.doctor import run
from ringdp.tools.doctor.checks.failure import HANGS
from ringdp.tools.doctor.evidence import Stand
from ringdp.tools.doctor.probes.errors import stack_file
from ringdp.tools.doctor.run import DONE, OUTPUT, SILENT, Watch, examine, last_lines, stacks_of

HERE = socket.gethostname()
STUCK = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR1, file=open(sys.argv[1], "w"))
def stuck():
    print("ready", flush=True); time.sleep(600)  # on one line: the signal may come before the sleep
stuck()
"""


def write(folder, rank, *kinds, pid=0, host=HERE):
    with (folder / f"rank{rank}.jsonl").open("a") as stream:
        if stream.tell() == 0:
            header = {"kind": "rank", "rank": rank, "world": 2, "restart": 0, "time": 0, "pid": pid, "host": host}
            stream.write(json.dumps(header) + "\n")
        for kind in kinds:
            stream.write(json.dumps({"kind": kind}) + "\n")


def told(folder):
    """The environment of a process of the job."""
    return {**os.environ, **Assignment("doctor", folder).environment}


def test_it_ends_when_all_ranks_have_made_their_steps(tmp_path):
    watch = Watch(Reader(tmp_path), tmp_path, 2, 60.0)
    write(tmp_path, 0, "step", "step")
    assert watch.tick() == ""
    write(tmp_path, 1, "step")
    assert watch.tick() == ""
    write(tmp_path, 1, "step")
    assert watch.tick() == DONE


def test_it_ends_when_nothing_has_come_for_so_long(tmp_path):
    watch = Watch(Reader(tmp_path), tmp_path, 2, 0.0)
    write(tmp_path, 0, "step")
    assert [watch.tick(), watch.tick()][-1] == HANGS
    assert watch.idle.keys() == {0} and watch.idle[0] > 0


def test_a_job_that_never_begins_is_ended(tmp_path):
    watch = Watch(Reader(tmp_path), tmp_path, 2, 0.001)
    while not (reason := watch.tick()):
        pass
    assert reason == SILENT


def test_ranks_that_write_elsewhere_are_not_waited_for_long(tmp_path, monkeypatch):
    """One that starts later, where nothing keeps ranks together, is not taken for one of them."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = Watch(Reader(tmp_path), tmp_path, 2, 60.0)
    write(tmp_path, 0, "step", "step", "step")
    assert watch.tick() == ""
    write(tmp_path, 0, "step")
    now += 9.0
    assert watch.tick() == ""
    now += 2.0
    assert watch.tick() == DONE


def test_a_process_of_another_host_is_not_signalled(tmp_path, monkeypatch):
    signalled = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append((pid, number)))
    monkeypatch.setattr(run, "_belongs_to", lambda folder, pid: True)
    for rank, host in enumerate((HERE, "elsewhere")):
        stack_file(tmp_path, 70 + rank).touch()
        write(tmp_path, rank, pid=70 + rank, host=host)
    assert stacks_of(Reader(tmp_path).read(), tmp_path) == {}
    assert signalled == [(70, signal.SIGUSR1)]


def test_a_rank_that_is_stuck_says_where(tmp_path):
    pipe = {"stdout": subprocess.PIPE, "text": True, "env": told(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", STUCK, str(tmp_path / "stack")], **pipe)
    try:
        assert process.stdout.readline() == "ready\n"
        (tmp_path / "stack").rename(tmp_path / f"stack-{process.pid}.txt")
        write(tmp_path, 1, pid=process.pid)
        write(tmp_path, 0, pid=os.getpid())  # which has no handler, and must not be signalled
        assert stacks_of(Reader(tmp_path).read(), tmp_path) == {1: Stand("<string>, line 5 in stuck")}
    finally:
        process.kill()
        process.communicate()


TORCH = "/v/lib/python3.11/site-packages/torch"
FRAMES = {
    "backward": f"{TORCH}/autograd/graph.py",
    "all_reduce": f"{TORCH}/distributed/distributed_c10d.py",
    "": "/v/lib/python3.11/threading.py",
}


@pytest.mark.parametrize(("call", "file"), FRAMES.items())
def test_a_stack_says_what_a_rank_waits_in(tmp_path, monkeypatch, call, file):
    """Below the script's line: a call in which ranks meet, or anything else."""
    monkeypatch.setattr(run, "_belongs_to", lambda folder, pid: False)
    write(tmp_path, 0, pid=7)
    frames = [f'  File "{file}", line 9 in _{call}', '  File "/home/me/train.py", line 31 in main']
    stack_file(tmp_path, 7).write_text("\n".join(["Current thread 0x1 (most recent call first):", *frames, ""]))
    assert stacks_of(Reader(tmp_path).read(), tmp_path) == {0: Stand("train.py, line 31 in main", call)}


def test_a_stranger_who_has_a_rank_s_number_now_is_not_signalled(tmp_path):
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        stack_file(tmp_path, stranger.pid).touch()
        write(tmp_path, 0, pid=stranger.pid)
        assert stacks_of(Reader(tmp_path).read(), tmp_path) == {}
        assert stranger.poll() is None
    finally:
        stranger.communicate(b"\n")


def test_the_job_s_output_is_kept_with_its_evidence(tmp_path):
    command = [sys.executable, "-c", "import sys; print('out'); sys.exit('err')"]
    evidence = examine(command, Assignment("doctor", tmp_path), 5, 60.0, None)
    assert (evidence.status, evidence.stopped, evidence.ranks) == (1, "", {})
    assert sorted((tmp_path / OUTPUT).read_text().split()) == ["err", "out"]


def test_what_ranks_say_while_they_are_ended_is_no_evidence(tmp_path, monkeypatch):
    """One of them is gone before the other, which raises."""

    def ended(command, told, tick, *streams):
        write(tmp_path, 0, "step")
        write(tmp_path, 1, "step")
        reason = tick()
        write(tmp_path, 1, "error")
        return run.job.Ended(1, reason)

    monkeypatch.setattr(run.job, "run", ended)
    evidence = examine(["train"], Assignment("doctor", tmp_path), 1, 60.0, None)
    assert evidence.stopped == DONE and not evidence.ranks[1].of("error")


def test_a_stopped_rank_is_found_stopped(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=told(tmp_path))
    try:
        write(tmp_path, 1, pid=process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert stacks_of(Reader(tmp_path).read(), tmp_path) == {1: Stand("", stopped=True)}
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("output", "died"),
    [
        (
            "Root Cause (first observed failure):\n[0]:\n  time      : now\n  host      : here\n"
            "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 77)\n",
            (1, "signal 9"),
        ),
        ("process 0 terminated with exit code 3", (0, "exit code 3")),
        ("process 2 terminated with signal SIGKILL", (2, "signal SIGKILL")),
        ("all is well", None),
    ],
)
def test_the_launcher_says_who_died_first(output, died):
    assert run.died_first(output) == died


# As torch 2.13 prints it, shortened.
RANKS = [
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "/home/me/train.py", line 4, in <module>',
    "[rank1]: RuntimeError: bad sample",
]
LOGGED = "E1123 09:51:32.59 13257 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)"
TORCHRUN = [
    "Traceback (most recent call last):",
    '  File "/v/site-packages/torch/distributed/run.py", line 1028, in main',
    '  File "/v/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent',
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    *["  rank      : 0 (local_rank: 0)"] * 100,
]


def said(*lines):
    return last_lines("\n".join(lines))


def test_ranks_come_before_torchrun_whatever_its_length():
    shown = said(*RANKS[:1], LOGGED, *RANKS[1:], *TORCHRUN)
    assert shown[:3] == RANKS
    assert set(shown[3:]) == {TORCHRUN[-1]}  # its last lines


def test_a_short_end_is_shown_whole():
    assert said("step 1", LOGGED, *RANKS, *TORCHRUN[:4]) == ["step 1", *RANKS, LOGGED, *TORCHRUN[:4]]


def test_without_torchrun_the_last_lines_are_shown_as_they_are():
    lines = ["Traceback (most recent call last):", *map(str, range(1000))]
    shown = said(*lines)
    assert shown == lines[-len(shown) :] and len(shown) < 100
    assert said() == []
