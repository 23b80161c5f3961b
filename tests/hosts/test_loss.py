"""A rank or a host that is lost: every survivor is told who, in time, and can leave."""

from __future__ import annotations

import time

import pytest

TOLD_S = 5.0  # what a busy machine may take
LEFT_S = 5.0
UNREACHABLE_MS = 1000


@pytest.mark.parametrize(
    ("hosts", "per_host", "victim"),
    [(2, 1, 1), (2, 2, 3), *(pytest.param(*shape, marks=pytest.mark.long) for shape in ((2, 2, 2), (4, 1, 2)))],
)
def test_a_rank_killed_on_another_host(make_job, hosts, per_host, victim):
    job = make_job(hosts, per_host)
    job.begin("train")
    job.wait_until_running()
    killed = job.kill(victim)
    job.wait(but=victim)
    for own in job.said(but=victim):
        assert own["error"].startswith("DistBackendError: "), own["error"]
        assert "PeerLost: " in own["error"], own["error"]
        assert f"rank {victim} (pid {job.ranks[victim].pid} on " in own["error"], own["error"]
        assert own["told"] - killed < TOLD_S
        assert own["left"] - own["told"] < LEFT_S


@pytest.mark.parametrize(
    ("hosts", "per_host"), [(2, 2), *(pytest.param(*shape, marks=pytest.mark.long) for shape in ((2, 1), (4, 1)))]
)
def test_a_pulled_cable(make_job, hosts, per_host):
    job = make_job(hosts, per_host)
    job.begin("train", unreachable_ms=UNREACHABLE_MS)
    job.wait_until_running()
    job.network.pull_cable(job.network.hosts[-1])
    pulled = time.monotonic()
    job.wait()
    for own in job.said():
        assert "PeerLost: " in own["error"], own["error"]
        assert any(f"rank {rank} (pid" in own["error"] for rank in beyond(job, own["rank"])), own["error"]
        assert own["told"] - pulled < UNREACHABLE_MS / 1000 + TOLD_S
        assert own["left"] - own["told"] < LEFT_S


@pytest.mark.long
def test_a_network_that_comes_back_in_time(make_job):
    """Four of the five seconds that are promised: TCP, left alone, would try nothing more after three."""
    job = make_job(2, 1)
    job.begin("train_until_told")
    job.wait_until_running()
    job.network.cut(job.network.hosts[1], off=True)
    time.sleep(4)
    job.network.cut(job.network.hosts[1], off=False)
    (job.folder / "stop").touch()
    job.wait()
    assert [own["error"] for own in job.said()] == ["", ""]


def beyond(job, rank):
    """The ranks on the other side of the last host's cable."""
    cut = job.world - job.per_host
    return range(cut) if rank >= cut else range(cut, job.world)
