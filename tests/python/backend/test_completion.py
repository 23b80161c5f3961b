"""The completion thread: callbacks in order, outside locks, and a failing one harms no other."""

from __future__ import annotations

import torch
import torch.distributed as dist
from ranks import HERE


def in_order() -> list[int]:
    """On a rank: callbacks of collectives come in the order of the collectives."""
    seen: list[int] = []
    futures = []
    for index in range(50):
        work = dist.all_reduce(torch.ones(10), async_op=True)
        futures.append(work.get_future().then(lambda _, index=index: seen.append(index)))
    for future in futures:
        future.wait()
    return sorted(seen) if seen == sorted(seen) or HERE.size == 1 else seen


def calls_back_into_the_group() -> float:
    """On a rank: a callback that starts the next collective, as comm hooks do."""
    work = dist.all_reduce(torch.ones(4), async_op=True)

    def again(future: torch.futures.Future) -> torch.futures.Future:
        return dist.all_reduce(future.value()[0], async_op=True).get_future()

    inner = work.get_future().then(again).wait()
    return float(inner.wait()[0][0])


def waits_for_what_it_calls() -> float:
    """On a rank: callbacks that wait for the Futures of collectives that they start, one within the other."""

    def again(future: torch.futures.Future) -> torch.Tensor:
        return dist.all_reduce(future.value()[0], async_op=True).get_future().then(once_more).wait()

    def once_more(future: torch.futures.Future) -> torch.Tensor:
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    work = dist.all_reduce(torch.ones(100_000), async_op=True)
    return float(work.get_future().then(again).wait()[0])


def failing_callback() -> tuple[str, float]:
    """On a rank: the error goes to who asked for the callback's value; the next collective works."""
    work = dist.all_reduce(torch.ones(4), async_op=True)
    broken = work.get_future().then(lambda _: 1 // 0)
    message = ""
    try:
        broken.wait()
    except Exception as error:
        message = str(error)
    tensor = torch.ones(4)
    dist.all_reduce(tensor, async_op=True).get_future().wait()
    return message, float(tensor[0])


def test_callbacks_keep_the_order_of_the_collectives(pair):
    assert pair.run(in_order) == [list(range(50))] * 2


def test_a_callback_may_start_the_next_collective(pair):
    assert pair.run(calls_back_into_the_group) == [4.0, 4.0]


def test_a_callback_may_wait_for_what_it_calls(pair):
    for _ in range(10):
        assert pair.run(waits_for_what_it_calls) == [8.0, 8.0]


def test_a_callback_that_fails_harms_no_other(pair):
    for message, total in pair.run(failing_callback):
        assert "division" in message or "ZeroDivisionError" in message
        assert total == 2.0
