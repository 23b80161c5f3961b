"""What torch.profiler sees: a named op per collective, and record_param_comms with its sizes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from ranks import HERE
from torch.profiler import ProfilerActivity, profile

TITLES = [
    "ringdp:all_reduce",
    "ringdp:broadcast",
    "ringdp:all_gather",
    "ringdp:_all_gather_base",
    "ringdp:reduce_scatter",
    "ringdp:_reduce_scatter_base",
    "ringdp:barrier",
]


def profiled() -> tuple[dict[str, int], float]:
    """On a rank: every collective once; how often each event was seen, and how long all_reduce took."""
    parts = [torch.ones(4) for _ in range(HERE.size)]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as result:
        dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(4), 0)
        dist.all_gather(parts, torch.ones(4))
        dist.all_gather_into_tensor(torch.ones(4 * HERE.size), torch.ones(4))
        dist.reduce_scatter(torch.ones(4), parts)
        dist.reduce_scatter_tensor(torch.ones(4), torch.ones(4 * HERE.size))
        dist.barrier()
    events = {event.key: event for event in result.key_averages()}
    return {key: event.count for key, event in events.items()}, events["ringdp:all_reduce"].cpu_time_total


def unprofiled() -> float:
    """On a rank: nothing is recorded for nobody."""
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return float(tensor[0])


def test_the_profiler_sees_every_collective(pair):
    for counts, microseconds in pair.run(profiled):
        assert {title: counts.get(title, 0) for title in TITLES} == dict.fromkeys(TITLES, 1)
        assert counts.get("record_param_comms", 0) >= len(TITLES)
        assert microseconds > 0


def test_collectives_work_without_a_profiler(pair):
    assert pair.run(unprofiled) == [2.0, 2.0]
