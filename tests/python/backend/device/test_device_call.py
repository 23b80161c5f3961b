"""A call is ordered by streams on both sides, the host waits for nothing, and nothing is captured into a graph."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import HERE

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fake import error_of, here


def behind_slow_work(library: str) -> tuple[bool, list[float]]:
    """On a rank: the input is written by a job that is still held while the collective is called and waited for."""
    fake = here(library)
    tensor = fake.put(torch.zeros(1000))
    fake.hold()
    tensor.fill_(HERE.rank + 1)
    work = dist.all_reduce(tensor, group=fake.group, async_op=True)
    work.wait()
    early = work.is_completed()
    dist.barrier()  # nobody's stream has moved
    fake.go()
    return early, tensor.cpu()[[0, -1]].tolist()


def before_slow_peer(library: str) -> tuple[bool, float]:
    """On a rank: what is queued after wait() sees the sum, though rank 0 gives its part only once that is queued."""
    fake = here(library)
    tensor, seen = fake.put(torch.full((1000,), 7.0)), fake.put(torch.zeros(1000))
    if HERE.rank == 0:
        fake.hold()
    dist.all_reduce(tensor, group=fake.group, async_op=True).wait()
    seen.copy_(tensor, non_blocking=True)
    waits = not fake.is_idle()
    dist.barrier()
    if HERE.rank == 0:
        fake.go()
    return waits, float(seen.cpu()[0])


def in_order_with_the_cpu(library: str) -> list[float]:
    """On a rank: collectives of one group keep the order of the calls, wherever their tensors lie."""
    fake = here(library)
    sums = []
    for step in range(5):
        device, host = fake.put(torch.full((10,), float(step))), torch.full((10,), 100.0 + step)
        if HERE.rank == step % HERE.size:
            fake.hold()
        works = [dist.all_reduce(tensor, group=fake.group, async_op=True) for tensor in (device, host)]
        if HERE.rank == step % HERE.size:
            fake.go()
        works[1].wait()
        works[0].wait()
        sums += [float(device.cpu()[0]), float(host[0])]
    return sums


def captured(library: str) -> tuple[str, float]:
    """On a rank: refused while the stream is being captured; nothing has moved, and the group goes on."""
    fake = here(library)
    tensor = fake.put(torch.ones(4))
    with fake.capturing():
        error = error_of(lambda: dist.all_reduce(tensor, group=fake.group))
    dist.all_reduce(tensor, group=fake.group)
    return error, float(tensor.cpu()[0])


def test_inputs_are_those_of_the_callers_stream(pair, fake_device):
    assert pair.run(behind_slow_work, fake_device) == [(False, [3.0, 3.0])] * 2


def test_the_callers_stream_goes_on_behind_the_results(pair, fake_device):
    assert pair.run(before_slow_peer, fake_device) == [(True, 14.0)] * 2


def test_a_group_keeps_the_order_of_calls(pair, fake_device):
    wanted = [2.0 * value for step in range(5) for value in (step, 100 + step)]
    assert pair.run(in_order_with_the_cpu, fake_device) == [wanted] * 2


def test_a_captured_stream_is_refused(pair, fake_device):
    for error, total in pair.run(captured, fake_device):
        assert error.startswith("InvalidArgument: the current stream of privateuseone:0 is being captured")
        assert total == 2.0
