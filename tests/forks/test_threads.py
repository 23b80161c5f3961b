"""Groups made and driven from threads other than the main one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ranks import HERE, World, join

GROUPS, CALLS = 4, 40


def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """The function's value from a thread of its own; its error is raised here."""
    values: list[Any] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            values.append(function(*args))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return values[0]


def total(value: float) -> float:
    tensor = torch.full((5000,), value)
    dist.all_reduce(tensor)
    assert float(tensor.min()) == float(tensor.max())
    return float(tensor[0])


def life_in_threads() -> list[float]:
    """On a rank: joins in one thread, communicates in another and in the main one, leaves in a third."""
    in_thread(join, 60.0, {})
    totals = [in_thread(total, 1.0), total(2.0)]
    in_thread(dist.destroy_process_group)
    in_thread(join, 60.0, {})
    totals.append(total(3.0))
    return totals


def several_groups() -> list[int]:
    """On a rank: one thread per group, all at once; how many wrong results each saw."""
    groups = [dist.new_group(range(HERE.size)) for _ in range(GROUPS)]
    wrong = [0] * GROUPS
    together = threading.Barrier(GROUPS)

    def drive(index: int) -> None:
        together.wait()
        for call in range(CALLS):
            tensor = torch.full((1 + 997 * index,), float(call + HERE.rank))
            work = dist.all_reduce(tensor, group=groups[index], async_op=call % 2 == 1)
            if work is not None:
                work.wait()
            expected = float(sum(call + rank for rank in range(HERE.size)))
            wrong[index] += int((tensor != expected).sum())

    threads = [threading.Thread(target=drive, args=(index,)) for index in range(GROUPS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for group in groups:
        dist.destroy_process_group(group)
    return wrong


def test_groups_may_be_made_and_ended_in_any_thread():
    with World(2) as world:
        assert world.run(life_in_threads) == [[2.0, 4.0, 6.0]] * 2


def test_several_groups_driven_by_several_threads_at_once(make_world):
    assert make_world(3).run(several_groups) == [[0] * GROUPS] * 3
