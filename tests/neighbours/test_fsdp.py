"""FSDP2 on the CPU: all_gather and reduce_scatter of flat parameters, in and out of a training."""

from __future__ import annotations

import pytest
import torch
from groups import default_group, mlp, train
from ranks import HERE

fsdp = pytest.importorskip("torch.distributed.fsdp")
if not hasattr(fsdp, "fully_shard"):
    pytest.skip("this torch has no fully_shard", allow_module_level=True)


def sharded_training(backend: str, mixed: bool, shared: bool) -> tuple[list[float], list[list[float]]]:
    """On a rank: losses, and the whole parameters afterwards."""
    with default_group(backend):
        model = mlp()
        mesh = torch.distributed.init_device_mesh("cpu", (HERE.size,))
        policy = {"mp_policy": fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)} if mixed else {}
        for layer in (model[0], model[2], model):
            fsdp.fully_shard(layer, mesh=mesh, **policy)
            if shared:  # staging buffers by the backend's allocate_tensor, where it has one
                layer.set_allocate_memory_from_process_group_for_comm(True)
        losses = train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), HERE.rank)
        return losses, [parameter.full_tensor().flatten().tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_sharded_training_has_gloos_bits(assert_same, mixed, shared):
    if shared and not hasattr(fsdp.FSDPModule, "set_allocate_memory_from_process_group_for_comm"):
        pytest.skip("this torch does not ask backends for memory")
    (losses, parameters), (other_losses, other_parameters) = assert_same(2, sharded_training, mixed, shared)
    assert losses != other_losses, "ranks have different batches"
    assert parameters == other_parameters
