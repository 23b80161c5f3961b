"""Ranks of one host that talk over TCP though they could share memory: the backend says why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ringdp.attach.finding import Finding, names
from ringdp.doctor.evidence import Evidence


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per host and reason."""
    hosts = {rank: row["host"] for rank, records in evidence.ranks.items() for row in records.of("place")[:1]}
    apart: dict[tuple[str, str], set[int]] = defaultdict(set)
    for rank, records in evidence.ranks.items():
        for path in (path for row in records.of("place")[:1] for path in row["paths"]):
            same = hosts.get(path["peer"]) == hosts[rank] and "two hosts" not in path["why"]  # hosts of equal names
            if same and path["why"].startswith("tcp"):
                apart[hosts[rank], path["why"]] |= {rank, path["peer"]}
    for (host, why), ranks in apart.items():
        yield Finding(
            "topology",
            f"{names(ranks)} are on {host} and do not share memory: {why}",
            "bytes go through the kernel's sockets and are copied several times, where one pass over memory would do",
            "run them without RINGDP_TRANSPORT=tcp, in one network namespace (one container, or --network=host), and "
            "as one user",
            tuple(sorted(ranks)),
            numbers={"host": host, "why": why},
        )


def not_judged(evidence: Evidence) -> Iterator[str]:
    """Other backends do not say how they reach a peer."""
    places = [row for records in evidence.ranks.values() for row in records.of("place")[:1]]
    if evidence.complete and not places:
        yield "topology: that takes 2 steps; give more --steps"
    elif evidence.complete and not any(row["paths"] for row in places):
        yield "topology: the job's backend does not say how ranks reach one another (ringdp's does)"
