"""Which hosts and ranks a command stands for."""

from __future__ import annotations

import pytest
from ringdp.tools.hosts import launch
from ringdp.tools.hosts.launch import Launch, launch_of
from ringdp.tools.hosts.meeting import Place


@pytest.mark.parametrize(
    ("words", "launch"),
    [
        ("--nproc-per-node 2 t.py", Launch(1, 2, "127.0.0.1", 0, 0)),
        ("--standalone --nnodes 1 --nproc-per-node 2 t.py", Launch(1, 2, "127.0.0.1", 0, 0)),
        ("--nnodes 2 --node-rank 1 --master-addr a t.py", Launch(2, 1, "a", 29500, 1)),
        ("--nnodes 2 --nproc-per-node 3 --master-addr a --master-port 7 t.py", Launch(2, 3, "a", 7, 0)),
        ("--nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint a:7 t.py", Launch(4, 1, "a", 7, None)),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a t.py", Launch(2, 1, "a", 29400, None)),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint [fd00::1]:7 t.py", Launch(2, 1, "fd00::1", 7, None)),
        ("--nnodes 2 --node-rank 1 --rdzv-endpoint a:7 t.py", Launch(2, 1, "a", 7, 1)),
    ],
)
@pytest.mark.parametrize("program", [["torchrun"], ["/opt/bin/torchrun"], ["python3", "-m", "torch.distributed.run"]])
def test_a_command_of_torchrun(program, words, launch):
    assert launch_of([*program, *words.split()]) == launch


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["python", "train.py"], "'python' is not torchrun"),
        (["torchrun", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a:b", "t.py"], "invalid value 'a:b'"),
        (["torchrun", "--nproc-per-node", "many", "t.py"], "many"),
    ],
)
def test_another_command_is_refused(command, said):
    with pytest.raises(ValueError, match=said):
        launch_of(command)


def test_a_rank_that_is_killed_is_named(tmp_path, monkeypatch, capsys):
    """A rank of two; the other one's status is worse."""
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\n[ "$RANK $WORLD_SIZE $5" = "1 2 word" ] && kill -9 $$\nexit $OTHER_STATUS\n')
    program.chmod(0o755)
    monkeypatch.setattr(launch.sys, "executable", str(program))
    for other, worst in ((0, 1), (2, 2)):
        monkeypatch.setenv("OTHER_STATUS", str(other))
        assert launch.run_ranks(Launch(1, 2, "127.0.0.1", 0, 0), ["a", "b", "word"], 5.0) == worst
        assert capsys.readouterr().err == "ringdp: rank 1 was ended by SIGKILL\n"


SET = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7"}


def test_a_rank_that_a_launcher_has_started():
    assert Place.of({}) is None
    assert Place.of(SET) == Place(1, 2, "a", 7, agent=False)
    assert Place.of({**SET, "TORCHELASTIC_USE_AGENT_STORE": "True"}).agent


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"MASTER_ADDR": "", "WORLD_SIZE": ""}, "RANK is set, but not WORLD_SIZE, MASTER_ADDR"),
        ({"MASTER_PORT": "x"}, "invalid value 'x' for MASTER_PORT"),
        ({"RANK": "2"}, "invalid value '2' for RANK"),
    ],
)
def test_half_a_launcher_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        Place.of({**SET, **change})
