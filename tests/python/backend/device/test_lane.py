"""Groups and receives do not hold each other up, and memory stays until the device is done with it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from ranks import HERE
from stand_in import TYPE, here


def crossed(library: str) -> list[float]:
    """On a rank: two groups on two streams, called in opposite orders; the first is held until all have called."""
    gpu = here(library)
    groups = [gpu.group, gpu.new_group()]
    sums = []
    for step in range(5):
        tensors = [gpu.put(torch.full((1000,), float(step + number))) for number in range(2)]
        order = (0, 1) if HERE.rank else (1, 0)
        gpu.hold(1 + order[0])
        for number in order:
            with gpu.stream(1 + number):
                dist.all_reduce(tensors[number], group=groups[number], async_op=True).wait()
        dist.barrier()
        gpu.go(1 + order[0])
        for number in range(2):
            gpu.synchronize(1 + number)
        sums += [float(tensor.cpu()[0]) for tensor in tensors]
    dist.destroy_process_group(groups[1])
    return sums


def early_receive(library: str) -> list[float]:
    """On a rank: a receive whose send comes after a collective delays neither that nor another receive."""
    gpu = here(library)
    came, other, total = (gpu.put(torch.zeros(8)) for _ in range(3))
    if HERE.rank == 0:
        works = [dist.irecv(came, 1, group=gpu.group), dist.irecv(other, 2, group=gpu.group)]
    dist.all_reduce(total.fill_(HERE.rank), group=gpu.group)
    sums = [float(total.cpu()[0])]
    if HERE.rank == 0:
        works[1].wait()
        sums.append(float(other.cpu()[0]))
        dist.send(other, 1, group=gpu.group)
        works[0].wait()
        sums.append(float(came.cpu()[0]))
    elif HERE.rank == 2:
        dist.send(total.fill_(20), 0, group=gpu.group)
    else:
        dist.recv(other, 0, group=gpu.group)
        dist.send(other.fill_(10), 0, group=gpu.group)
    dist.barrier()
    return sums


def overtaken(library: str) -> list[float]:
    """On a rank: results lie in pinned memory, their works gone, while later calls want memory of that size."""
    gpu = here(library)
    tensors = [gpu.put(torch.full((1000,), step if HERE.rank == 0 else 0.0)) for step in (1.0, 2.0, 3.0)]
    gpu.hold()
    for tensor in tensors:
        if HERE.rank == 0:
            gpu.go()
        dist.broadcast(tensor, 0, group=gpu.group, async_op=True)
        dist.barrier(group=gpu.group)  # of the host: the broadcast before it is over there
        if HERE.rank == 0:
            gpu.hold()
    gpu.go()
    dist.all_reduce(gpu.put(torch.ones(1)), group=gpu.group)
    return [float(tensor.cpu()[0]) for tensor in tensors]


def let_go(library: str) -> float:
    """On a rank: works and tensors that are let go at once, while the stream has not come to them."""
    gpu = here(library)
    last = gpu.put(torch.ones(10))
    gpu.hold()
    for _ in range(20):
        dist.all_reduce(copied(last), group=gpu.group, async_op=True)
    work = dist.all_reduce(last, group=gpu.group, async_op=True)
    gpu.go()
    work.wait()
    return float(last.cpu()[0])


def on_two_devices(library: str) -> list[float]:
    """On a rank: tensors of a device that is not the current one, whose stream is held, and of the current one."""
    gpu = here(library)
    tensors = [torch.full((1000,), 1.0 + index).to(f"{TYPE}:{index}") for index in range(2)]
    with gpu.device(1):
        gpu.hold()
    works = [dist.all_reduce(tensor, group=gpu.group, async_op=True) for tensor in tensors]
    works[0].wait()
    with gpu.device(1):
        gpu.go()
    works[1].wait()
    return [float(tensor.cpu()[0]) for tensor in tensors]


def copied(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor).copy_(tensor, non_blocking=True)


def test_two_groups_called_in_opposite_orders(pair, stand_in):
    assert pair.run(crossed, stand_in) == [[2.0 * (step + number) for step in range(5) for number in range(2)]] * 2


def test_a_receive_delays_nobody_else(trio, stand_in):
    assert trio.run(early_receive, stand_in) == [[3.0, 20.0, 10.0], [3.0], [3.0]]


def test_pinned_memory_is_not_used_again_before_the_device_has_read_it(pair, stand_in):
    assert pair.run(overtaken, stand_in) == [[1.0, 2.0, 3.0]] * 2


def test_what_is_let_go_early_disturbs_nobody(pair, stand_in):
    assert pair.run(let_go, stand_in) == [2.0] * 2


def test_devices_have_lanes_of_their_own(pair, stand_in):
    assert pair.run(on_two_devices, stand_in) == [[2.0, 4.0]] * 2
