"""The class as torch's users know it: the bits of one process under every argument."""

from __future__ import annotations

import copy
import gc
import pickle
import time

import pytest
import torch
import torch.distributed as dist
from ranks import BACKENDS, HERE, error_of, group_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process, parameters_hash
from small_models import batch, fresh, loss_of, mlp, optimizer_for, reference, train
from torch import nn

ARGUMENTS = [
    {},
    {"bucket_cap_mb": 0, "overlap": False},
    {"bucket_cap_mb": 0},
    {"bucket_cap_mb": 0.01, "overlap": False},
    {"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True},
    {"bucket_cap_mb_list": [0, 1]},
    {"static_graph": True, "bucket_cap_mb": 0.01},
    {"find_unused_parameters": True},
    {"batched_grad_copy": True, "bucket_cap_mb": 0.01},
    {"forward_sync_buffers": False},
]


def name_of(arguments: dict[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in arguments.items()) or "defaults"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=name_of)
def test_no_argument_changes_the_bits_of_one_process(trio, arguments, backend):
    expected = trio.run(reference)
    assert trio.run(train_with, backend, arguments) == expected


def train_with(backend: str, arguments: dict[str, object]) -> str:
    return train(backend=backend, **arguments)


def _mean_on_top(model: nn.Module) -> None:
    optimizer = optimizer_for(model)
    for step in range(3):
        kept: list[torch.Tensor] | None = None
        for micro in range(3):
            total: list[torch.Tensor] | None = None
            for rank in range(HERE.size):
                optimizer.zero_grad()
                loss_of(model, rank, step, micro).backward()
                own = [
                    p.grad if kept is None else k + p.grad
                    for p, k in zip(model.parameters(), kept or model.parameters(), strict=True)
                ]
                total = own if total is None else [t + o for t, o in zip(total, own, strict=True)]
            kept = [t / HERE.size for t in total]
        for parameter, mean in zip(model.parameters(), kept, strict=True):
            parameter.grad = mean
        optimizer.step()


@pytest.mark.parametrize("synchronised", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@on_ranks(3, True)
def test_accumulation(backend: str, synchronised: bool) -> bool:
    """Accumulation with and without no_sync, against one process that does the same."""
    ddp = DistributedDataParallel(fresh(), process_group=group_of(backend))
    optimizer = optimizer_for(ddp)
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(3):
            ddp.require_backward_grad_sync = synchronised or micro == 2
            loss_of(ddp, HERE.rank, step, micro).backward()
        optimizer.step()
    model = fresh()
    if not synchronised:
        one_process(model, optimizer_for(model), loss_of, ranks=HERE.size, steps=3, accumulate=3)
    else:  # as stock: each mean is of this rank's gradient on top of the mean so far
        _mean_on_top(model)
    return parameters_hash(ddp) == parameters_hash(model)


def bytes_of_accumulation(micros: int) -> int:
    """On a rank: payload bytes on links for one step of `micros` micro-batches."""
    ddp = DistributedDataParallel(fresh())
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend.counters()["wire_bytes_sent"]
    with ddp.no_sync():
        for micro in range(micros - 1):
            loss_of(ddp, HERE.rank, 0, micro).backward()
    loss_of(ddp, HERE.rank, 0, micros - 1).backward()
    return backend.counters()["wire_bytes_sent"] - before


def test_accumulation_sends_once_for_all_micro_batches(world_of):
    world = world_of(3, transport="tcp")
    gradient_bytes = sum(p.numel() for p in mlp().parameters()) * 4
    for micros in (1, 4):
        assert sum(world.run(bytes_of_accumulation, micros)) == 2 * (3 - 1) * gradient_bytes


@on_ranks(3, True)
def test_two_forward_passes_before_backward() -> bool:
    """Two forward passes, then one backward pass through both."""
    ddp = DistributedDataParallel(fresh())
    (loss_of(ddp, HERE.rank, 0, 0) + loss_of(ddp, HERE.rank, 1, 0)).backward()
    model = fresh()

    def both(model: nn.Module, rank: int, step: int, micro: int) -> torch.Tensor:
        return loss_of(model, rank, 0, 0) + loss_of(model, rank, 1, 0)

    one_process(model, torch.optim.SGD(model.parameters(), lr=1.0), both, ranks=HERE.size, steps=1)
    torch.optim.SGD(ddp.parameters(), lr=1.0).step()
    return parameters_hash(ddp) == parameters_hash(model)


@pytest.mark.parametrize("static", [False, True])
@on_ranks(2, True)
def test_a_copy_goes_on(static: bool) -> bool:
    """A wrapper that is pickled after a step goes on averaging."""
    hashes = []
    for remake in (lambda ddp: ddp, lambda ddp: pickle.loads(pickle.dumps(ddp)), copy.deepcopy):
        ddp = DistributedDataParallel(fresh(), static_graph=static)
        loss_of(ddp, HERE.rank, 0, 0).backward()
        ddp = remake(ddp)
        for step in (1, 2):
            ddp.zero_grad()
            loss_of(ddp, HERE.rank, step, 0).backward()
            torch.optim.SGD(ddp.parameters(), lr=0.1).step()
        hashes.append(parameters_hash(ddp))
    everyones: list[object] = [None] * HERE.size
    dist.all_gather_object(everyones, hashes)
    return len({h for own in everyones for h in own}) == 1


@on_ranks(2, (0.5, 1))
def test_a_dropped_wrapper_leaves_nothing_on_the_parameters() -> tuple[float, int]:
    """A wrapper that never came to its backward pass is dropped; its hooks go with it. The next one's mean,
    and how many collectives that took.
    """
    model = nn.Linear(1, 1, bias=False)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    gc.disable()
    try:
        ddp = DistributedDataParallel(model)
        ddp(torch.ones(1, 1))
        del ddp
        ddp = DistributedDataParallel(model)
        loss = ddp(torch.full((1, 1), float(HERE.rank))).sum()
        before = backend.counters()["collectives"]
        loss.backward()
        return model.weight.grad.item(), backend.counters()["collectives"] - before
    finally:
        gc.enable()


@on_ranks(2)
def test_a_dropped_wrapper_is_the_last_that_keeps_its_group() -> None:
    """The end of a gloo group waits for its threads, which need the GIL to free the tensor of a collective."""
    group = dist.new_group(backend="gloo")
    ddp = DistributedDataParallel(nn.Linear(2, 2), process_group=group)
    time.sleep(0.5 * HERE.rank)
    dist.all_reduce(torch.ones(4), group=group, async_op=True)
    dist.destroy_process_group(group)
    del group, ddp
    gc.collect()


@on_ranks(2)
def test_pickle_copy_and_state_dict() -> None:
    """A pickled and a copied wrapper go on training to the same bits; names in state dicts."""
    hashes = []
    for remake in (lambda ddp: ddp, lambda ddp: pickle.loads(pickle.dumps(ddp)), copy.deepcopy):
        ddp = remake(DistributedDataParallel(fresh(), gradient_as_bucket_view=True))
        torch.optim.SGD(ddp.parameters(), lr=0.1)
        loss_of(ddp, HERE.rank, 0, 0).backward()
        torch.optim.SGD(ddp.parameters(), lr=0.1).step()
        hashes.append(parameters_hash(ddp))
    fresh().load_state_dict(ddp.module.state_dict())
    assert hashes[0] == hashes[1] == hashes[2]
    assert list(ddp.state_dict()) == [f"module.{name}" for name in mlp().state_dict()]


@on_ranks(2)
def test_forgotten_parameters_are_named_without_a_debug_variable() -> None:
    """The errors of a model whose second layer is not in the loss, at the next forward pass."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.forgotten = nn.Linear(12, 3), nn.Linear(12, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    ddp = DistributedDataParallel(Half())
    ddp(batch(HERE.rank, 0)[0]).sum().backward()
    for call in (ddp._check_reducer_finalized, lambda: ddp(batch(HERE.rank, 0)[0])):
        said = error_of(call)
        assert "forgotten.weight, forgotten.bias" in said and "find_unused_parameters=True" in said


def only_on_some() -> str:
    """On a rank: a layer that only rank 1 uses; the loss is averaged after each step, as trainers do."""
    ddp = DistributedDataParallel(nn.ModuleDict({"a": nn.Linear(12, 3), "b": nn.Linear(12, 3)}))
    model = ddp.module
    ddp.reducer.prepare_for_forward()
    x = batch(HERE.rank, 0)[0]
    loss = model["a"](x).sum() + (model["b"](x).sum() if HERE.rank == 1 else 0.0)
    ddp.reducer.prepare_for_backward([])
    try:
        loss.backward()
        dist.all_reduce(loss.detach())
        ddp.reducer.check_finished()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_layer_that_runs_on_some_ranks_only_is_caught_on_all(run_on_fresh_ranks):
    world = run_on_fresh_ranks(2)
    world.join()
    assert all(said.startswith("Mismatch") for said in world.run(only_on_some))
