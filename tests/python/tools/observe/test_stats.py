"""What groups have counted."""

from __future__ import annotations

import contextlib
import time


def work():
    import ringdp
    import torch
    import torch.distributed as dist

    for number in range(5):
        if dist.get_rank() == 1 and number < 4:
            time.sleep(0.1)
        dist.all_reduce(torch.ones(1000))
    return ringdp.stats()


def fail():
    import ringdp
    import torch
    import torch.distributed as dist

    with contextlib.suppress(dist.DistBackendError):
        dist.all_reduce(torch.ones(3 + dist.get_rank()))
    return ringdp.stats()["groups"]


def nothing():
    import ringdp

    return ringdp.stats()


def test_groups_counters_delays_and_errors(run_on_fresh_ranks):
    world = run_on_fresh_ranks(2)
    assert world.run(nothing)[0]["groups"] == []
    world.join()
    for rank, found in enumerate(world.run(work)):
        (group,) = found["groups"]
        assert (group["rank"], group["world"], group["error"]) == (rank, 2, None)
        assert group["submitted"] == group["counters"]["collectives"] >= 5
        assert len(group["delays"]) == 2 and group["delays"][1] > group["delays"][0]
        assert found["trace"]["written"] >= 4 * 5 and found["trace"]["lost"] == 0
        assert found["trace"]["kept"] == 16384
    for (group,) in world.run(fail):
        assert "Mismatch" in group["error"] or "ranks disagree" in group["error"]
