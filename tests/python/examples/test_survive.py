"""The example of ringdp.elastic.survive: its ranks die, and it says whether the bits are those of one process."""

from __future__ import annotations

import json
import os
import signal

import pytest
from ringdp.examples import survive
from ringdp.examples.survive import Kills
from ringdp.tools.observe.perfetto import chrome_trace
from ringdp.tools.observe.traces import read_folder


@pytest.fixture(autouse=True)
def no_rank(monkeypatch):
    """A process that no launcher has started."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.long
def test_ranks_die_and_the_bits_are_those_of_one_process(capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("RINGDP_TRACE", str(tmp_path))
    assert survive.main(["--nproc", "2", "--steps", "30", "--kills", "1", "--json"]) == 0
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert report["equal"] and report["hash"] == report["undisturbed"] and report["killed"] == 1
    assert report["worlds"][0]["epoch"] >= 1
    assert "was killed by SIGKILL" in err and "ringdp.elastic: world 1: 1 rank" in err
    text = survive.render(report)
    assert text.startswith("30 steps, 1 rank killed") and text.endswith("equal: yes")
    dumps = read_folder(tmp_path)
    assert dumps and {dump.rank for dump in dumps} <= {0, 1, 2}  # members; the one that was killed leaves no file
    slices = {made["name"] for made in chrome_trace(dumps)["traceEvents"]}
    assert "world 1: 1 rank" in slices


def test_each_kill_comes_once_and_leaves_one_rank(tmp_path, monkeypatch):
    killed, ranks = [], 2
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(survive.dist, "get_world_size", lambda: ranks)
    kills = Kills(tmp_path, 3, 10, seed=1)
    (first, leaf), *_ = kills._planned
    kills.before(first - 1, leaf)
    kills.before(first, (leaf + 1) % survive.MICRO_BATCHES)
    assert killed == []
    ranks = 1
    kills.before(9, leaf)
    assert killed == []
    ranks = 2
    for step, leaf in kills._planned:
        kills.before(step + 1, leaf), kills.before(step + 1, leaf)
    assert killed == [(os.getpid(), signal.SIGKILL)] * 3
    assert [planned for planned in Kills(tmp_path, 3, 10, seed=1)._planned] == kills._planned


@pytest.mark.parametrize("arguments", [["--kills", "-1"], ["--kills", "5", "--steps", "5"]])
def test_bad_arguments_are_named(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        survive.main(arguments)
    assert ended.value.code == 2 and f"--kills is {arguments[1]}, must be from 0 to" in capsys.readouterr().err


def test_a_job_that_fails_is_said(monkeypatch, capsys):
    def fails(*args, **kwargs):
        raise survive.subprocess.CalledProcessError(3, "ringdp run")

    monkeypatch.setattr(survive.subprocess, "run", fails)
    assert survive.main(["--kills", "0"]) == 1
    assert "the job has ended with status 3" in capsys.readouterr().err
