"""Tensors of a device that nobody serves are refused by name; a device is served once."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import HERE

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fake import BACKEND, TYPE, capsule, error_of, here, loaded


def unserved(library: str) -> str:
    """On a rank: torch has the device, ringdp does not know it."""
    loaded(library)
    group = dist.new_group(range(HERE.size), backend=BACKEND)
    return error_of(lambda: dist.all_reduce(torch.ones(4).to(TYPE), group=group))


def served_again(library: str) -> list[str]:
    from ringdp import _native

    here(library)
    core = capsule(loaded(library).fake_core())
    return [error_of(lambda name=name: _native.load().serve_device(name, core)) for name in (TYPE, "cpu", "cuda")]


def test_an_unserved_device_is_refused(run_on_fresh_ranks, fake_device):
    world = run_on_fresh_ranks(2)
    world.join()
    for error in world.run(unserved, fake_device):
        assert error.startswith(
            "InvalidArgument: all_reduce: the tensor is on privateuseone:0, and this build of ringdp"
        )


def test_a_device_is_served_once(pair, fake_device):
    for errors in pair.run(served_again, fake_device):
        for error, name in zip(errors, (TYPE, "cpu", "cuda"), strict=True):
            assert error.startswith(f"InvalidArgument: serve_device: {name} is served")
