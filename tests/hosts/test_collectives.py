"""Collectives over several hosts: the bits of one process, by the transport that each pair needs.

The ring and the hierarchy send exactly the bytes of their formulas, by their own counters and by the kernel's.
"""

from __future__ import annotations

from pathlib import Path

import pytest

MOST_BUFFERED = 4 << 20  # what a path may need, see csrc/transport/tcp/send_window.cc
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
    granted = int(Path("/proc/sys/net/core/wmem_max").read_text())
    caps = [line for line in own["described"] if line.startswith(f"send buffers above {granted >> 10} KiB ")]
    assert len(caps) == (granted < MOST_BUFFERED)


def check_barrier(said):
    """No rank leaves the barrier before the last one, which comes late, has entered it."""
    last = said[-1]
    assert last["entered"] - last["began"] > 0.4
    assert min(own["released"] for own in said) > last["entered"]


RING_CASES = [
    pytest.param(order, *shape, marks=() if (order, shape) == ("rank", (2, 2)) else pytest.mark.long)
    for order in ("rank", "rotated")
    for shape in ((2, 1), (2, 2), (4, 1))
]
SEGMENT_BYTES = 262144
TOLERANCE = 0.03


def rotated_bytes(rank: int, world: int, size: int) -> float:
    """2(N-1)/N S from every rank."""
    return 2 * (world - 1) / world * size


def rank_order_bytes(rank: int, world: int, size: int) -> float:
    """Prefixes go from 0 to N-1, results from N-1 by 0 to N-2: S at both ends of a way, 2S between."""
    last = world - 1
    return size * ((rank < last) + (rank == last or rank < last - 1))


def rounds_of(order: str, world: int, size: int) -> int:
    """2(N-1); with M segments in a row behind each other 2(N-1) + M - 1."""
    return 2 * (world - 1) + (size // SEGMENT_BYTES - 1 if order == "rank" else 0)


@pytest.mark.parametrize(("order", "hosts", "per_host"), RING_CASES)
def test_sums_rounds_and_bytes_of_the_ring(make_job, order, hosts, per_host):
    job = make_job(hosts, per_host)
    said = job.run("traffic", algorithm="ring", order=order, segment_bytes=SEGMENT_BYTES)
    formula = rotated_bytes if order == "rotated" else rank_order_bytes
    for own in said:
        assert own["wrong"] == []
        assert "plan: ring (forced by algorithm=ring)" in own["described"]
        assert own["counted"]["collectives"] == 1
        assert own["counted"]["wire_bytes_sent"] == formula(own["rank"], job.world, own["bytes"])
        assert own["counted"]["rounds"] <= rounds_of(order, job.world, own["bytes"])
        check_interface(own, said[(own["rank"] // per_host + 1) * per_host - 1])
    assert max(own["counted"]["rounds"] for own in said) == rounds_of(order, job.world, said[0]["bytes"])


def check_interface(own, last_of_host):
    """Only the last rank of a host sends to another host, so what it sends is what the host sends."""
    payload = last_of_host["counted"]["wire_bytes_sent"]
    assert abs(own["sent"]["eth0"] - payload) <= TOLERANCE * payload
    assert own["sent"]["eth1"] < TOLERANCE * payload


HIERARCHY_SHAPES = [pytest.param(2, 2, marks=pytest.mark.long), pytest.param(2, 3, marks=pytest.mark.long), (3, 2)]


def bytes_of_host(host: int, hosts: int, size: int) -> int:
    """Prefixes go from the first host to the last, results from the last round to the one before it."""
    last = hosts - 1
    return size * ((host < last) + (host == last or host < last - 1))


def payloads_of_hosts(said, per_host):
    """What each host's ranks have sent to other hosts, where the sums are right and a hierarchy's."""
    payloads = []
    for first in range(0, len(said), per_host):
        ranks = said[first : first + per_host]
        payloads.append(sum(own["counted"]["wire_bytes_sent"] for own in ranks))
        for own in ranks:
            assert own["wrong"] == []
            assert any(line.startswith("plan: hierarchy (") for line in own["described"]), own["described"]
            # Every rank of a host reads the host's own counter, a little before or after its peers.
            assert abs(own["sent"]["eth0"] - payloads[-1]) <= TOLERANCE * payloads[-1]
    return payloads


@pytest.mark.parametrize(("hosts", "per_host"), HIERARCHY_SHAPES)
def test_sums_and_bytes_of_the_hierarchy(make_job, hosts, per_host):
    said = make_job(hosts, per_host).run("traffic")  # auto: several ranks on several hosts
    size = said[0]["bytes"]
    assert payloads_of_hosts(said, per_host) == [bytes_of_host(host, hosts, size) for host in range(hosts)]


@pytest.mark.parametrize(
    ("hosts", "per_host", "subtrees"), [(2, 2, [1, 1]), pytest.param(3, 2, [1, 2, 2], marks=pytest.mark.long)]
)
def test_sums_and_bytes_of_the_hierarchy_along_the_tree(make_job, hosts, per_host, subtrees):
    """A host sends the others their slices of each subtree of ranks that it has whole, and its slice of the sum."""
    said = make_job(hosts, per_host).run("traffic", order="tree")
    slices = (hosts - 1) * said[0]["bytes"] / hosts
    formula = [(roots + 1) * slices for roots in subtrees]
    assert payloads_of_hosts(said, per_host) == pytest.approx(formula, rel=1e-4)  # slices differ by an element


def test_a_hierarchy_without_shared_memory_is_refused(make_job):
    job = make_job(2, 2)
    job.begin("join", transport="tcp", algorithm="hierarchy")
    job.wait()
    for own in job.said():
        assert "algorithm=hierarchy needs the ranks of every host" in own["error"], own


@pytest.mark.long  # test_collectives has every collective; dtypes and operations are those of one host over TCP
@pytest.mark.parametrize(("hosts", "per_host"), [(2, 1), (2, 2)])
def test_every_op_equals_the_oracle(make_job, hosts, per_host):
    for own in make_job(hosts, per_host).run("selftest"):
        assert own["wrong"] == []
        assert own["cases"] > 1000
