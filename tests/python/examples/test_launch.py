"""Starting: ranks know that they are ranks, and --nproc becomes a torchrun line."""

from __future__ import annotations

import os
import sys

import pytest
from ringdp.examples import launch


def test_a_rank_is_told_by_torchruns_variables(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not launch.started_by_torchrun()
    monkeypatch.setenv("RANK", "0")
    assert launch.started_by_torchrun()


def test_the_explanation_has_both_ways():
    assert "torchrun --nproc-per-node 2 -m ringdp.examples.train_gpt" in launch.how_to_start()
    assert "--nproc 2" in launch.how_to_start()


@pytest.mark.parametrize("spelling", [["--nproc", "3"], ["--nproc=3"]])
def test_all_options_but_nproc_are_handed_on(spelling):
    command = launch.torchrun_command(3, ["--steps", "5", *spelling, "--quick"])
    assert command[: command.index("-m", 2)][-2:] == ["--nproc-per-node", "3"]
    assert command[-5:] == ["-m", launch.MODULE, "--steps", "5", "--quick"]


def test_this_process_becomes_torchrun(monkeypatch):
    called = []
    monkeypatch.setattr(os, "execv", lambda *arguments: called.append(arguments))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    launch.become_torchrun(2, ["--quick"])
    assert called == [(sys.executable, launch.torchrun_command(2, ["--quick"]))]
