"""What is made of the results of all ranks: planted faults are found, one each, and a table fits a terminal."""

from __future__ import annotations

from itertools import combinations

import pytest
from ringdp.tools.check_hosts.links import rounds
from ringdp.tools.check_hosts.rank import Results
from ringdp.tools.check_hosts.report import Report

RATE = 1e10


def healthy(hosts, per_host=2):
    """Results without a fault: hosts on one network, one clock."""
    infos, results = {}, {}
    leaders = [number * per_host for number in range(hosts)]
    for rank in range(hosts * per_host):
        number = rank // per_host
        address = f"10.0.0.{number + 1}"
        infos[rank] = {
            "rank": rank,
            "host": f"host-{number}",
            "name": f"a-rather-long-host-name-{number}.example.com",
            "versions": {"ringdp": "1.0", "torch": "2.13.0", "Python": "3.11.7"},
            "settings": {},
            "interface": "enp65s0f0np0",
            "address": address,
            "why": "it routes to a",
            "megabits": 10_000,
            "interfaces": [{"name": "enp65s0f0np0", "address": address, "megabits": 10_000}],
            "port": 40_000,
        }
        results[rank] = {"shared_memory": {"shm": True, "why": "shm: same boot id"}}
    for leader in leaders:
        others = [str(other) for other in leaders if other != leader]
        results[leader]["reached"] = {o: {"outcome": "open", "clock_s": 0.0, "error_s": 1e-4} for o in others}
        results[leader]["links"] = {o: {"round_trip_s": 1e-4, "bits_per_s": RATE} for o in others}
    return Results(hosts * per_host, 30.0, infos, results)


def found(results):
    return [(finding.check, finding.severity, finding.ranks) for finding in Report(results).findings]


@pytest.mark.parametrize("hosts", [1, 2, 3, 8])
def test_healthy_hosts_have_no_findings_and_fit_a_terminal(hosts, capsys):
    report = Report(healthy(hosts))
    assert (report.findings, report.status) == ([], 0)
    report.show()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == f"no problems: {hosts} host{'s' * (hosts > 1)}, {2 * hosts} ranks"


def throttle(results, slow, factor=0.1, sends=True, receives=False):
    for rank, result in results.results.items():
        for other, link in result.get("links", {}).items():
            if (sends and rank == slow) or (receives and int(other) == slow):
                link["bits_per_s"] *= factor


@pytest.mark.parametrize(
    ("hosts", "ends"), [(3, (True, False)), (3, (False, True)), (8, (True, False)), (8, (True, True))]
)
def test_a_slow_cable_is_the_host_s(hosts, ends):
    results = healthy(hosts)
    throttle(results, 2, sends=ends[0], receives=ends[1])
    assert found(results) == [("slow link", "problem", (2,))] * sum(ends)


def test_of_two_hosts_the_slow_direction_is_named():
    results = healthy(2)
    throttle(results, 0)
    assert found(results) == [("slow link", "problem", (0, 2))]


def test_a_slow_way_between_two_hosts_is_no_cable():
    results = healthy(4)
    results.results[2]["links"]["6"]["bits_per_s"] = RATE / 10
    assert found(results) == [("slow link", "problem", (2, 6))]


@pytest.mark.parametrize("outcome", ["refused", "no answer", "no route"])
@pytest.mark.parametrize(("source", "target", "severity"), [(2, 0, "problem"), (0, 2, "note")])
def test_a_blocked_port_matters_in_the_direction_that_is_used(outcome, source, target, severity):
    results = healthy(2)
    results.results[source]["reached"][str(target)] = {"outcome": outcome}
    assert found(results) == [("port", severity, (source, target))]


def test_other_faults():
    def version(what, value):
        return lambda r: r.infos[3]["versions"].update({what: value})

    def setting(name):
        return lambda r: r.infos[3]["settings"].update({name: "9"})

    faults = (
        (version("ringdp", "1.1"), ("versions", "problem", ())),
        (version("torch", "2.14.1"), ("versions", "problem", ())),
        (version("Python", "3.12.0"), ("versions", "note", ())),
        (setting("RINGDP_WIRE"), ("settings", "problem", ())),
        (setting("RINGDP_LATE_MS"), None),
        (setting("RINGDP_DIRECT_BYTES"), None),
        (lambda r: r.infos[2].update(address="10.0.0.1"), ("address", "problem", (0, 2))),
        (
            lambda r: r.infos[2]["interfaces"].append({"name": "ib0", "address": "10.1.0.2", "megabits": 200_000}),
            ("interface", "note", (2,)),
        ),
        (lambda r: r.results[0]["reached"]["2"].update(clock_s=-5.0), ("clock", "note", (2,))),
        (
            lambda r: r.results[2]["shared_memory"].update(shm=False, why="tcp: no memfd"),
            ("shared memory", "problem", (2, 3)),
        ),
        (
            lambda r: r.results[0]["links"].update({"2": {"error": "Mismatch: settings differ"}}),
            ("link", "problem", (0, 2)),
        ),
        (lambda r: (r.infos.pop(3), r.results.pop(3)), ("missing", "problem", (3,))),
        (lambda r: r.results.pop(3), ("silent", "problem", (3,))),
    )
    for plant, expected in faults:
        results = healthy(2)
        plant(results)
        assert found(results) == ([expected] if expected else []), expected


@pytest.mark.parametrize("size", range(1, 10))
def test_every_pair_meets_once_and_no_member_is_in_two_pairs_of_a_round(size):
    members = [3 * number for number in range(size)]
    found = rounds(members)
    assert sorted(pair for pairs in found for pair in pairs) == list(combinations(members, 2))
    for pairs in found:
        taken = [member for pair in pairs for member in pair]
        assert len(taken) == len(set(taken))
    assert len(found) <= size
