"""A training of 200 steps with each codec: one hash on all ranks, that of one process, also if it stops halfway."""

from __future__ import annotations

from typing import Any

import pytest
import ringdp
import torch
from compress_runs import loss_of, made, train
from ringdp.compress.methods import Auto, Codes, PowerSGD, TopK
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process, parameters_hash

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.long]
STEPS = 200
METHODS: list[Any] = ["int8", "fp8", "sign", TopK(0.05), PowerSGD(2), "auto:int8"]
PLACES = [(2, 0), (3, 0), (4, 0), (8, 0), (4, 2)]


def trained(method: Any, stage: int, steps: range, folder: str) -> tuple[str, list[tuple[int, str]]]:
    """On a rank: the hash, and what was decided. folder: as for train()."""
    model, optimizer = made("float32")
    ddp = DistributedDataParallel(model, compress=method, zero_stage=stage)
    if stage:
        optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.01, momentum=0.9)
    else:
        optimizer.param_groups[0]["lr"] = 0.01
    train(ddp, optimizer, steps, folder)
    return parameters_hash(model), ddp.ledger().decisions


@pytest.mark.parametrize(("ranks", "stage"), PLACES)
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_one_hash_whatever_happens(world_of, tmp_path, method, ranks, stage):
    world = world_of(ranks)
    found = world.run(trained, method, stage, range(STEPS), "")
    (_, decisions), *_ = found
    if decisions:  # by the clock: others follow
        assert method == "auto:int8" and decisions[0] == (0, "probe")
        method = Auto(Codes("int8"), tuple(decisions))
    model, optimizer = made("float32")
    optimizer.param_groups[0]["lr"] = 0.01
    one_process(model, optimizer, loss_of, ranks=ranks, steps=STEPS, compress=method)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    want = [(parameters_hash(model), decisions)] * ranks
    assert found == want
    world.run(trained, method, stage, range(STEPS // 2), str(tmp_path))
    assert world.run(trained, method, stage, range(STEPS // 2, STEPS), str(tmp_path)) == want
