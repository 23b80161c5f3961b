"""torch's own programs over ringdp: FSDP2, DTensor, device meshes, checkpoints, compiled graphs, sharded optimizers.

Each runs over a default group of gloo and of ringdp; in groups of two every sum has one order, so the bits are equal.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, World
from torch.distributed import _functional_collectives as functional
from torch.distributed import checkpoint, fsdp
from torch.distributed import tensor as tensors
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import parallel
from torch.distributed.tensor.parallel import ddp as mesh_ddp
from torch.nn.parallel import DistributedDataParallel

WIDTH = 16
STEPS = 3
_numbers = itertools.count()  # every rank makes the same groups one after the other


@contextmanager
def default_group(backend: str) -> Iterator[None]:
    """init_process_group and its end. torch finds this backend by its own name."""
    served = dist.TCPStore("127.0.0.1", HERE.port, is_master=False, timeout=timedelta(seconds=30))
    store = dist.PrefixStore(f"group {next(_numbers)}", served)
    dist.init_process_group(backend, store=store, rank=HERE.rank, world_size=HERE.size, timeout=timedelta(seconds=60))
    try:
        assert dist.get_backend() == backend
        yield
    finally:
        dist.destroy_process_group()


def mlp() -> torch.nn.Sequential:
    """The same weights on every rank."""
    torch.manual_seed(1)
    linear = torch.nn.Linear
    return torch.nn.Sequential(linear(WIDTH, 2 * WIDTH), torch.nn.ReLU(), linear(2 * WIDTH, WIDTH))


def batch(rank: int, step: int) -> torch.Tensor:
    """A rank's inputs of one step."""
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int = STEPS) -> list[float]:
    """A few steps of learning zero; the losses."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(batch(rank, step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="session")
def values_over() -> Iterator[Callable[..., list[Any]]]:
    """values_over(backend, size, function, *args): function(backend, *args) on every rank of a world.

    A world is kept for its backend and size: what these tests import takes seconds.
    """
    known: dict[tuple[str, int], World] = {}
    with ExitStack() as stack:

        def run(backend: str, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
            if (backend, size) not in known:
                known[backend, size] = stack.enter_context(World(size))
            return known[backend, size].run(function, backend, *args)

        yield run


@pytest.fixture
def assert_same(values_over: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """assert_same(size, function, *args): ringdp's values are gloo's, to the bit; they are returned.

    In groups of two every sum has one order, so there is nothing to forgive.
    """

    def check(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        theirs, ours = (values_over(backend, size, function, *args) for backend in ("gloo", "ringdp"))
        assert ours == theirs
        assert ours[0], "the function returned nothing to compare"
        return ours

    return check


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


ROWS, COLUMNS = 6, 10


def matrix(seed: int, rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def placements(backend: str) -> list[list[float]]:
    """On a rank: the local part after each step from placement to placement."""
    with default_group(backend):
        mesh = dist.init_device_mesh("cpu", (HERE.size,))
        shard, replicate = tensors.Shard, tensors.Replicate()
        current = tensors.distribute_tensor(matrix(0, ROWS, COLUMNS), mesh, [shard(0)])
        parts = [current.to_local().flatten().tolist()]
        for placement in (replicate, shard(1), shard(0), shard(1), replicate):
            current = current.redistribute(mesh, [placement])
            parts.append(current.to_local().flatten().tolist())
        return parts


def product(backend: str) -> list[list[float]]:
    """On a rank: a product whose inner dimension is sharded, summed to all and summed to shards."""
    with default_group(backend):
        mesh = dist.init_device_mesh("cpu", (HERE.size,))
        left = tensors.distribute_tensor(matrix(1, ROWS, COLUMNS), mesh, [tensors.Shard(1)])
        right = tensors.distribute_tensor(matrix(2, COLUMNS, ROWS), mesh, [tensors.Shard(0)])
        partial = left @ right
        whole = partial.redistribute(mesh, [tensors.Replicate()]).to_local()
        sharded = partial.redistribute(mesh, [tensors.Shard(0)]).full_tensor()
        return [whole.flatten().tolist(), sharded.flatten().tolist()]


def test_from_placement_to_placement(assert_same):
    for parts in assert_same(2, placements):
        assert parts[1] == parts[-1] == matrix(0, ROWS, COLUMNS).flatten().tolist()


def test_a_product_of_shards(assert_same):
    expected = matrix(1, ROWS, COLUMNS) @ matrix(2, COLUMNS, ROWS)
    for whole, sharded in assert_same(2, product):
        assert whole == sharded
        torch.testing.assert_close(torch.tensor(whole).view(ROWS, ROWS), expected)


def mesh_training(backend: str) -> tuple[list[float], list[list[float]]]:
    """On a rank: losses, and its parts of the parameters."""
    with default_group(backend):
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
        model = parallel.parallelize_module(mlp(), mesh["tp"], plan)
        mesh_ddp._pre_dp_module_transform(model)
        wrapped = DistributedDataParallel(model, process_group=mesh["dp"].get_group())
        # The transformed model lists them between its steps only.
        parameters = list(wrapped.parameters())
        losses = train(wrapped, torch.optim.SGD(parameters, lr=0.1), HERE.rank // 2)
        return losses, [parameter.flatten().tolist() for parameter in parameters]


def test_data_parallel_by_tensor_parallel(assert_same):
    results = assert_same(4, mesh_training)
    # ranks 0 and 2, 1 and 3 are data parallel; ranks 0 and 1 share a batch
    assert results[0][1] == results[2][1] and results[1][1] == results[3][1]
    assert results[0][0] == results[1][0] != results[2][0]
    assert results[0][1] != results[1][1]


def zero_training(backend: str) -> tuple[list[list[float]], int]:
    """On a rank: parameters after a zero_training, and how many of them the consolidated state knows (rank 0)."""
    with default_group(backend):
        model = DistributedDataParallel(mlp())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
        train(model, optimizer, HERE.rank)
        optimizer.consolidate_state_dict(to=0)
        known = len(optimizer.state_dict()["state"]) if HERE.rank == 0 else 0
        return [parameter.flatten().tolist() for parameter in model.parameters()], known


def plain_training(backend: str) -> list[list[float]]:
    """On a rank: the same with an optimizer that is not sharded."""
    with default_group(backend):
        model = DistributedDataParallel(mlp())
        train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), HERE.rank)
        return [parameter.flatten().tolist() for parameter in model.parameters()]


def test_sharded_optimizer_state(assert_same, values_over):
    (parameters, known), (other, _) = assert_same(2, zero_training)
    assert parameters == other
    assert known == len(parameters)
    assert values_over("ringdp", 2, plain_training)[0] == parameters


def exchange(tensor: torch.Tensor) -> torch.Tensor:
    """All three collectives with arithmetic between them."""
    group = dist.group.WORLD
    total = functional.all_reduce(tensor * 2, "sum", group)
    rows = functional.all_gather_tensor(total + tensor, 0, group)
    return functional.reduce_scatter_tensor(rows.relu(), "sum", 0, group) - 1


def compiled(backend: str, compiler: str, cache: str) -> list[list[float]]:
    """On a rank: what the function gives as written, and compiled as one graph."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    with default_group(backend):
        given = batch(HERE.rank, 0)
        results = [exchange(given), torch.compile(exchange, fullgraph=True, backend=compiler)(given)]
        return [result.flatten().tolist() for result in results]


def test_a_graph_communicates_as_written(assert_same, tmp_path):
    for as_written, in_a_graph in assert_same(2, compiled, "aot_eager", str(tmp_path)):
        assert len(as_written) == 4 * WIDTH
        assert in_a_graph == as_written


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("g++") and not shutil.which("clang++"), reason="no C++ compiler")
def test_so_does_compiled_code(values_over, tmp_path):
    for as_written, in_compiled_code in values_over("ringdp", 2, compiled, "inductor", str(tmp_path)):
        assert in_compiled_code == as_written
