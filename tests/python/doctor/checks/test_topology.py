"""ringdp/doctor/checks/topology.py: one host, and yet TCP."""

from __future__ import annotations

import pytest
from ringdp.doctor.checks.topology import check, not_judged
from synthetic import evidence, paths

APART = "tcp: network namespaces differ"


def with_paths(why, world=3, host=lambda rank: "here"):
    return evidence(world, place=lambda rank, _: {"host": host(rank), "paths": paths(rank, world, why)})


def test_ranks_of_a_host_that_share_no_memory_are_named_with_the_reason():
    (finding,) = check(with_paths(APART))
    assert (finding.check, finding.ranks) == ("topology", (0, 1, 2))
    assert finding.seen == f"ranks 0, 1, 2 are on here and do not share memory: {APART}"


def test_only_those_that_do_not():
    def place(rank, _):
        shared = [path for path in paths(rank, 3) if 2 not in (rank, path["peer"])]
        return {"paths": shared + [path for path in paths(rank, 3, APART) if 1 not in (rank, path["peer"])]}

    (finding,) = check(evidence(3, place=place))
    assert finding.ranks == (0, 2)


@pytest.mark.parametrize("why", [APART, "tcp: boot ids differ: two hosts"])
def test_ranks_of_several_hosts_are_fine(why):
    assert list(check(with_paths(why, host=lambda rank: f"host{rank}"))) == []


def test_hosts_that_have_the_same_name_are_fine():
    assert list(check(with_paths("tcp: boot ids differ: two hosts"))) == []


def test_shared_memory_is_fine():
    assert list(check(evidence())) == [] == list(not_judged(evidence()))


def test_a_run_too_short_for_it_is_not_judged():
    assert "takes 2 steps" in next(not_judged(evidence(more=lambda rank: {"place": []})))


def test_a_backend_that_does_not_say_is_not_judged():
    silent = evidence(place=lambda rank, _: {"paths": []})
    assert list(check(silent)) == [] and "does not say" in next(not_judged(silent))
