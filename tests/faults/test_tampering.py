"""Whatever changes in live TCP connections, no rank gets a wrong number, and nobody waits beyond the deadline."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta

import pytest
import torch.distributed as dist
from calls import KNOWN, broadcast, gathered, moved, reduced, scattered, sent
from ranks import HERE, World, job_store
from tampering import Change, LedAstray, Tampering

TIMEOUT_S = 4.0

# Lives in `make test`, and in `make test-all`.
FEW, MANY = 12, 1000


def live(prefix: str, ports: dict[int, int]) -> float:
    """On a rank: a new group through these ports, and calls of many kinds whose results are known.

    Raises what a call raises, AssertionError on a wrong number. The seconds that the longest call took.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    store = dist.PrefixStore(prefix, job_store())
    timeout = timedelta(seconds=TIMEOUT_S)
    led_astray = LedAstray(store, ports)
    dist.init_process_group("ringdp", store=led_astray, rank=HERE.rank, world_size=HERE.size, timeout=timeout)
    longest = 0.0
    for call in (reduced, gathered, moved, scattered, sent, broadcast):
        for elements in (3, 2500):
            begin = time.monotonic()
            try:
                call(elements)
            finally:
                longest = max(longest, time.monotonic() - begin)
                _longest[0] = longest
    dist.destroy_process_group()
    return longest


_longest = [0.0]  # of this rank's latest life


def longest_call() -> float:
    """On a rank: of its latest life."""
    return _longest[0]


def verdict(man: Tampering, change: Change) -> str:
    """One life of all ranks with this change: "right", "named", "not met", or what is wrong."""
    prefix = man.begin_life(change)
    outcomes = man.world.attempt(live, prefix, man.ports, within=6 * TIMEOUT_S)
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if max(man.world.run(longest_call)) > 2 * TIMEOUT_S:
        return f"waited beyond the deadline: {errors}"
    for error in errors:
        kind = error.removeprefix("DistBackendError: ").split(":")[0]
        if kind not in KNOWN:
            return error
    if not man.applied:
        return "not met"  # also where the ranks did not meet in time, which is said by name
    return "named" if errors else "right"


def lives(ranks: int, count: int, first_seed: int = 0) -> Counter[str]:
    """How many of so many lives came to which verdict; a bad one is printed with its change, which its seed repeats."""
    counts: Counter[str] = Counter()
    with World(ranks, transport="tcp") as world, Tampering(world) as man:
        world.run(live, man.begin_life(None), man.ports)
        traffic = man.traffic()
        for seed in range(first_seed, first_seed + count):
            change = Change.drawn(seed, traffic)
            found = verdict(man, change)
            counts[found] += 1
            if found not in ("right", "named", "not met"):
                print(f"{change}: {found}")
    return counts


def test_a_change_on_the_wire_is_never_silent():
    counts = lives(2, FEW)
    assert counts["named"] >= FEW // 2 and set(counts) <= {"right", "named", "not met"}, counts


@pytest.mark.long
def test_a_thousand_changes():
    counts = lives(4, MANY)
    print(dict(counts))
    assert counts["named"] >= MANY // 2 and set(counts) <= {"right", "named", "not met"}, counts
