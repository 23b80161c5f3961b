"""Tensors of a device that nobody serves are refused by name; a device is served once."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from ranks import HERE
from stand_in import BACKEND, TYPE, error_of, here, loaded


def unserved(library: str) -> str:
    """On a rank: torch has the device, ringdp does not know it."""
    loaded(library)
    group = dist.new_group(range(HERE.size), backend=BACKEND)
    return error_of(lambda: dist.all_reduce(torch.ones(4).to(TYPE), group=group))


def served_again(library: str) -> list[str]:
    from ringdp import _native

    here(library)
    return [error_of(lambda name=name: _native.load().serve_device(name)) for name in (TYPE, "cpu", "cuda")]


def served_without_one(library: str) -> str:
    from ringdp import _native

    os.environ["STAND_IN_DEVICES"] = "0"
    loaded(library)
    return error_of(lambda: _native.load().serve_device(TYPE))


def test_an_unserved_device_is_refused(run_on_fresh_ranks, stand_in):
    world = run_on_fresh_ranks(2)
    world.join()
    for error in world.run(unserved, stand_in):
        assert error.startswith(f"InvalidArgument: all_reduce: the tensor is on {TYPE}:0, and this build of ringdp")


def test_a_device_is_served_once(pair, stand_in):
    for errors in pair.run(served_again, stand_in):
        for error, name in zip(errors, (TYPE, "cpu", "cuda"), strict=True):
            assert error.startswith(f"InvalidArgument: serve_device: {name} is served")


def test_a_library_without_a_device_serves_none(run_on_fresh_ranks, stand_in):
    [error] = run_on_fresh_ranks(1).run(served_without_one, stand_in)
    assert error.startswith("InvalidArgument: serve_device: privateuseone needs a libringdp_gpu.so that has a device")
