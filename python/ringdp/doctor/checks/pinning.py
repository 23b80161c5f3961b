"""More threads than cores, or ranks pinned to the same few cores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ringdp.attach.finding import Finding
from ringdp.doctor.evidence import Evidence

_WHY = "threads that take turns on a core are slower than one thread, and ranks wait for whichever was not running"


def check(evidence: Evidence) -> Iterator[Finding]:
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
            f"{len(places)} ranks on {host} have {threads} threads between them for {len(cores)} cores",
            _WHY,
            f"OMP_NUM_THREADS={max(1, len(cores) // len(places))} before the job, or torch.set_num_threads(); "
            "count loader workers too",
            tuple(places),
            numbers=numbers,
        )
    elif len(cores) < min(len(places), next(iter(places.values()))["host_cores"]):
        yield Finding(
            "pinning",
            f"{len(places)} ranks on {host} are pinned to {len(cores)} of its "
            f"{next(iter(places.values()))['host_cores']} cores: {_listed(cores)}",
            _WHY,
            "give each rank cores of its own: taskset or numactl by LOCAL_RANK, or drop the binding",
            tuple(places),
            numbers=numbers,
        )


def _listed(cores: set[int]) -> str:
    shown = sorted(cores)
    return ", ".join(map(str, shown[:8])) + (", ..." if len(shown) > 8 else "")
