"""Groups and receives do not hold each other up, and memory stays until the device is done with it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import HERE

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fake import here


def crossed(library: str) -> list[float]:
    """On a rank: two groups on two streams, called in opposite orders; the first is held until all have called."""
    fake = here(library)
    groups = [fake.group, fake.new_group()]
    sums = []
    for step in range(5):
        tensors = [fake.put(torch.full((1000,), float(step + number))) for number in range(2)]
        order = (0, 1) if HERE.rank else (1, 0)
        fake.hold(1 + order[0])
        for number in order:
            with fake.stream(1 + number):
                dist.all_reduce(tensors[number], group=groups[number], async_op=True).wait()
        dist.barrier()
        fake.go(1 + order[0])
        for number in range(2):
            fake.synchronize(1 + number)
        sums += [float(tensor.cpu()[0]) for tensor in tensors]
    dist.destroy_process_group(groups[1])
    return sums


def early_receive(library: str) -> list[float]:
    """On a rank: a receive whose send comes after a collective delays neither that nor another receive."""
    fake = here(library)
    came, other, total = (fake.put(torch.zeros(8)) for _ in range(3))
    if HERE.rank == 0:
        works = [dist.irecv(came, 1, group=fake.group), dist.irecv(other, 2, group=fake.group)]
    dist.all_reduce(total.fill_(HERE.rank), group=fake.group)
    sums = [float(total.cpu()[0])]
    if HERE.rank == 0:
        works[1].wait()
        sums.append(float(other.cpu()[0]))
        dist.send(other, 1, group=fake.group)
        works[0].wait()
        sums.append(float(came.cpu()[0]))
    elif HERE.rank == 2:
        dist.send(total.fill_(20), 0, group=fake.group)
    else:
        dist.recv(other, 0, group=fake.group)
        dist.send(other.fill_(10), 0, group=fake.group)
    dist.barrier()
    return sums


def overtaken(library: str) -> list[float]:
    """On a rank: results lie in pinned memory, their works gone, while later calls want memory of that size."""
    fake = here(library)
    tensors = [fake.put(torch.full((1000,), step if HERE.rank == 0 else 0.0)) for step in (1.0, 2.0, 3.0)]
    fake.hold()
    for tensor in tensors:
        if HERE.rank == 0:
            fake.go()
        dist.broadcast(tensor, 0, group=fake.group, async_op=True)
        dist.barrier(group=fake.group)  # of the host: the broadcast before it is over there
        if HERE.rank == 0:
            fake.hold()
    fake.go()
    dist.all_reduce(fake.put(torch.ones(1)), group=fake.group)
    return [float(tensor.cpu()[0]) for tensor in tensors]


def let_go(library: str) -> float:
    """On a rank: works and tensors that are let go at once, while the stream has not come to them."""
    fake = here(library)
    last = fake.put(torch.ones(10))
    fake.hold()
    for _ in range(20):
        dist.all_reduce(fake_copy(last), group=fake.group, async_op=True)
    work = dist.all_reduce(last, group=fake.group, async_op=True)
    fake.go()
    work.wait()
    return float(last.cpu()[0])


def fake_copy(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor).copy_(tensor, non_blocking=True)


def test_two_groups_called_in_opposite_orders(pair, fake_device):
    assert pair.run(crossed, fake_device) == [[2.0 * (step + number) for step in range(5) for number in range(2)]] * 2


def test_a_receive_delays_nobody_else(trio, fake_device):
    assert trio.run(early_receive, fake_device) == [[3.0, 20.0, 10.0], [3.0], [3.0]]


def test_pinned_memory_is_not_used_again_before_the_device_has_read_it(pair, fake_device):
    assert pair.run(overtaken, fake_device) == [[1.0, 2.0, 3.0]] * 2


def test_what_is_let_go_early_disturbs_nobody(pair, fake_device):
    assert pair.run(let_go, fake_device) == [2.0] * 2
