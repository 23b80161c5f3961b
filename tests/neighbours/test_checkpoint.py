"""torch.distributed.checkpoint: saved by one world, loaded by a larger one."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from groups import default_group, mlp, train
from ranks import HERE

checkpoint = pytest.importorskip("torch.distributed.checkpoint")
fsdp = pytest.importorskip("torch.distributed.fsdp")


def sharded_model() -> torch.nn.Module:
    return fsdp.fully_shard(mlp(), mesh=dist.init_device_mesh("cpu", (HERE.size,)))


def whole(model: torch.nn.Module) -> list[list[float]]:
    return [parameter.full_tensor().flatten().tolist() for parameter in model.parameters()]


def save(backend: str, folder: str) -> list[list[float]]:
    """On a rank: trains, saves; the whole parameters."""
    with default_group(backend):
        model = sharded_model()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), HERE.rank)
        checkpoint.save(model.state_dict(), checkpoint_id=folder)
        return whole(model)


def load(backend: str, folder: str) -> list[list[float]]:
    """On a rank: loads into a fresh model; the whole parameters."""
    with default_group(backend):
        model = sharded_model()
        state = model.state_dict()
        checkpoint.load(state, checkpoint_id=folder)
        model.load_state_dict(state)
        return whole(model)


@pytest.mark.parametrize("loading", [2, 3])
def test_saved_and_loaded(values_over, tmp_path, loading):
    saved = values_over("ringdp", 2, save, str(tmp_path))
    assert (tmp_path / ".metadata").exists()
    assert values_over("ringdp", loading, load, str(tmp_path)) == saved[:1] * loading


def test_gloo_reads_what_ringdp_wrote(values_over, tmp_path):
    saved = values_over("ringdp", 2, save, str(tmp_path))
    assert values_over("gloo", 2, load, str(tmp_path)) == saved
