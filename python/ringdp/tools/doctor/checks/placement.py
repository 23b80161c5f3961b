"""Where ranks run: more threads than cores, ranks pinned to the same few cores, ranks of one host that use TCP."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ringdp.text.units import agreeing, counted, names
from ringdp.tools.attach.finding import Finding
from ringdp.tools.doctor.evidence import Evidence

_CROWDED = "threads that take turns on a core are slower than one thread, and ranks wait for whichever was not running"


def check_pinning(evidence: Evidence) -> Iterator[Finding]:
    """Host by host."""
    hosts: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for rank, records in evidence.ranks.items():
        for row in records.of("place")[:1]:
            hosts[row["host"]][rank] = row
    for host, places in hosts.items():
        yield from _on_host(host, places)


def _on_host(host: str, places: dict[int, dict[str, Any]]) -> Iterator[Finding]:
    cores = set().union(*(place["cores"] for place in places.values()))
    threads = sum(place["threads"] for place in places.values())
    most = max(place["threads"] for place in places.values())
    numbers = {"host": host, "ranks": len(places), "threads": threads, "cores": len(cores)}
    if most > 1 and threads > len(cores):
        yield Finding(
            "threads",
            f"{counted(len(places), 'rank')} on {host} {agreeing(places, 'has', 'have')} {threads} threads for "
            f"{counted(len(cores), 'core')}",
            _CROWDED,
            f"OMP_NUM_THREADS={max(1, len(cores) // len(places))} before the job, or torch.set_num_threads(); "
            "count loader workers too",
            tuple(places),
            numbers=numbers,
        )
    elif len(cores) < min(len(places), next(iter(places.values()))["host_cores"]):
        yield Finding(
            "pinning",
            f"{counted(len(places), 'rank')} on {host} {agreeing(places, 'is', 'are')} pinned to {len(cores)} of its "
            f"{next(iter(places.values()))['host_cores']} cores: {_listed(cores)}",
            _CROWDED,
            "give each rank cores of its own: taskset or numactl by LOCAL_RANK, or drop the binding",
            tuple(places),
            numbers=numbers,
        )


def _listed(cores: set[int]) -> str:
    shown = sorted(cores)
    return ", ".join(map(str, shown[:8])) + (", ..." if len(shown) > 8 else "")


def check_topology(evidence: Evidence) -> Iterator[Finding]:
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


def topology_not_judged(evidence: Evidence) -> Iterator[str]:
    """Other backends do not say how they reach a peer."""
    places = [row for records in evidence.ranks.values() for row in records.of("place")[:1]]
    if evidence.complete and not places:
        yield "topology: that takes 2 steps; give more --steps"
    elif evidence.complete and not any(row["paths"] for row in places):
        yield "topology: the job's backend does not say how ranks reach one another (ringdp's does)"
