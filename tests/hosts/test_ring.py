"""The ring over several hosts: its sums, its rounds and bytes by the formulas, its bytes by the kernel's counter."""

from __future__ import annotations

import pytest

SHAPES = [pytest.param(2, 1, marks=pytest.mark.long), (2, 2), pytest.param(4, 1, marks=pytest.mark.long)]
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


@pytest.mark.parametrize(("hosts", "per_host"), SHAPES)
@pytest.mark.parametrize("order", ["rank", "rotated"])
def test_sums_rounds_and_bytes(make_job, order, hosts, per_host):
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
    """Of a host's ranks only the last one's next is elsewhere: what it sends is what the host sends."""
    payload = last_of_host["counted"]["wire_bytes_sent"]
    assert abs(own["sent"]["eth0"] - payload) <= TOLERANCE * payload
    assert own["sent"]["eth1"] < TOLERANCE * payload
