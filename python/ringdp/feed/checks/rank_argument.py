"""A DistributedSampler that was given another rank, or another number of ranks, than the job has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ringdp.attach.finding import Finding
from ringdp.feed.draws import Feed

_WHY = "ranks that share a sampler's rank draw the same share, and the share of the rank that is missing is never drawn"
_FIX = "DistributedSampler(dataset) takes both from the process group; in a group of their own, both from that group"


def check(feed: Feed) -> Iterator[Finding]:
    """Both are known before the first step. Ranks that are permuted draw disjoint shares all the same."""
    if None in feed.fact("replicas"):
        return
    wrong = tuple(rank for rank, facts in feed.facts.items() if facts["replicas"] != feed.world)
    if wrong:
        given = sorted(feed.fact("replicas"))
        seen = f"{feed.name}: a DistributedSampler for {given[0]} ranks in a job of {feed.world}"
        yield Finding("wrong rank", seen, _WHY, _FIX, wrong, numbers={"replicas": given, "world": feed.world})
        return
    given = {rank: facts["sampler_rank"] for rank, facts in feed.facts.items()}
    shared = {value for value, count in Counter(given.values()).items() if count > 1}
    if shared:
        ranks = tuple(rank for rank, value in given.items() if value in shared)
        said = ", ".join(f"rank {rank} has rank={given[rank]}" for rank in ranks[:4])
        seen = f"{feed.name}: DistributedSamplers of several ranks have the same rank: {said}"
        yield Finding("wrong rank", seen, _WHY, _FIX, ranks, numbers={"given": list(given.values())})
