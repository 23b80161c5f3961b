"""Reports of ranks as a perfect machine would give them."""

from __future__ import annotations

HELD = {"parameters": 4_000_000, "gradients": 4_000_000, "state": 8_000_000, "saved": 9_000_000, "batch": 1_000_000}
SIZES = {**HELD, "two_units": 1_000_000}
BUCKETS, READY = [1_000_000, 3_000_000], [0.4, 1.0]


def report(ranks: int, between_hosts: bool = True, rate: float = 100e6, alpha: float = 1e-3) -> dict:
    """One rank's report: forward 10 ms, backward 20 ms, optimizer 5 ms; a link of `rate`; nothing else costs."""

    def carried(size: float) -> float:
        return alpha + (2 * (ranks - 1) / ranks * size if between_hosts else size) / rate

    first_ends = 0.4 * 0.020 + carried(BUCKETS[0])
    exposed = max(first_ends, 0.020) + carried(BUCKETS[1]) - 0.020
    return {
        "base": 100_000_000,
        "peak": 100_000_000 + sum(HELD.values()),
        "collectives": [[size, carried(size), 0.0] for size in (4096, 1 << 20, 16 << 20)],
        "forward": [0.010, 0.010],
        "backward": [0.020, 0.020],
        "optimizer": [0.005, 0.005],
        "step": [0.035 + exposed] * 2,
        "ready": [READY, READY],
        "buckets": BUCKETS,
        "sizes": SIZES,
    }
