"""`ringdp tune --hosts` over network namespaces: what depends on the path is found, and who is missing is named."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked import without_settings
from jobs import LIMIT_S, PORT, RankCommand, wait_until

MEGABITS = 200


def tune(job, *options, ranks=None, only=None, **variables):
    """As every rank of the job, or only as so many: statuses, rank 0's report, and what each rank complains of."""
    command = RankCommand(job, "tune", "--hosts", "--json", *options, ranks=ranks, only=only, **variables)
    statuses, output, errors = command.ended()
    return statuses, json.loads(output) if output else None, errors


def test_two_hosts_of_two_ranks(make_job, tmp_path):
    """One rank of each measures. Two hosts have no limit of exchange; what hosts have measured alone is left alone."""
    job = make_job(2, 2)
    file = tmp_path / "tuned.json"
    statuses, found, errors = tune(job, "--seconds", "0.5", RINGDP_TUNE=str(file), RINGDP_TCP_STREAMS="2")
    assert statuses == [0] * 4, errors
    assert [host["address"] for host in found["hosts"]] == [host.address for host in job.network.hosts]
    assert found["hosts"][0]["interface"] == "eth0"
    assert (found["round_trip_s"] > 0, found["bits_per_s"] > 0) == (True, True)
    assert set(found["measured"]) == {"tcp_streams"}
    assert found["in_force"]["tcp_streams"] == 2
    row = found["measured"]["tcp_streams"]
    advised = row["is_sure"] and row["value"] != 2
    assert found["environment"] == ({"RINGDP_TCP_STREAMS": str(row["value"])} if advised else {})
    assert not file.exists()


def test_a_host_that_does_not_come_is_named(make_job):
    statuses, found, errors = tune(make_job(2, 1), "--timeout", "2", ranks=1)
    assert (statuses, found) == ([1], None)
    assert "ringdp tune: host 1 of 0-1 did not come within 2 s" in errors[0]


def test_one_host_is_refused(make_job):
    statuses, found, errors = tune(make_job(1, 2))
    assert (statuses, found) == ([2, 2], None)
    for said in errors:
        assert "all ranks are on one host" in said


def test_a_rank_that_dies_ends_it_on_all_hosts(make_job):
    job = make_job(3, 1)
    command = RankCommand(job, "tune", "--hosts", "--seconds", "600")
    command.wait_for_output("measuring tcp_streams")
    os.kill(command.programs[1].pid, signal.SIGKILL)
    statuses, _, errors = command.ended()
    assert statuses == [1, -signal.SIGKILL, 1]
    for said in (errors[0], errors[2]):
        assert re.search(rf"ringdp tune: PeerLost: .*rank 1 \(pid {command.programs[1].pid} on ", said), said


@pytest.mark.long
def test_a_setting_that_differs_is_named(make_job):
    statuses, _, errors = tune(make_job(2, 1), only=1, RINGDP_CHECK="off")
    assert statuses == [1, 1]
    assert all("Mismatch: settings differ" in said for said in errors), errors


@pytest.mark.long
def test_the_limit_of_exchange_is_what_a_link_carries_in_half_a_round_trip(make_far_job):
    """Between distant hosts more than between near ones: by latency times bandwidth, as far as TCP gets up to it."""
    job, found = make_far_job(3, rtt_ms=2, megabits=MEGABITS), {}
    for rtt_ms in (2, 50):
        job.network.set_rtt(rtt_ms)
        statuses, report, errors = tune(job, "--seconds", "30")
        assert statuses == [0, 0, 0], errors
        found[rtt_ms] = report["measured"]["exchange_bytes"]["value"]
        carried = MEGABITS * 1e6 / 8 * rtt_ms / 2e3
        assert rtt_ms / 1e3 <= report["round_trip_s"] < rtt_ms / 1e3 + 0.02
        assert carried / 8 <= found[rtt_ms] <= 8 * carried, report
    assert found[50] > 3 * found[2], found


@pytest.mark.long
def test_in_the_launcher_s_place(make_job):
    """One rank on each host, whatever --nproc-per-node says; when one is killed, its host and the other end with 1."""
    job = make_job(2, 1)
    commands, outputs, ranks = [], [job.folder / f"said-{node}" for node in range(2)], {}
    for node, host in enumerate(job.network.hosts):
        command = [sys.executable, "-m", "ringdp", "tune", "--hosts", "--seconds=600", "--", "torchrun", "--nnodes=2"]
        command += [f"--node-rank={node}", "--nproc-per-node=3", f"--master-addr={job.network.hosts[0].address}"]
        with outputs[node].open("wb") as file:
            started = host.command([*command, f"--master-port={PORT}", "train.py"])
            commands.append(subprocess.Popen(started, env=without_settings(), stdout=file, stderr=file))
    try:
        wait_until(lambda: "measuring tcp_streams" in outputs[0].read_text(), outputs[0].read_text)
        for node, launcher in enumerate(commands):
            ranks[node] = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        assert [len(pids) for pids in ranks.values()] == [1, 1]
        os.kill(int(ranks[1][0]), signal.SIGKILL)
        assert [launcher.wait(LIMIT_S) for launcher in commands] == [1, 1]
    finally:
        for launcher in commands:
            launcher.kill()
            launcher.wait()
    assert f"rank 1 (pid {ranks[1][0]} on " in outputs[0].read_text()
    assert "ringdp: rank 1 was ended by SIGKILL" in outputs[1].read_text()
