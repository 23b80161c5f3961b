"""Outer steps of a quorum: whoever was in them, a replay of the log has the bits; errors are named, nobody hangs."""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import ringdp
import torch
import torch.distributed as dist
from local_runs import arguments_of, begun, differences, digests, expected, inner_of, model_of, own_loss
from ranks import BACKENDS, HERE, World, error_of
from ringdp.compress.exchange import Allotment
from ringdp.local.rounds import Contributors, Quorum
from ringdp.testing import one_process_local, parameters_hash
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")
WORKERS, ROUNDS, LATE = 4, 6, 2
# By name: the arguments, those of the quorum included.
CELLS: dict[str, dict[str, Any]] = {
    "any": {"every": 2, "quorum": 1, "momentum": 0.0, "outer_lr": 0.25},
    "two": {"every": 3, "quorum": 2},
    "two, int8": {"every": 3, "quorum": 2, "grace": 0.03, "compress": "int8"},
    "three, topk": {"every": 2, "quorum": 3, "grace": 0.02, "compress": "topk", "nesterov": False},
    "16 bits": {"every": 2, "quorum": 1, "grace": 0.01, "dtype": "bfloat16", "outer_lr": 0.1},
    "two bits": {"every": 2, "quorum": 2, "compress": "topk-2bit", "model": "wide", "momentum": 0.0},
    "all": {"every": 2, "quorum": WORKERS, "model": "plain", "inner": "sgd"},
}
QUORUM_OF = ("quorum", "grace", "rounds")
Log = list[tuple[tuple[int, int], ...]]


@pytest.fixture(scope="module")
def equal_world_of() -> Iterator[Callable[[int], World]]:
    """Worlds whose ranks are in equally many groups: torch makes no group of all of them elsewhere."""
    worlds: dict[int, World] = {}
    with ExitStack() as stack:

        def made(ranks: int) -> World:
            if ranks not in worlds:
                worlds[ranks] = stack.enter_context(World(ranks))
                worlds[ranks].join(60.0)
            return worlds[ranks]

        yield made


def cell_of(name: str, rounds: int = ROUNDS) -> dict[str, Any]:
    return {"workers": WORKERS, "rounds": rounds, **CELLS[name]}


def without_quorum(cell: Mapping[str, Any]) -> dict[str, Any]:
    """What the replay is given."""
    return {name: value for name, value in cell.items() if name not in QUORUM_OF}


def is_late(cell: Mapping[str, Any]) -> bool:
    """On a rank: the last one waits for others to make outer steps, where they can without it."""
    own = len(Allotment(WORKERS, HERE.size).of(HERE.rank))
    return HERE.rank == HERE.size - 1 and WORKERS - own >= cell["quorum"]


def wait_for_outer_steps(local: Any, number: int) -> None:
    """As long as a slow worker computes."""
    while len(local._meetings.log) < number and local._meetings._error is None:
        time.sleep(0.001)


def run_on(local: Any, model: nn.Module, late: bool = False) -> Any:
    """Until it is finished. late: in the middle of its first step, this rank's workers fall behind."""
    while not local.finished:
        for worker in local.workers():
            with local.worker(worker):
                if late and not local.steps:
                    wait_for_outer_steps(local, LATE)
                own_loss(model, worker, local.steps_of(worker)).backward()
        local.step()
    return local


def left_by(local: Any) -> tuple[list[Any], Log, dict[int, int]]:
    """Of a rank: digests, the log, and how many steps its workers have made."""
    steps = {worker: local.steps_of(worker) for worker in local._workers}
    return digests(local.state_dict()), local.log, steps


def all_cells(backend: str) -> dict[str, Any]:
    """On a rank."""
    found = {}
    for name in CELLS:
        model, local = begun(cell_of(name), backend)
        found[name] = left_by(run_on(local, model, is_late(cell_of(name))))
    return found


def faults_of(by_rank: list[Any], cell: Mapping[str, Any], rounds: int = ROUNDS) -> list[str]:
    """Where ranks have other bits than a replay of their log."""
    logs = [log for _, log, _ in by_rank]
    assert all(log == logs[0] for log in logs) and len(logs[0]) == rounds
    assert all(len(taken) >= cell["quorum"] for taken in logs[0])
    steps = {worker: made for _, _, own in by_rank for worker, made in own.items()}
    one = expected(without_quorum(cell), [steps[worker] for worker in range(WORKERS)], log=logs[0])
    return differences([own for own, _, _ in by_rank], one)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_replay_of_the_log_has_the_same_bits(equal_world_of, ranks):
    by_rank = equal_world_of(ranks).run(all_cells, BACKENDS[ranks % 2])
    for name in CELLS:
        assert faults_of([own[name] for own in by_rank], cell_of(name)) == [], name
        log, late = by_rank[0][name][1], [*Allotment(WORKERS, ranks).of(ranks - 1)]
        if ranks > 1 and WORKERS - len(late) >= CELLS[name]["quorum"]:
            # It took no part at first, and others did not wait for it.
            assert not {worker for taken in log[:LATE] for worker, _ in taken} & {*late}
            assert max(number for taken in log for _, number in taken) >= LATE - 1


def test_what_comes_late_is_in_the_next_outer_step(equal_world_of):
    """Stale: its round is older than those of the others that are in the same outer step."""
    by_rank = equal_world_of(3).run(until_the_late_one_was_in)
    log = by_rank[0][1]
    (place,) = [number for number, taken in enumerate(log) if (3, 0) in taken]
    assert place >= LATE and max(number for taken in log[: place + 1] for _, number in taken) > 0
    assert faults_of(by_rank, cell_of("two, int8", len(log)), len(log)) == []


def until_the_late_one_was_in() -> Any:
    """On a rank: as many outer steps more as that takes."""
    cell = cell_of("two, int8", LATE)
    model, local = begun(cell)
    run_on(local, model, is_late(cell))
    while not any((3, 0) in taken for taken in local.log):
        local.rounds += 1
        run_on(local, model)
    return left_by(local)


def test_a_quorum_of_all_is_diloco(equal_world_of):
    """Which one_process_local is without a log."""
    cell = cell_of("all")
    found = [own["all"] for own in equal_world_of(2).run(all_cells, "ringdp")]
    assert found[0][1] == [tuple((worker, number) for worker in range(WORKERS)) for number in range(ROUNDS)]
    one = expected(without_quorum(cell), ROUNDS * cell["every"])
    assert differences([own for own, _, _ in found], one) == []


def without_blocks() -> tuple[str, Log]:
    """On a rank: the usual loop, of one worker."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    local = ringdp.DiLoCo(model, lambda ps: torch.optim.SGD(ps, lr=0.1), workers=HERE.size, every=2, quorum=1, rounds=4)
    while not local.finished:
        step = local.steps_of(HERE.rank)
        model(torch.full((2, 3), step + HERE.rank + 1.0)).square().mean().backward()
        local.step()
    with local.outer():
        return parameters_hash(model), local.log


def test_one_worker_on_each_rank_needs_no_block(pair):
    (found, log), (other, _) = pair.run(without_blocks)
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    one_process_local(
        model,
        lambda ps: torch.optim.SGD(ps, lr=0.1),
        lambda model, worker, step: model(torch.full((2, 3), step + worker + 1.0)).square().mean(),
        workers=2, every=2, log=log,
    )  # fmt: skip
    assert found == other == parameters_hash(model)


def test_when_a_quorum_is_met():
    quorum = Quorum(2, 5.0, 3)
    assert [quorum.is_met(waiting, now) for waiting, now in [(0, 0.0), (1, 1.0), (2, 2.0), (2, 6.9)]] == [False] * 4
    assert quorum.is_met(2, 7.0)
    assert not quorum.is_met(2, 8.0) and not quorum.is_met(2, 12.9) and quorum.is_met(3, 12.9)  # all are there
    assert quorum.is_met(3, 13.0) and not quorum.is_met(1, 20.0)
    assert Quorum(1, 0.0, 3).is_met(1, 0.0)
    assert [Quorum(2, grace, 3).is_certain(2) for grace in (0.0, 0.1)] == [True, False]


def test_contributors_are_on_the_ranks_that_play_them():
    for ranks in range(1, 5):
        players = Allotment(WORKERS, ranks)
        for size in range(1, WORKERS + 1):
            for numbers in itertools.combinations(range(WORKERS), size):
                present = Contributors(size, ranks, numbers=numbers, players=players)
                on_ranks = [[numbers[place] for place in present.of(rank)] for rank in range(ranks)]
                assert on_ranks == [[w for w in players.of(rank) if w in numbers] for rank in range(ranks)]


RESTARTED = ("two, int8", "16 bits", "two bits")


def saved(name: str, folder: str) -> Log:
    """On a rank: half of the outer steps, then a checkpoint and a state dict."""
    model, local = begun(cell_of(name, ROUNDS // 2))
    run_on(local, model, is_late(cell_of(name)))
    ringdp.checkpoint.save(Path(folder) / "checkpoint", model, local)
    torch.save(local.state_dict(), Path(folder) / f"state-{HERE.rank}")
    return local.log


def resumed(name: str, folder: str, ranks: int) -> list[Any]:
    """On a rank: the other half, from both; the second one over a run that has gone elsewhere."""
    model, local = begun(cell_of(name))
    ringdp.checkpoint.load(Path(folder) / "checkpoint", model, local)
    found = [left_by(run_on(local, model))]
    states = [torch.load(Path(folder) / f"state-{rank}", weights_only=False) for rank in range(ranks)]
    local.load_state_dict(states[::-1])
    return [*found, left_by(run_on(local, model))]


@pytest.mark.parametrize(("name", "before", "after"), [*zip(RESTARTED, (3, 2, 4), (2, 4, 1), strict=True)])
def test_a_run_goes_on_from_a_checkpoint(equal_world_of, tmp_path, name, before, after):
    log = equal_world_of(before).run(saved, name, str(tmp_path))[0]
    for found in zip(*equal_world_of(after).run(resumed, name, str(tmp_path), before), strict=True):
        assert faults_of(list(found), cell_of(name)) == []
        assert found[0][1][: ROUNDS // 2] == log


def gone_on() -> Any:
    """On a rank: rounds are added, in the middle of those of slow workers."""
    cell = cell_of("two", 2)
    model, local = begun(cell)
    run_on(local, model, is_late(cell))
    errors = [error_of(local.step), error_of(lambda: setattr(local, "rounds", 1), kind=ValueError)]
    own = local.state_dict()
    for rounds in (3, ROUNDS):
        local.rounds = rounds
        run_on(local, model)
    other = ringdp.DiLoCo(model_of(cell), inner_of(cell), every=3, workers=WORKERS)
    states: list[Any] = [None] * HERE.size
    dist.all_gather_object(states, own)
    errors += [
        error_of(other.load_state_dict, states, kind=ValueError),
        error_of(lambda: other.rounds, kind=ValueError),
    ]
    return errors, left_by(local)


def test_rounds_are_added(trio):
    by_rank = trio.run(gone_on)
    for (over, fewer, state, rounds), _ in by_rank:
        assert "step() after all of rounds=2 outer steps: loop while not local.finished" in over
        assert "rounds=1, must be a whole number of at least 2" in fewer
        assert "the state is of has_quorum=True, this run has has_quorum=False" in state
        assert "rounds without quorum=" in rounds
    assert faults_of([left for _, left in by_rank], cell_of("two")) == []


def wrong_ways() -> list[str]:
    """On a rank: in the middle of a run, of which the second rank's workers wait for the first one's."""
    cell = {**cell_of("two", 2), "quorum": 3}
    model, local = begun(cell)
    found: list[str] = []
    while not local.finished:
        for worker in local.workers():
            with local.worker(worker):
                if HERE.rank == 0 and local.steps_of(worker) == 1:
                    with pytest.raises(RuntimeError):
                        local.step()
                own_loss(model, worker, local.steps_of(worker)).backward()
        local.step()
        if not found:
            found = [error_of(local.state_dict), error_of(local.holder, {}), error_of(local.load_state_dict, [])]
            found.append(error_of(lambda: setattr(local, "rounds", 9)))
            found.append(error_of(local.steps_of, 9, kind=ValueError))
            with local.outer():
                pass
    assert error_of(lambda: local.worker(local._workers.in_place).__enter__())
    assert local.workers() == []
    return found


def test_what_needs_a_still_state_is_refused_under_way(pair):
    for state, _, load, rounds, unknown in pair.run(wrong_ways):
        assert "state_dict() while outer steps are on their way" in state and "set local.rounds to go on" in state
        assert "load_state_dict() while outer steps are on their way" in load
        assert "rounds= while outer steps are on their way" in rounds
        assert "steps_of(9) on rank" in unknown


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_worker_that_was_left_out_is_known_to_all(pair, backend):
    for rank, (error, after, mended) in enumerate(pair.run(left_out, backend)):
        assert "rank 1: worker 3 did not make step 1" in error, rank
        assert "after a step that has failed" in after
        assert mended


def left_out(backend: str) -> tuple[str, str, bool]:
    """On a rank: rank 1 forgets a worker; then a state is loaded."""
    cell = {**cell_of("all"), "quorum": 2}
    model, local = begun(cell, backend)
    states: list[Any] = [None] * HERE.size
    dist.all_gather_object(states, local.state_dict())

    def loop() -> None:
        while not local.finished:
            for worker in local.workers():
                if (worker, local.steps_of(worker)) != (3, 1):
                    with local.worker(worker):
                        own_loss(model, worker, local.steps_of(worker)).backward()
            local.step()

    errors = error_of(loop), error_of(local.step)
    local.load_state_dict(states)
    run_on(local, model)
    return *errors, local.steps == ROUNDS


def failing_inner_step() -> list[str]:
    """On a rank: rank 1's inner optimizer raises an error, and the rank stays alive."""
    model, local = begun({**cell_of("all"), "quorum": 3})

    def fails(*_: object) -> None:
        raise ValueError("no memory")

    if HERE.rank == 1:
        local.optimizers()[1].register_step_pre_hook(fails)
    return error_of(run_on, local, model, kind=(RuntimeError, ValueError))


def test_an_inner_step_that_fails_is_known_to_all(pair):
    other, own = pair.run(failing_inner_step)
    assert own == "no memory" and "rank 1: the inner step of worker 3: no memory" in other


def different_rounds() -> str:
    """On a rank."""
    model, local = begun(cell_of("all", 1))
    run_on(local, model)
    local.rounds = 3 + HERE.rank
    return error_of(run_on, local, model)


def test_ranks_that_want_other_rounds_are_told(pair):
    for said in pair.run(different_rounds):
        assert "rounds= differs between ranks: rank 0: 3; rank 1: 4" in said


def endless(folder: str) -> str:
    """On a rank: the last one makes a step and is busy then; the others go on without it until it is gone."""
    model, local = begun({**cell_of("two", 1 << 30), "quorum": 2})
    if HERE.rank < 2:
        return error_of(run_on, local, model)
    for worker in local.workers():
        with local.worker(worker):
            own_loss(model, worker, 0).backward()
    local.step()
    wait_for_outer_steps(local, 1)
    (Path(folder) / "busy").touch()
    while True:
        time.sleep(1)


def test_a_rank_that_dies_is_named(run_on_fresh_ranks, tmp_path):
    world = run_on_fresh_ranks(3)
    world.join(timeout_s=30)
    world.begin(endless, str(tmp_path))
    while not (tmp_path / "busy").exists():
        time.sleep(0.01)
    world.signal(2, signal.SIGKILL)
    for outcome in world.finish([0, 1]):
        assert "rank 2" in outcome.value


@pytest.mark.parametrize(
    ("log", "steps", "said"),
    [
        ([[(0, 0)], [(0, 2)]], None, "log: outer step 1 takes round 2 of worker 0: must be the next round of one of"),
        ([[(0, 0), (0, 0)]], None, "log: outer step 0 takes round 0 of worker 0"),
        ([[]], None, "log: outer step 0 takes nothing"),
        ([[(4, 0)]], None, "takes round 0 of worker 4: must be the next round of one of 4 workers"),
        ([[(0, 0)]], [2, 0, 0], "steps=[2, 0, 0] with log=: must be of each of 4 workers"),
        ([[(0, 0)]], [1, 0, 0, 0], "at most a round of 2 more than [2, 0, 0, 0], which are in the log"),
        (None, None, "steps=None, must be a whole number without log="),
    ],
)
def test_a_log_that_is_none_is_refused(log, steps, said):
    cell = without_quorum(cell_of("all"))
    given = (model_of(cell), inner_of(cell), own_loss)
    error = error_of(lambda: one_process_local(*given, log=log, steps=steps, **arguments_of(cell)), kind=ValueError)
    assert said in error


def test_a_log_has_each_round_once(pair):
    _, log, _ = pair.run(all_cells, "ringdp")[0]["any"]
    counts = Counter(entry for taken in log for entry in taken)
    assert set(counts.values()) == {1}
