"""The all_reduce plans that can be shown: how each is asked for, and what is worth knowing about it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ringdp import _native

FLOAT = 4
Plan = dict[str, Any]


@dataclass(frozen=True)
class Scheme:
    """One way to all-reduce. name: as on the command line; asks: arguments of the recorder in addition to the sizes.

    chunk_bytes: the smallest piece that it cuts a tensor into. pipelined: whether chunks travel one by one; else the
    pieces of a rank travel whole, as those of small tensors do. on_hosts: whether ranks are on hosts of two.
    """

    name: str
    title: str
    note: str
    algorithm: str
    asks: dict[str, Any] = field(default_factory=dict)
    chunk_bytes: int = FLOAT
    pipelined: bool = False
    on_hosts: bool = False


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme(
            "ring/rotated",
            "ring, rotated (the textbook's)",
            "Chunk c starts at rank c. N-1 rounds of sums, then N-1 rounds that spread the results; "
            "after the sums rank r owns slice (r + 1) mod N.",
            "ring",
            {"order": "rotated"},
        ),
        Scheme(
            "ring",
            "ring, rank order",
            "Every chunk starts at rank 0, is summed on its way to rank N-1, then goes round once: "
            "the sum is ((g0 + g1) + g2) + ... for every chunk.",
            "ring",
            pipelined=True,
        ),
        Scheme(
            "direct",
            "direct",
            "Slice r of every rank goes raw to rank r, which sums in rank order and sends the result to all: 2 rounds.",
            "direct",
        ),
        Scheme(
            "exchange",
            "exchange",
            "Far hosts and few bytes: everybody sends everything to everybody, and each sums in rank order. 1 round.",
            "exchange",
        ),
        Scheme(
            "arena/one-shot",
            "arena, one shot",
            "One host, small tensors: all copy their tensors into shared memory, and each sums them all. One barrier.",
            "arena",
        ),
        Scheme(
            "arena",
            "arena, in stages",
            "One host, ordinary tensors: slices go into shared memory, their owners sum them, all copy results.",
            "arena",
            {"one_shot_bytes": 0},
        ),
        Scheme(
            "arena/one-pass",
            "arena, one pass",
            "One host, shared tensors: rank r reads slice r of all ranks where it lies and writes the sum to all.",
            "arena",
            {"in_heaps": True},
            chunk_bytes=128,
        ),
        Scheme(
            "hierarchy",
            "hierarchy (hosts of two ranks)",
            "Memory inside a host, links between hosts: each host adds its ranks to the sum of the hosts before it.",
            "hierarchy",
            on_hosts=True,
        ),
        Scheme(
            "tree",
            "binary tree",
            "Sums go up the tree to rank 0 and the result comes down; few rounds, so for small messages.",
            "tree",
        ),
        Scheme(
            "server",
            "parameter server",
            "Everybody sends everything to rank 0, which sums and sends it back: the baseline that rings replaced.",
            "server",
        ),
    )
}


def hosts_of(scheme: Scheme, ranks: int) -> list[int]:
    """The first rank of every host."""
    return list(range(0, ranks, 2)) if scheme.on_hosts else [0]


def record(scheme: Scheme, ranks: int, chunks: int) -> list[Plan]:
    """The plans of all ranks for a float32 tensor of `chunks` chunks, as the recorder prints them."""
    core = _native.load()
    return [
        json.loads(
            core.plan_json(
                "all_reduce",
                scheme.algorithm,
                rank=rank,
                world=ranks,
                count=chunks * scheme.chunk_bytes // FLOAT,
                hosts=hosts_of(scheme, ranks) if scheme.on_hosts else [],
                **({"segment_bytes": scheme.chunk_bytes} if scheme.pipelined else {}),
                **scheme.asks,
            )
        )
        for rank in range(ranks)
    ]
