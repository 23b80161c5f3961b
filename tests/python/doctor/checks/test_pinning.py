"""ringdp/doctor/checks/pinning.py: threads and cores of each host."""

from __future__ import annotations

import pytest
from ringdp.doctor.checks.pinning import check
from synthetic import evidence


@pytest.mark.parametrize(
    ("world", "place", "found"),
    [
        (4, {"threads": 2}, []),
        (4, {"threads": 3}, ["threads"]),
        (16, {"threads": 1}, []),  # more ranks than cores is the user's choice
        (4, {"threads": 1, "cores": [0]}, ["pinning"]),
        (4, {"threads": 1, "cores": [0, 1, 2, 3]}, []),
        (4, {"threads": 4, "cores": [0, 1]}, ["threads"]),
        (3, {"threads": 1, "cores": [0, 1], "host_cores": 2}, []),  # all that there are
    ],
)
def test_cores_that_do_not_suffice(world, place, found):
    assert [finding.check for finding in check(evidence(world, place=lambda rank, _: place))] == found


def test_ranks_on_cores_of_their_own_are_fine():
    assert list(check(evidence(4, place=lambda rank, _: {"threads": 1, "cores": [rank]}))) == []


def test_hosts_are_judged_apart():
    places = [{"host": "host0", "threads": 1}, {"host": "host1", "threads": 4}]
    findings = list(check(evidence(8, place=lambda rank, _: places[rank % 2])))
    assert [(finding.ranks, finding.numbers["threads"]) for finding in findings] == [((1, 3, 5, 7), 16)]
    assert "OMP_NUM_THREADS=2" in findings[0].fix
