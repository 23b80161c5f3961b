"""The rendezvous store as ringdp uses it: any of torch's stores, a rank that never comes, a store that fails."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import HERE


def join_by_file(path: str) -> float:
    """On a rank: rendezvous through a FileStore."""
    store = dist.FileStore(path, HERE.size)
    dist.init_process_group("ringdp", store=store, rank=HERE.rank, world_size=HERE.size)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return float(tensor[0])


class Broken(dist.Store):
    """A store whose server is gone."""

    def add(self, key: str, amount: int) -> int:
        raise ConnectionError("the server hung up")


def join_broken() -> str:
    """On a rank."""
    with pytest.raises(dist.DistBackendError) as error:
        ringdp._C.Backend(Broken(), 0, 2, "name", ringdp.Options())
    return str(error.value)


def join_alone(timeout_s: float) -> str:
    """On a rank: a world of three of which this rank sees itself only."""
    start = time.monotonic()
    store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False)
    with pytest.raises(dist.DistBackendError) as error:
        dist.init_process_group("ringdp", store=store, rank=0, world_size=3, timeout=timedelta(seconds=timeout_s))
    assert time.monotonic() - start < timeout_s + 2
    return str(error.value)


def test_a_file_store(run_on_fresh_ranks, tmp_path):
    assert run_on_fresh_ranks(3).run(join_by_file, str(tmp_path / "store")) == [3.0] * 3


def test_a_store_that_fails_is_named_with_the_key(run_on_fresh_ranks):
    message = run_on_fresh_ranks(1).run(join_broken)[0]
    assert "the rendezvous store" in message and "'generation/0'" in message, message
    assert "the server hung up" in message


def test_ranks_that_never_come_are_named(run_on_fresh_ranks):
    message = run_on_fresh_ranks(1).run(join_alone, 1.0)[0]
    assert message.startswith("Timeout: "), message
    assert "for ranks 1 and 2 to publish its card" in message
