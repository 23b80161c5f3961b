"""explain(): buckets with names, bytes and memory, as a value and as text."""

from __future__ import annotations

import torch
from ranks import BACKENDS, HERE, group_of
from ringdp.ddp.explain import Explanation
from ringdp.ddp.wrapper import DistributedDataParallel
from small_models import fresh, loss_of


def explained(backend: str, steps: int) -> tuple[Explanation, str]:
    ddp = DistributedDataParallel(
        fresh(), process_group=group_of(backend), bucket_cap_mb=0.005, gradient_as_bucket_view=True
    )
    for step in range(steps):
        loss_of(ddp, HERE.rank, step, 0).backward()
    told = ddp.explain()
    return told, str(told)


def test_buckets_have_names_bytes_and_memory(trio):
    gradient_bytes = sum(p.numel() * p.element_size() for p in fresh().parameters())
    names = [name for name, _ in fresh().named_parameters()]
    for backend in BACKENDS:
        for told, text in trio.run(explained, backend, 2):
            assert sorted(n for bucket in told.buckets for n in bucket.parameters) == sorted(names)
            assert sum(bucket.bytes for bucket in told.buckets) == gradient_bytes
            # One copy of the gradients: padding is at most two elements a bucket.
            copies = sum(bucket.memory_bytes or bucket.bytes for bucket in told.buckets)
            assert gradient_bytes <= copies <= gradient_bytes + 8 * len(told.buckets)
            assert told.buffer_bytes == sum(bucket.memory_bytes for bucket in told.buckets) == copies
            assert told.rebuilt and told.times.step == 2
            assert all(bucket.parameters[0] in text for bucket in told.buckets) and "bits of one process" in text


def test_before_the_first_step(pair):
    for told, text in pair.run(explained, "ringdp", 0):
        assert not told.rebuilt and "reverse order" in text and "No step" in text
        assert "shared memory" in text and "gradients are views" in text


def many_parameters() -> str:
    model = torch.nn.ParameterList(torch.zeros(1) for _ in range(9))
    return str(DistributedDataParallel(model).explain())


def test_long_buckets_are_cut(world_of):
    assert "(9 parameters)" in world_of(1).run(many_parameters)[0]
