"""survive_local() without faults: the bits of one process, what it refuses, and who plays whom."""

from __future__ import annotations

import warnings
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import ringdp
import torch
import torch.distributed as dist
from local_runs import CELLS, STEPS, begun, differences, digests, expected, own_loss, trained
from ranks import HERE, error_of
from ringdp.elastic import local_training, world_loop
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


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


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
    for given in ({"state": local}, {"copies": "no"}, {"patience": "30"}, {"after": 3}, {"save_every": True}):
        said.append(error_of(lambda given=given: survive_local(local, **given), kind=ValueError))
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
    "survive_local: state is a DiLoCo, must be a list of objects with state_dict()",
    "survive_local: copies='no', must be True or False",
    "survive_local: patience='30', must be a number of seconds above 0",
    "survive_local: after=3, must be a function",
    "survive_local: save_every=True, must be a whole number of at least 1",
    "train: steps=-1, must be a whole number of at least 0",
    "steps_twice() has called local.step(), which survive_local does after it",
    "DiLoCo: state_dict() while workers step alone, after the meeting at step 0",
    "did not make step 0",
    "after a step that has failed",
]


def shared_optimizers() -> list[str]:
    """On a rank that plays one worker: what inner has given it would be that of a second one, too."""
    said, model, kept = [], linear(), []
    kept.append(torch.optim.SGD(model.parameters(), lr=0.1))
    local = ringdp.DiLoCo(model, lambda ps: kept[-1], workers=2, every=2)
    said.append(error_of(lambda: survive_local(local), kind=ValueError))
    kept.append(torch.optim.SGD(model.parameters(), lr=0.1))
    survive_local(local)
    with local.kept_meetings() as meetings:
        meetings.add(7, None)
        said.append(error_of(lambda: meetings.add(8, None), kind=ValueError))
    return said


def test_an_inner_optimizer_of_two_workers_is_refused_though_each_rank_plays_one(world_of):
    for said in world_of(2).run(shared_optimizers):
        assert len(said) == 2 and all("inner has given two workers the same SGD" in text for text in said)


def test_what_does_not_fit_is_refused_by_name(world_of):
    for said in world_of(2).run(refusals):
        for found, wanted in zip(said, REFUSED, strict=True):
            assert wanted in found


def body_of(model: nn.Module, local: Any) -> Any:
    def train(step: int, workers: tuple[int, ...]) -> None:
        for worker in workers:
            with local.worker(worker):
                own_loss(model, worker, step).backward()

    return train


def other_steps() -> tuple[str, list[Any]]:
    """On a rank: the error, and digests of the steps that are made after it."""
    model, local = begun(CELLS["plain"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train = survive_local(local)(body_of(model, local))
        said = error_of(lambda: train(STEPS + HERE.rank))
        train(STEPS)
    return said, digests(local.state_dict())


def test_ranks_that_were_not_given_the_same_say_in_what_and_may_go_on(world_of):
    found = world_of(2).run(other_steps)
    for said, _ in found:
        assert f"First difference: rank 0: steps={STEPS}; rank 1: steps={STEPS + 1}" in said
    assert differences([own for _, own in found], expected(CELLS["plain"])) == []


def test_a_training_that_is_refused_changes_nothing(monkeypatch):
    model, local = begun(CELLS["plain"], backend=None)
    member = SimpleNamespace(trains=True, terms={"ranks": 2})
    monkeypatch.setattr(world_loop, "this_member", lambda: member)
    train = survive_local(local, min_ranks=3)(body_of(model, local))
    assert "survive_local: a second training in one process" in error_of(lambda: train(3))
    member.trains = False
    assert "survive_local: min_ranks=3 of a job that has 2 at most" in error_of(lambda: train(3), kind=ValueError)
    assert differences([digests(trained(local, model, STEPS).state_dict())], expected(CELLS["plain"])) == []
    member.trains = True
    for worker in local.workers():  # as of a rank that more ranks than workers have left with none
        local._workers.remove(worker)
    assert "survive_local: a second training in one process" in error_of(lambda: train(STEPS))


def test_a_function_that_communicates_is_not_called_again():
    _, local = begun(CELLS["plain"], backend=None)

    @survive_local(local)
    def train(step: int, workers: tuple[int, ...]) -> None:
        raise dist.DistBackendError("PeerLost: rank 1 is gone")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = error_of(lambda: train(1))
    assert "survive_local: train() must not communicate: ranks are at different steps there" in said


def test_a_slow_store_does_not_hide_that_a_rank_makes_steps(monkeypatch):
    """Each look takes 4 s, and others wait for a sign of life for 10 s."""
    now, told = [0.0], [0.0]
    monkeypatch.setattr(local_training, "time", SimpleNamespace(monotonic=lambda: now[0]))
    _, local = begun(CELLS["plain"], backend=None)
    train = survive_local(local)(lambda step, workers: None)
    train._arrivals = SimpleNamespace(tell_step=lambda: told.append(now[0]))
    train._member = SimpleNamespace(timeout_s=10.0, left=lambda: now.__setitem__(0, now[0] + 4.0) or set())
    while now[0] < 100.0:
        train._look()
        now[0] += 0.5  # a step
    assert max(later - before for before, later in pairwise(told)) < 10.0


def test_why_a_worker_makes_no_step_now():
    """In other words where others make up for theirs than where it waits for a quorum."""
    _, local = begun({"workers": 2, "every": 4, "model": "plain"}, backend=None)
    with local.kept_meetings() as meetings:
        meetings.made = {0: 3, 1: 2}
        said = error_of(lambda: local.worker(0).__enter__())
    assert "DiLoCo: worker 0 has made this step already, and others of this rank" in said
    _, waiting = begun({"workers": 2, "every": 4, "model": "plain", "quorum": 1, "rounds": 2}, backend=None)
    waiting._meetings._waiting.add(0)
    assert "worker 0 has contributed and waits for an outer step" in error_of(lambda: waiting.worker(0).__enter__())


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
