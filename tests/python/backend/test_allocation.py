"""Tensors in shared memory: allocated by name, in a scope, from the heap."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import HERE, error_of, on_ranks, values_of


def backend() -> object:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def supported() -> list[bool]:
    """On a rank: which devices' memory is shared."""
    return [backend().supports_tensor_alloc(torch.device(name)) for name in ("cpu", "cuda:0")]


def test_cpu_memory_is_shared_where_the_transport_shares_it(trio):
    assert trio.run(supported) == [[shared, False] for shared in trio.run(is_shared)]


def is_shared() -> bool:
    """On a rank: whether its peers are connected by shared memory."""
    return "tcp" not in backend().describe()


def refused(size: int, device: str) -> str:
    """On a rank: why allocate_tensor refuses."""
    return error_of(lambda: backend().allocate_tensor(size, dtype=torch.float32, device=torch.device(device)))


def test_other_devices_and_negative_sizes_are_refused_by_name(pair):
    assert all("shares CPU memory only" in said for said in pair.run(refused, 5, "meta"))
    assert all("-1 elements" in said for said in pair.run(refused, -1, "cpu"))


def test_a_full_heap_says_what_was_asked_for(world_of):
    for said in world_of(2, heap_bytes=1 << 20).run(refused, 1 << 20, "cpu"):
        assert str(4 << 20) in said and "heap_bytes" in said


def traffic() -> int:
    """Bytes read and written in memory by this rank's collectives."""
    counters = dist.group.WORLD._get_backend(torch.device("cpu")).counters()
    return counters["memory_bytes_read"] + counters["memory_bytes_written"]


@on_ranks(2)
def test_a_scope_puts_what_torch_makes_into_shared_memory() -> None:
    """Where tensors made inside, outside, in another thread and after a scope lie, and what sums say."""
    before = traffic()
    with ringdp.in_shared_memory():
        model = torch.nn.Linear(300, 300)
        with ringdp.in_shared_memory():
            inner = torch.full((100_000,), 1.0)
        small = torch.ones(10)
        with ThreadPoolExecutor(1) as pool:
            elsewhere = pool.submit(torch.ones, 100_000).result()
    outside = torch.ones(100_000)
    moved = {}
    for name, tensor in {"weight": model.weight.data, "inner": inner, "thread": elsewhere, "outside": outside}.items():
        before = traffic()
        dist.all_reduce(tensor)
        moved[name] = (traffic() - before) / tensor.nbytes
    inner.untyped_storage().resize_(800_000)
    assert moved["weight"] == pytest.approx(2, rel=0.01)
    assert moved["inner"] == pytest.approx(2, rel=0.01)
    assert moved["thread"] > 2.5
    assert moved["outside"] > 2.5
    assert (inner[0], small.sum(), inner.untyped_storage().nbytes()) == (2.0, 10.0, 800_000)


@on_ranks(2, True)
def test_a_scope_gives_raw_blocks_too() -> bool:
    """A convolution, which asks for blocks without tensors, inside of a scope and outside."""
    source = torch.Generator().manual_seed(3)
    layer, x = torch.nn.Conv2d(8, 16, 3), torch.randn(4, 8, 32, 32, generator=source)

    def gradient() -> torch.Tensor:
        layer.zero_grad()
        layer(x).square().sum().backward()
        return layer.weight.grad.clone()

    with ringdp.in_shared_memory():
        inside = gradient()
    return bool((inside == gradient()).all())


@on_ranks(2, heap_bytes=0)
def test_a_scope_is_refused_where_there_is_no_shared_memory() -> None:
    """The refusal, and that nothing is left of the scope."""
    with pytest.raises(dist.DistBackendError, match="heap_bytes is 0"), ringdp.in_shared_memory():
        torch.ones(100_000)
    with ringdp.in_shared_memory(fallback=True):
        ordinary = torch.ones(100_000)
    assert ordinary.sum() == 100_000


@on_ranks(2, (100_000.0, "100000.0"))
def test_a_child_forked_inside_a_scope_has_ordinary_tensors() -> tuple[float, str]:
    """What a child forked inside a scope can make."""
    with ringdp.in_shared_memory():
        mine = torch.ones(100_000)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, str(float(torch.ones(100_000).sum())).encode())
            os._exit(0)
        os.waitpid(child, 0)
    return float(mine.sum()), os.read(reader, 100).decode()


@on_ranks(2, True)
def test_freed_memory_is_taken_again() -> bool:
    """Whether freed memory is what the next tensor of the size gets."""
    first = ringdp.empty(1000)
    place = first.data_ptr()
    del first
    return ringdp.empty(1000).data_ptr() == place


def resized() -> list[object]:
    """On a rank: grown, emptied, grown again; kept values, and the sum that a collective then gives."""
    tensor = ringdp.empty(1000).copy_(torch.arange(1000.0))
    tensor.resize_(100_000)
    kept = bool((tensor[:1000] == torch.arange(1000.0)).all())
    tensor.untyped_storage().resize_(0)
    empty = tensor.untyped_storage().nbytes()
    tensor.untyped_storage().resize_(400_000)
    tensor.fill_(1)
    before = traffic()
    dist.all_reduce(tensor)
    return [kept, empty, bool((tensor == dist.get_world_size()).all()), traffic() - before]


def test_storages_are_resized_inside_shared_memory(run_on_fresh_ranks):
    world = run_on_fresh_ranks(4)
    world.join()
    for kept, empty, summed, moved in world.run(resized):
        assert (kept, empty, summed) == (True, 0, True)
        assert abs(moved - 2 * 400_000) < 4096, "slots were used"


KEPT: list[torch.Tensor] = []


def keep_a_tensor() -> None:
    """On a rank: one in the heap of its group."""
    KEPT[:] = [ringdp.empty(100_000).fill_(dist.get_rank() + 1)]


def sum_of_kept() -> tuple[float, float]:
    """On a rank: the sum of those tensors, and how often each byte was moved."""
    before = traffic()
    dist.all_reduce(KEPT[0])
    return float(KEPT[0][-1]), (traffic() - before) / KEPT[0].nbytes


def test_the_next_group_adopts_the_memory_of_the_one_before(run_on_fresh_ranks):
    world = run_on_fresh_ranks(3)
    world.join()
    world.run(keep_a_tensor)
    for total in (6.0, 18.0):
        world.leave()
        world.join()
        for value, moved in world.run(sum_of_kept):
            assert value == total and moved == pytest.approx(2, rel=0.01)


def join_without(dead: int) -> None:
    """On a rank: leaves its group and makes another one of the ranks but one."""
    dist.destroy_process_group()
    rank = HERE.rank - (HERE.rank > dead)
    store = dist.PrefixStore("next", dist.TCPStore("127.0.0.1", HERE.port, is_master=False))
    dist.init_process_group("ringdp", store=store, rank=rank, world_size=HERE.size - 1)


@pytest.mark.parametrize("dead", [0, 2])
def test_also_where_the_one_before_has_failed(run_on_fresh_ranks, dead):
    world = run_on_fresh_ranks(3)
    world.join()
    world.run(keep_a_tensor)
    world.kill(dead)
    left = [rank for rank in range(3) if rank != dead]
    failures = world.attempt(sum_of_kept, ranks=left)
    assert all("PeerLost" in str(failure.error) for failure in failures), failures
    values_of(world.attempt(join_without, dead, ranks=left))
    total = sum(rank + 1.0 for rank in left)
    for value, moved in values_of(world.attempt(sum_of_kept, ranks=left)):
        assert value == total and moved == pytest.approx(2, rel=0.01)


def outlives() -> list[object]:
    """On a rank: a tensor after its group is gone, and what resizing an emptied one says then."""
    tensor, emptied = ringdp.empty(1000).fill_(3), ringdp.empty(10)
    emptied.untyped_storage().resize_(0)
    dist.destroy_process_group()
    alive = float(tensor.sum())
    del tensor
    return [alive, error_of(lambda: emptied.untyped_storage().resize_(40))]


def test_a_tensor_outlives_its_group(run_on_fresh_ranks):
    world = run_on_fresh_ranks(2)
    world.join()
    for alive, message in world.run(outlives):
        assert alive == 3000.0
        assert "gone with its process group" in message
