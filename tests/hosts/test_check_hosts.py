"""`ringdp check-hosts` over network namespaces: what is wrong between hosts is named, and nothing else."""

from __future__ import annotations

import json
import subprocess

import pytest
from jobs import FAR, PORT, RankCommand

EPHEMERAL = "32768-60999"
MEGABITS = 200
HEALTHY_MBIT = 100  # a rate that a busy machine reaches in both directions


def check(job, *options, only=None, **variables):
    """A rank on every host; the variables for all, or for rank `only`. Statuses, rank 0's report, and what each rank
    complains of.
    """
    statuses, output, errors = RankCommand(job, "check-hosts", "--json", *options, only=only, **variables).ended()
    return statuses, json.loads(output) if output else None, errors


def problems(report):
    return [(found["check"], tuple(found["ranks"])) for found in report["findings"] if found["severity"] == "problem"]


def drop_ephemeral_ports(host):
    """A firewall on `host` that lets the store's port in and drops what comes for the ports that a kernel picks."""
    for rule in (
        "add priority 2 lookup local",  # in place of the first one, which nothing can precede
        "del priority 0",
        f"add priority 1 iif eth0 ipproto tcp dport {EPHEMERAL} blackhole",
    ):
        subprocess.run(host.command(["ip", "rule", *rule.split()]), check=True, capture_output=True, timeout=30)


def test_healthy_hosts(make_job):
    job = make_job(2, 1)
    network = job.network
    for host in network.hosts:
        host.throttle(HEALTHY_MBIT)
    statuses, report, errors = check(job)
    assert statuses == [0, 0], (errors, report["findings"])
    assert problems(report) == []
    assert [host["address"] for host in report["hosts"]] == [host.address for host in network.hosts]
    for pair in report["pairs"]:
        assert pair["reached"]["outcome"] == "open"
        assert pair["link"]["bits_per_s"] > 0 and pair["link"]["round_trip_s"] > 0
    assert abs(report["hosts"][1]["clock"]["ahead_s"]) <= report["hosts"][1]["clock"]["error_s"] + 0.05  # one clock


@pytest.mark.long
def test_distant_hosts_are_no_problem(make_far_job):
    statuses, report, errors = check(make_far_job(3, megabits=MEGABITS, **FAR))
    assert statuses == [0, 0, 0], (errors, report["findings"])
    for pair in report["pairs"]:
        assert pair["reached"]["outcome"] == "open"
        assert FAR["rtt_ms"] / 1e3 <= pair["link"]["round_trip_s"] < 1.5 * FAR["rtt_ms"] / 1e3
        assert 0.2 * MEGABITS * 1e6 < pair["link"]["bits_per_s"] < 1.2 * MEGABITS * 1e6  # TCP needs some round trips


def test_a_firewall_is_named_with_its_direction(make_job):
    job = make_job(2, 1)
    drop_ephemeral_ports(job.network.hosts[0])
    statuses, report, errors = check(job)
    assert statuses == [1, 1], errors
    [found] = [found for found in report["findings"] if found["severity"] == "problem"]
    assert (found["check"], found["ranks"]) == ("port", [1, 0])  # from, to
    for part in ("no answer", f"{job.network.hosts[0].address} port "):
        assert part in found["seen"]


def test_a_host_that_cannot_reach_the_store_says_so(make_job_at):
    job = make_job_at(2)
    job.network.cut(job.network.hosts[1], off=True)
    statuses, report, errors = check(job, "--timeout", "10")
    assert statuses == [1, 2], errors
    assert problems(report) == [("missing", (1,))]
    assert f"port {PORT} of {job.network.hosts[0].address} cannot be reached from " in errors[1]
    assert "no answer" in errors[1] or "no route" in errors[1]


def test_a_setting_that_differs_is_named(make_job):
    job = make_job(2, 1)
    statuses, report, errors = check(job, only=1, RINGDP_CHECK="off")
    assert statuses == [1, 1], errors
    assert {check for check, _ in problems(report)} == {"settings", "link"}  # ringdp refuses such a group


@pytest.mark.long
def test_a_throttled_cable_is_named(make_job):
    job = make_job(3, 1)
    for number, host in enumerate(job.network.hosts):
        host.throttle(20 if number == 1 else HEALTHY_MBIT)
    statuses, report, errors = check(job)
    assert statuses == [1, 1, 1], errors
    assert problems(report) == [("slow link", (1,))]
