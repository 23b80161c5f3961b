"""DiLoCo and its family: parameters, momenta, residuals and inner states have the bits of one process, at every N."""

from __future__ import annotations

import copy
import random
from functools import cache
from typing import Any

import leafy
import local_runs
import pytest
import ringdp
import torch
import torch.distributed as dist
from local_runs import (
    CELLS,
    STEPS,
    arguments_of,
    begun,
    differences,
    digests,
    digests_of_cell,
    expected,
    inner_of,
    model_of,
    own_loss,
    trained,
)
from ranks import BACKENDS, HERE, error_of, group_of
from ringdp.testing import one_process, one_process_local, parameters_hash
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")
MANY_RANKS = [pytest.param(ranks, marks=pytest.mark.long) for ranks in (5, 8)]
of_one_process = cache(lambda name: expected(CELLS[name]))


def all_cells(backend: str, ranks: int) -> dict[str, Any]:
    """On a rank: of the cells that have at least one worker for each rank."""
    return {name: digests_of_cell(name, backend) for name, cell in CELLS.items() if cell["workers"] >= ranks}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, *MANY_RANKS])
def test_every_hash_is_that_of_one_process(world_of, ranks):
    backend = BACKENDS[ranks % 2]
    by_rank = world_of(ranks).run(all_cells, backend, ranks)
    wrong = {name: differences([own[name] for own in by_rank], of_one_process(name)) for name in by_rank[0]}
    assert {name: paths for name, paths in wrong.items() if paths} == {}


def test_without_a_group(one_thread):
    model, local = begun(CELLS["int4, streaming"], backend=None)
    assert differences([digests(trained(local, model, STEPS).state_dict())], of_one_process("int4, streaming")) == []


def test_a_compiled_model():
    """Its parameters are the module's, whichever worker is in place."""
    cell = {"workers": 2, "every": 2, "model": "plain"}
    compiled = torch.compile(model_of(cell), backend="eager")
    local = ringdp.DiLoCo(compiled, inner_of(cell), seed=5, **arguments_of(cell))
    found = digests(trained(local, compiled, 5).state_dict())
    assert differences([found], expected(cell, 5)) == []


def test_cells_differ_from_each_other():
    """An option that is ignored would make two of them equal."""
    outer = [tuple(sorted((k, v) for k, v in of_one_process(name)[0].items() if "outer" in k)) for name in CELLS]
    assert len(set(outer)) == len(CELLS)


def of_two_of_three() -> list[Any]:
    """On a rank: rank 0 is none of the group, and is told so."""
    group = dist.new_group([1, 2])
    if HERE.rank == 0:
        make = lambda: ringdp.DiLoCo(nn.Linear(2, 2), torch.optim.SGD, workers=2, every=2, group=group)  # noqa: E731
        return [error_of(make, kind=ValueError), None]
    cell = CELLS["int8"]
    model = model_of(cell)
    local = ringdp.DiLoCo(model, inner_of(cell), group=group, seed=5, **arguments_of(cell))
    found = digests(trained(local, model, STEPS).state_dict())
    dist.destroy_process_group(group)  # ranks of the world that is kept are in equally many again
    return found


def test_a_group_of_some_ranks(trio):
    (error, _), *by_rank = trio.run(of_two_of_three)
    assert "this rank is none of group=" in error
    assert differences(by_rank, of_one_process("int8")) == []


def whole_numbers(generator: random.Random, *shape: int) -> torch.Tensor:
    numbers = [generator.randint(-3, 3) for _ in range(torch.Size(shape).numel())]
    return torch.tensor(numbers, dtype=torch.float32).view(shape)


def loss_of_whole_numbers(model: nn.Module, worker: int, step: int) -> torch.Tensor:
    """Gradients are whole numbers, whose sums and means over 8 workers are exact."""
    return (model(whole_numbers(random.Random(100 * step + worker), 4, 6)) * 1.0).sum()


def one_by_one(kind: str) -> str:
    """On a rank: every step is a meeting, without momentum; or the same by micro_batches."""
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    inner = lambda ps: torch.optim.SGD(ps, lr=0.25)  # noqa: E731
    if kind == "local":
        local = ringdp.DiLoCo(model, inner, workers=8, every=1, outer_lr=1, momentum=0.0)
        for step in range(4):
            for worker in local.workers():
                with local.worker(worker):
                    loss_of_whole_numbers(model, worker, step).backward()
            local.step()
        return parameters_hash(model)
    ddp = ringdp.DistributedDataParallel(model, micro_batches=8)
    optimizer = inner(ddp.parameters())
    for step in range(4):
        for worker in ringdp.elastic.Leaves(8, micro_batch=1, micro_batches=8).mine():
            with ringdp.leaf(step, worker):
                loss_of_whole_numbers(ddp, worker, step).backward()
        optimizer.step()
    return parameters_hash(ddp)


def test_a_meeting_after_every_step_is_ddp(pair):
    """Where sums are exact; elsewhere p - mean(p - (p - lr g)) is rounded otherwise than p - lr mean(g)."""
    assert {*pair.run(one_by_one, "local")} == {*pair.run(one_by_one, "ddp")}


def start_only(workers: int) -> str:
    """On a rank: all steps are synchronous."""
    model = leafy.made("branching", "bfloat16")
    local = ringdp.DiLoCo(model, lambda ps: torch.optim.AdamW(ps, lr=1e-2), workers=workers, every=2, start=4, seed=7)
    trained(local, model, 4)
    return parameters_hash(model)


def test_synchronous_steps_are_those_of_micro_batches(trio):
    model = leafy.made("branching", "bfloat16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    one_process(model, optimizer, leafy.loss_of, steps=4, micro_batches=8, seeds=[7])
    assert {*trio.run(start_only, 8)} == {parameters_hash(model)}


def simplest(backend: str) -> tuple[str, bool]:
    """On a rank: one worker, and no block."""
    model = leafy.made("plain")
    local = ringdp.DiLoCo(
        model, lambda ps: torch.optim.AdamW(ps, lr=1e-2), workers=HERE.size, every=3, start=2, group=group_of(backend)
    )
    for step in range(7):
        leafy.loss_of(model, 0, step, HERE.rank).backward()
        local.step()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with local.outer():
        found = parameters_hash(model)
    return found, all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_worker_on_each_rank_needs_no_block(trio, backend):
    model = leafy.made("plain")
    run = one_process_local(
        model,
        lambda ps: torch.optim.AdamW(ps, lr=1e-2),
        lambda model, worker, step: leafy.loss_of(model, 0, step, worker),
        workers=3, steps=7, every=3, start=2,
    )  # fmt: skip
    assert trio.run(simplest, backend) == [(parameters_hash(model), True)] * 3
    assert len(run.losses) == 7


def poisoned_loss(model: nn.Module, worker: int, step: int) -> torch.Tensor:
    """Worker 4 has a NaN once; a negative one, as the sign of a NaN depends on the machine."""
    loss = leafy.loss_of(model, 0, step, worker)
    return loss * -float("nan") if (step, worker) == (1, 4) else loss


def poisoned(cell: dict[str, Any]) -> list[Any]:
    """On a rank: digests after four steps."""
    model, local = begun(cell)
    for step in range(4):
        for worker in local.workers():
            with local.worker(worker):
                poisoned_loss(model, worker, step).backward()
        local.step()
    assert all(value.isnan().all() for value in local.state_dict()["outer"].values())
    return digests(local.state_dict())


@pytest.mark.parametrize("compress", [None, "int8", "int4"])
def test_a_nan_of_one_worker_is_seen_alike_by_all(trio, compress):
    cell = {"workers": 6, "every": 2, "model": "plain", "compress": compress}
    assert differences(trio.run(poisoned, cell), expected(cell, 4, poisoned_loss)) == []


def loss_in_float32(model: nn.Module, worker: int, step: int) -> torch.Tensor:
    """Of the samples that a worker has under torch's own default type."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    loss = own_loss(model, worker, step)
    torch.set_default_dtype(default)
    return loss


@pytest.mark.parametrize("name", ["int8", "two bits"])
def test_the_default_type_of_torch_does_not_matter(monkeypatch, request, name):
    cell = {**CELLS[name], "inner": "sgd"}
    wanted, begins = expected(cell), model_of(cell)
    monkeypatch.setattr(local_runs, "model_of", lambda _: copy.deepcopy(begins))
    monkeypatch.setattr(local_runs, "own_loss", loss_in_float32)
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    model, local = begun(cell, backend=None)
    assert differences([digests(trained(local, model, STEPS).state_dict())], wanted) == []
    assert expected(cell, loss_of=loss_in_float32) == wanted
