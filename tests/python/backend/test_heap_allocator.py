"""Storages in shared memory: resized, reused, and longer-lived than their group."""

from __future__ import annotations

import ringdp
import torch
import torch.distributed as dist


def reused() -> bool:
    """On a rank: whether freed memory is what the next tensor of the size gets."""
    first = ringdp.empty(1000)
    place = first.data_ptr()
    del first
    return ringdp.empty(1000).data_ptr() == place


def test_freed_memory_is_taken_again(pair):
    assert pair.run(reused) == [True, True]


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


def traffic() -> int:
    """Bytes read and written in memory by this rank's collectives."""
    counters = dist.group.WORLD._get_backend(torch.device("cpu")).counters()
    return counters["memory_bytes_read"] + counters["memory_bytes_written"]


def test_storages_are_resized_inside_shared_memory(run_on_fresh_ranks):
    world = run_on_fresh_ranks(4)
    world.join()
    for kept, empty, summed, moved in world.run(resized):
        assert (kept, empty, summed) == (True, 0, True)
        assert abs(moved - 2 * 400_000) < 4096, "slots were used"


def outlives() -> list[object]:
    """On a rank: a tensor after its group is gone, and what resizing an emptied one says then."""
    tensor, emptied = ringdp.empty(1000).fill_(3), ringdp.empty(10)
    emptied.untyped_storage().resize_(0)
    dist.destroy_process_group()
    alive = float(tensor.sum())
    del tensor
    try:
        emptied.untyped_storage().resize_(40)
    except RuntimeError as error:
        return [alive, str(error)]
    return [alive, ""]


def test_a_tensor_outlives_its_group(run_on_fresh_ranks):
    world = run_on_fresh_ranks(2)
    world.join()
    for alive, message in world.run(outlives):
        assert alive == 3000.0
        assert "gone with its process group" in message
