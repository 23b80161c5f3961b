"""ringdp.in_shared_memory: what torch allocates inside lies in a rank's heap, and nothing else does."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import ringdp
import torch
import torch.distributed as dist


def memory_traffic() -> int:
    """Bytes that this rank's collectives have read and written so far."""
    counters = dist.group.WORLD._get_backend(torch.device("cpu")).counters()
    return counters["memory_bytes_read"] + counters["memory_bytes_written"]


def scoped() -> dict[str, object]:
    """On a rank: where tensors made inside, outside, in another thread and after a scope lie, and what sums say."""
    before = memory_traffic()
    with ringdp.in_shared_memory():
        model = torch.nn.Linear(300, 300)
        with ringdp.in_shared_memory():
            inner = torch.full((100_000,), 1.0)
        small = torch.ones(10)
        with ThreadPoolExecutor(1) as pool:
            elsewhere = pool.submit(torch.ones, 100_000).result()
    outside = torch.ones(100_000)
    traffic = {}
    for name, tensor in {"weight": model.weight.data, "inner": inner, "thread": elsewhere, "outside": outside}.items():
        before = memory_traffic()
        dist.all_reduce(tensor)
        traffic[name] = (memory_traffic() - before) / tensor.nbytes
    inner.untyped_storage().resize_(800_000)
    return {
        "traffic": traffic,
        "sum": float(inner[0]),
        "small": float(small.sum()),
        "grown": inner.untyped_storage().nbytes(),
    }


def test_a_scope_puts_what_torch_makes_into_shared_memory(world_of):
    for found in world_of(2).run(scoped):
        # One pass moves 2 bytes for each byte of a tensor: of two tensors a rank's half is read, and written.
        assert found["traffic"]["weight"] == pytest.approx(2, rel=0.01)
        assert found["traffic"]["inner"] == pytest.approx(2, rel=0.01)
        assert found["traffic"]["thread"] > 2.5
        assert found["traffic"]["outside"] > 2.5
        assert (found["sum"], found["small"], found["grown"]) == (2.0, 10.0, 800_000)


def raw_blocks() -> bool:
    """On a rank: a convolution, which asks for blocks without tensors, inside of a scope and outside."""
    source = torch.Generator().manual_seed(3)
    layer, x = torch.nn.Conv2d(8, 16, 3), torch.randn(4, 8, 32, 32, generator=source)

    def gradient() -> torch.Tensor:
        layer.zero_grad()
        layer(x).square().sum().backward()
        return layer.weight.grad.clone()

    with ringdp.in_shared_memory():
        inside = gradient()
    return bool((inside == gradient()).all())


def test_a_scope_gives_raw_blocks_too(world_of):
    assert world_of(2).run(raw_blocks) == [True] * 2


def scope_without_memory() -> tuple[str, float]:
    """On a rank: the refusal, and that nothing is left of the scope."""
    with pytest.raises(dist.DistBackendError) as refused, ringdp.in_shared_memory():
        torch.ones(100_000)
    with ringdp.in_shared_memory(fallback=True):
        ordinary = torch.ones(100_000)
    return str(refused.value), float(ordinary.sum())


def test_a_scope_is_refused_where_there_is_no_shared_memory(world_of):
    for message, total in world_of(2, heap_bytes=0).run(scope_without_memory):
        assert "heap_bytes is 0" in message
        assert total == 100_000


def forked_inside() -> tuple[float, str]:
    """On a rank: what a child forked inside a scope can make."""
    with ringdp.in_shared_memory():
        mine = torch.ones(100_000)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, str(float(torch.ones(100_000).sum())).encode())
            os._exit(0)
        os.waitpid(child, 0)
    return float(mine.sum()), os.read(reader, 100).decode()


def test_a_child_forked_inside_a_scope_has_ordinary_tensors(world_of):
    assert world_of(2).run(forked_inside) == [(100_000.0, "100000.0")] * 2
