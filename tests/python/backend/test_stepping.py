"""Where a group steps with what it sums: on devices that share memory; elsewhere it says why not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from stand_in import TYPE, error_of


def why_not(library: str) -> tuple[str, str]:
    """On a rank: what is said of its device, and to who steps there all the same."""
    from native import arrive
    from stand_in import backend_of
    from steps import Bucket, OnDevice

    gpu, _ = arrive(library, "SPIN")
    group = gpu.new_group()
    ours = OnDevice(gpu, Bucket())
    said = backend_of(group).why_no_step(torch.device(TYPE, ours.gradients.device.index))
    return said, error_of(lambda: ours.step(group, 2.0).wait())


def of_the_cpu() -> list[str]:
    """On a rank: what is said of tensors of the CPU, of a sink of theirs, and of a divisor."""
    from ringdp import _native

    core, backend = _native.load(), dist.group.WORLD._get_backend(torch.device("cpu"))
    sinks = core.step_sink([]), core.device_sink(torch.zeros(8), [])
    pairs = zip(sinks, (2.0, 0.0), strict=True)
    calls = [(lambda s=s, d=d: backend.reduce_scatter_step(torch.zeros(8), d, s)) for s, d in pairs]
    return [backend.why_no_step(torch.device("cpu")), *map(error_of, calls)]


def test_devices_that_share_memory_step(world_of, stand_in):
    assert world_of(2, window_bytes=1 << 20).run(why_not, stand_in) == [("", "")] * 2


@pytest.mark.parametrize(("settings", "why"), [({"window_bytes": 0}, "window_bytes is 0"), ({"heap_bytes": 0}, "heap")])
def test_others_say_why_not(world_of, stand_in, settings, why):
    for said, error in world_of(2, **settings).run(why_not, stand_in):
        assert why in said
        assert f"reduce_scatter_step: {said}" in error


def test_the_cpu_has_its_own_way(pair):
    for cpu, sink, divisor in pair.run(of_the_cpu):
        assert cpu == "tensors on cpu are not of a device that ringdp serves"
        assert "the sink is of the CPU" in sink
        assert "divisor=0.000000 must be finite and not 0" in divisor
