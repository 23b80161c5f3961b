"""Which interface TCP uses, what is refused between hosts, and what happens when a rank or a host is lost."""

from __future__ import annotations

import re
import time

import pytest
from jobs import FAR


def test_by_default_the_interface_that_leads_to_the_master(make_job):
    job = make_job(2, 1)
    job.begin("join")
    job.wait()
    check_only_on(job, 0, "eth0")


def test_the_chosen_interface_and_no_other(make_job):
    job = make_job(2, 1)
    job.begin("join", socket_ifname="eth1")
    job.wait()
    check_only_on(job, 1, "eth1")


def check_only_on(job, net, name):
    """Listeners while connecting, and connections: all at the address of that interface; no listener stays."""
    for rank, own in enumerate(job.said()):
        address = f"10.77.{net}.{rank + 1}"
        assert f"TCP bound to {address} ({name})" in own["described"]
        assert set(own["listened"]) == {address}
        assert set(own["connected"]) == {address}
        assert own["still_listening"] == []


def test_the_bytes_take_the_chosen_interface(make_job):
    for own in make_job(2, 1).run("traffic", socket_ifname="eth1"):
        assert own["sent"]["eth1"] >= own["counted"]["wire_bytes_sent"] > 0
        assert own["sent"]["eth0"] < 0.01 * own["sent"]["eth1"]


@pytest.mark.parametrize("culprit", [0, 1])
def test_an_interface_that_does_not_exist(make_job, culprit):
    """Refused with what exists on that host; the other rank is told, and does not wait for its deadline."""
    job = make_job(2, 1)
    job.begin("join", only=culprit, socket_ifname="eth7")
    job.wait()
    for rank, own in enumerate(job.said()):
        told = rf"Aborted: the rendezvous was given up by rank {culprit} \(pid {job.ranks[culprit].pid} on \S+\)"
        verdict = "InvalidArgument" if rank == culprit else told
        assert re.search(f"{verdict}: there is no network interface 'eth7'", own["error"]), own["error"]
        for name in ("lo (127.0.0.1)", f"eth0 (10.77.0.{culprit + 1})", f"eth1 (10.77.1.{culprit + 1})"):
            assert name in own["error"]


@pytest.mark.parametrize(("hosts", "per_host"), [pytest.param(2, 1, marks=pytest.mark.long), (2, 2)])
def test_shared_memory_between_hosts_is_refused(make_job, hosts, per_host):
    job = make_job(hosts, per_host)
    job.begin("join", transport="shm")
    job.wait()
    for rank, own in enumerate(job.said()):
        assert "transport=shm is impossible between rank " in own["error"]
        assert "network namespaces differ" in own["error"]
        pair = re.search(r"between rank (\d) and rank (\d)", own["error"])
        assert int(pair[1]) // per_host != int(pair[2]) // per_host
        assert rank == int(pair[1]) or f"given up by rank {pair[1]}" in own["error"]


TOLD_S = 5.0  # what a busy machine may take
LEFT_S = 5.0
UNREACHABLE_MS = 1000


@pytest.mark.parametrize(
    ("hosts", "per_host", "victim"),
    [(2, 1, 1), (2, 2, 3), *(pytest.param(*shape, marks=pytest.mark.long) for shape in ((2, 2, 2), (4, 1, 2)))],
)
def test_a_rank_killed_on_another_host(make_job, hosts, per_host, victim):
    check_that_a_death_is_told(make_job(hosts, per_host), victim)


@pytest.mark.long
def test_a_rank_killed_on_a_distant_host(make_far_job):
    check_that_a_death_is_told(make_far_job(3, **FAR), 1)


def check_that_a_death_is_told(job, victim):
    """To all others, with its rank and process, and quickly."""
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
    check_that_it_is_named(job, time.monotonic())


@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_distant_host_that_is_cut_off(make_far_job, hosts):
    job = make_far_job(hosts, **FAR)
    job.begin("train", unreachable_ms=UNREACHABLE_MS)
    job.wait_until_running()
    job.network.cut(job.network.hosts[-1], off=True)
    check_that_it_is_named(job, time.monotonic())


def check_that_it_is_named(job, lost):
    """Every rank names one beyond the last host's cable."""
    job.wait()
    for own in job.said():
        assert "PeerLost: " in own["error"], own["error"]
        assert any(f"rank {rank} (pid" in own["error"] for rank in beyond(job, own["rank"])), own["error"]
        assert own["told"] - lost < UNREACHABLE_MS / 1000 + TOLD_S
        assert own["left"] - own["told"] < LEFT_S


@pytest.mark.long
def test_a_network_that_comes_back_in_time(make_job_at):
    """14 of 20 seconds, of which a busy machine may take the rest: TCP, left alone, would try nothing more after 13.

    Meanwhile no rank says that the other one has not called.
    """
    job = make_job_at(2)
    job.begin("train_until_told", unreachable_ms=20_000, late_ms=3000)
    job.wait_until_running()
    job.network.cut(job.network.hosts[1], off=True)
    time.sleep(14)
    job.network.cut(job.network.hosts[1], off=False)
    (job.folder / "stop").touch()
    job.wait()
    assert [own["error"] for own in job.said()] == ["", ""]
    for rank in range(job.world):
        log = job.log_of(rank)
        assert re.search(rf"rank {1 - rank} \(.*\) has not been reached for \d", log), log
        assert "has not called it" not in log


def beyond(job, rank):
    """The ranks on the other side of the last host's cable."""
    cut = job.world - job.per_host
    return range(cut) if rank >= cut else range(cut, job.world)
