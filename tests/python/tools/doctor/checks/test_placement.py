"""Threads and cores of each host; ranks of one host that talk over TCP."""

from __future__ import annotations

import pytest
from ringdp.tools.doctor.checks.placement import check_pinning, check_topology, topology_not_judged
from synthetic import evidence, paths


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
        (4, lambda rank, _: {"threads": 1, "cores": [rank]}, []),  # each on a core of its own
    ],
)
def test_cores_that_do_not_suffice(world, place, found):
    found_in = evidence(world, place=place if callable(place) else lambda rank, _: place)
    assert [finding.check for finding in check_pinning(found_in)] == found


def test_hosts_are_judged_apart():
    places = [{"host": "host0", "threads": 1}, {"host": "host1", "threads": 4}]
    findings = list(check_pinning(evidence(8, place=lambda rank, _: places[rank % 2])))
    assert [(finding.ranks, finding.numbers["threads"]) for finding in findings] == [((1, 3, 5, 7), 16)]
    assert "OMP_NUM_THREADS=2" in findings[0].fix


APART = "tcp: network namespaces differ"


def with_paths(why, world=3, host=lambda rank: "here"):
    return evidence(world, place=lambda rank, _: {"host": host(rank), "paths": paths(rank, world, why)})


def test_ranks_of_a_host_that_share_no_memory_are_named_with_the_reason():
    (finding,) = check_topology(with_paths(APART))
    assert (finding.check, finding.ranks) == ("topology", (0, 1, 2))
    assert finding.seen == f"ranks 0, 1, 2 are on here and do not share memory: {APART}"


def test_only_those_that_do_not():
    def place(rank, _):
        shared = [path for path in paths(rank, 3) if 2 not in (rank, path["peer"])]
        return {"paths": shared + [path for path in paths(rank, 3, APART) if 1 not in (rank, path["peer"])]}

    (finding,) = check_topology(evidence(3, place=place))
    assert finding.ranks == (0, 2)


TWO_HOSTS = "tcp: boot ids differ: two hosts"


@pytest.mark.parametrize(("why", "host"), [(APART, "host{}"), (TWO_HOSTS, "host{}"), (TWO_HOSTS, "one name for all")])
def test_ranks_of_several_hosts_are_fine(why, host):
    assert list(check_topology(with_paths(why, host=host.format))) == []


def test_shared_memory_is_fine():
    assert list(check_topology(evidence())) == [] == list(topology_not_judged(evidence()))


def test_a_run_too_short_for_it_is_not_judged():
    assert "takes 2 steps" in next(topology_not_judged(evidence(more=lambda rank: {"place": []})))


def test_a_backend_that_does_not_say_is_not_judged():
    silent = evidence(place=lambda rank, _: {"paths": []})
    assert list(check_topology(silent)) == [] and "does not say" in next(topology_not_judged(silent))
