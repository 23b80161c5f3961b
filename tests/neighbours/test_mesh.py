"""DDP inside a two-dimensional mesh: data parallel by tensor parallel, four ranks in groups of two."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from groups import default_group, mlp, train
from ranks import HERE
from torch.nn.parallel import DistributedDataParallel

parallel = pytest.importorskip("torch.distributed.tensor.parallel")
ddp = pytest.importorskip("torch.distributed.tensor.parallel.ddp")


def training(backend: str) -> tuple[list[float], list[list[float]]]:
    """On a rank: losses, and its parts of the parameters."""
    with default_group(backend):
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
        model = parallel.parallelize_module(mlp(), mesh["tp"], plan)
        ddp._pre_dp_module_transform(model)
        wrapped = DistributedDataParallel(model, process_group=mesh["dp"].get_group())
        # The transformed model lists them between its steps only.
        parameters = list(wrapped.parameters())
        losses = train(wrapped, torch.optim.SGD(parameters, lr=0.1), HERE.rank // 2)
        return losses, [parameter.flatten().tolist() for parameter in parameters]


def test_data_parallel_by_tensor_parallel(assert_same):
    results = assert_same(4, training)
    # ranks 0 and 2, 1 and 3 are data parallel; ranks 0 and 1 share a batch
    assert results[0][1] == results[2][1] and results[1][1] == results[3][1]
    assert results[0][0] == results[1][0] != results[2][0]
    assert results[0][1] != results[1][1]
