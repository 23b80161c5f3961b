"""Collectives over several hosts under plain torchrun: the bits of one process, by the transport each pair needs."""

from __future__ import annotations

import pytest

SHAPES = [pytest.param(2, 1, marks=pytest.mark.long), (2, 2), pytest.param(4, 1, marks=pytest.mark.long)]


@pytest.mark.parametrize(("hosts", "per_host"), SHAPES)
def test_every_collective_gives_the_bits_of_one_process(make_job, hosts, per_host):
    job = make_job(hosts, per_host)
    said = job.torchrun("collectives")
    for own in said:
        assert own["wrong"] == []
        check_peers(own, said, per_host)
    check_barrier(said)


def check_peers(own, said, per_host):
    """Shared memory inside a host, TCP between hosts, each with its reason; TCP on the interface of the master."""
    for peer in said:
        if peer is own:
            continue
        line = next(line for line in own["described"] if line.startswith(f"rank {peer['rank']} (pid {peer['pid']} on "))
        local = own["rank"] // per_host == peer["rank"] // per_host
        assert (": shm: same " if local else ": tcp: network namespaces differ") in line
    assert f"TCP bound to 10.77.0.{own['rank'] // per_host + 1} (eth0)" in own["described"]


def check_barrier(said):
    """Nobody leaves the barrier before the last rank, which comes late, has entered it."""
    last = said[-1]
    assert last["entered"] - last["began"] > 0.4
    assert min(own["released"] for own in said) > last["entered"]
