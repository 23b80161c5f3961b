"""survive_local() without faults: the bits of one process, what it refuses, and who plays whom."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from local_runs import CELLS, STEPS, begun, differences, digests, expected, own_loss, trained
from ranks import error_of
from ringdp.elastic.local_training import survive_local
from ringdp.local.kept_meetings import dealt
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")
SURVIVING = ("plain", "uneven", "int8", "16 bits, int8", "two optimizers")


def alone(name: str) -> list[Any]:
    """On a rank, without a launcher: its digests, after two calls and steps of local.step()."""
    model, local = begun(CELLS[name])

    @survive_local(local)
    def train(step: int, workers: tuple[int, ...]) -> None:
        for worker in workers:
            with local.worker(worker):
                own_loss(model, worker, step).backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(2)
        train(STEPS - 2)
    assert train.recoveries == []
    return digests(trained(local, model, 2).state_dict())


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", SURVIVING)
def test_without_a_launcher_it_trains_with_the_bits_of_one_process(world_of, name, ranks):
    assert differences(world_of(ranks).run(alone, name), expected(CELLS[name])) == []


def refusals() -> list[str]:
    """On each of two ranks."""
    said = []
    for name in ("streaming", "post-local"):
        _, local = begun(CELLS[name])
        said.append(error_of(lambda local=local: survive_local(local), kind=NotImplementedError))
    _, waiting = begun({"workers": 4, "every": 2, "quorum": 1, "rounds": 2})
    said.append(error_of(lambda: survive_local(waiting), kind=NotImplementedError))
    model, local = begun(CELLS["plain"])
    said.append(error_of(lambda: survive_local(nn.Linear(2, 2)), kind=ValueError))
    said.append(error_of(lambda: survive_local(local, min_ranks=0), kind=ValueError))
    said.append(error_of(lambda: survive_local(local, state=[3]), kind=ValueError))
    idle = survive_local(local)(lambda step, workers: None)
    said.append(error_of(lambda: idle(-1), kind=ValueError))

    def steps_twice(step: int, workers: tuple[int, ...]) -> None:
        for worker in workers:
            with local.worker(worker):
                own_loss(model, worker, step).backward()
        local.step()

    def saves(step: int, workers: tuple[int, ...]) -> None:
        if step == 1:
            local.state_dict()
        for worker in workers:
            with local.worker(worker):
                own_loss(model, worker, step).backward()

    for body in (steps_twice, saves, lambda step, workers: None):
        model, local = begun(CELLS["plain"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said.append(error_of(lambda body=body, local=local: survive_local(local)(body)(3)))
    said.append(error_of(lambda: local.step()))
    return said


REFUSED = [
    "survive_local: delay=3 of the DiLoCo",
    "survive_local: start=4 of the DiLoCo",
    "survive_local: quorum=1 of the DiLoCo",
    "local is a Linear, must be a ringdp.DiLoCo",
    "survive_local: min_ranks=0, must be a whole number of at least 1",
    "survive_local: state[0] is a int, which has no state_dict()",
    "train: steps=-1, must be a whole number of at least 0",
    "steps_twice() has called local.step(), which survive_local does after it",
    "DiLoCo: state_dict() while workers step alone, after the meeting at step 0",
    "did not make step 0",
    "after a step that has failed",
]


def test_what_does_not_fit_is_refused_by_name(world_of):
    for said in world_of(2).run(refusals):
        for found, wanted in zip(said, REFUSED, strict=True):
            assert wanted in found


def optimizers_of_one() -> list[int]:
    _, local = begun(CELLS["plain"])
    own = local.workers()
    each = [local.optimizers(worker)[0] for worker in own]
    assert each == local.optimizers()
    return [len(each), "plays" in error_of(lambda: local.optimizers((own[0] + 7) % 8), kind=ValueError)]


def test_the_optimizers_of_one_worker(world_of):
    assert world_of(2).run(optimizers_of_one) == [[4, True]] * 2


@pytest.mark.parametrize(
    ("players", "ranks", "found"),
    [
        ([0, 0, 1, 1], 2, [[0, 1], [2, 3]]),
        ([0, 0, None, None], 2, [[0, 1], [2, 3]]),  # a newcomer
        ([0, 0, None, 1, 1, 1], 2, [[0, 1, 2], [3, 4, 5]]),
        ([None, None, 0, 0, 1, 1], 2, [[0, 2, 3], [1, 4, 5]]),
        ([1, 1, 0, 0], 2, [[0, 2], [1, 3]]),  # worker 0 is on rank 0
        ([0, 0, 0, 0, 1, 1, 1, 1], 3, [[0, 1, 2], [4, 5, 6], [3, 7]]),
        ([None, None, None], 2, [[0, 2], [1]]),
        ([0], 2, [[0], []]),
        ([None], 1, [[0]]),
    ],
)
def test_workers_stay_where_they_are_and_the_others_are_dealt_evenly(players, ranks, found):
    assert dealt(players, ranks) == found


def test_dealing_is_even_whoever_played():
    for seed in range(50):
        source = torch.Generator().manual_seed(seed)
        workers, ranks = (int(torch.randint(1, 12, (1,), generator=source)) for _ in range(2))
        players = [
            None if p == ranks else p for p in torch.randint(0, ranks + 1, (workers,), generator=source).tolist()
        ]
        by_rank = dealt(players, ranks)
        assert sorted(worker for own in by_rank for worker in own) == list(range(workers)) and 0 in by_rank[0]
        assert max(map(len, by_rank)) - min(map(len, by_rank)) <= 1
