"""The hierarchy over several hosts: its sums, and one copy per host on the wire, by formula and kernel counter."""

from __future__ import annotations

import pytest

SHAPES = [pytest.param(2, 2, marks=pytest.mark.long), pytest.param(2, 3, marks=pytest.mark.long), (3, 2)]
TOLERANCE = 0.03


def bytes_of_host(host: int, hosts: int, size: int) -> int:
    """Prefixes go from the first host to the last, results from the last round to the one before it."""
    last = hosts - 1
    return size * ((host < last) + (host == last or host < last - 1))


@pytest.mark.parametrize(("hosts", "per_host"), SHAPES)
def test_sums_and_bytes(make_job, hosts, per_host):
    job = make_job(hosts, per_host)
    said = job.run("traffic")  # auto: several ranks on several hosts
    for host in range(hosts):
        ranks = said[host * per_host : (host + 1) * per_host]
        for own in ranks:
            assert own["wrong"] == []
            assert any(line.startswith("plan: hierarchy (") for line in own["described"]), own["described"]
        payload = sum(own["counted"]["wire_bytes_sent"] for own in ranks)
        assert payload == bytes_of_host(host, hosts, said[0]["bytes"])
        # Every rank of a host reads the host's own counter, a little before or after its peers.
        for own in ranks:
            assert abs(own["sent"]["eth0"] - payload) <= TOLERANCE * payload


def test_a_hierarchy_without_shared_memory_is_refused(make_job):
    job = make_job(2, 2)
    job.begin("join", transport="tcp", algorithm="hierarchy")
    job.wait()
    for own in job.said():
        assert "algorithm=hierarchy needs the ranks of every host" in own["error"], own
