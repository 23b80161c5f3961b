"""c10d's allocation interface, as FSDP2 and others call it."""

from __future__ import annotations

import torch
import torch.distributed as dist


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
    try:
        backend().allocate_tensor(size, dtype=torch.float32, device=torch.device(device))
    except dist.DistBackendError as error:
        return str(error)
    return ""


def test_other_devices_and_negative_sizes_are_refused_by_name(pair):
    assert all("shares CPU memory only" in said for said in pair.run(refused, 5, "meta"))
    assert all("-1 elements" in said for said in pair.run(refused, -1, "cpu"))


def test_a_full_heap_says_what_was_asked_for(world_of):
    for said in world_of(2, heap_bytes=1 << 20).run(refused, 1 << 20, "cpu"):
        assert str(4 << 20) in said and "heap_bytes" in said
