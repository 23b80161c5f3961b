"""Work objects: waiting, completion, batches and profiles."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, error_of, on_ranks
from torch.profiler import ProfilerActivity, profile


def start(value: float = 1.0, group: dist.ProcessGroup | None = None) -> tuple[torch.Tensor, dist.Work]:
    tensor = torch.full((1000,), value)
    return tensor, dist.all_reduce(tensor, async_op=True, group=group)


def values_over(group: dist.ProcessGroup) -> dict[str, str]:
    tensor, whole = torch.ones(4), torch.ones(4 * HERE.size)
    parts = [torch.ones(4) for _ in range(HERE.size)]
    at_root = parts if HERE.rank == 0 else None
    given = {"group": group, "async_op": True}
    works = {
        "all_reduce": dist.all_reduce(tensor, **given),
        "reduce": dist.reduce(tensor, 0, **given),
        "broadcast": dist.broadcast(tensor, 0, **given),
        "all_gather": dist.all_gather(parts, torch.ones(4), **given),
        "gather": dist.gather(tensor, at_root, 0, **given),
        "scatter": dist.scatter(torch.ones(4), at_root, 0, **given),
        "all_to_all": dist.all_to_all([torch.ones(4) for _ in parts], parts, **given),
        "all_to_all_single": dist.all_to_all_single(torch.ones(4 * HERE.size), whole, **given),
        "allreduce_coalesced": group.allreduce_coalesced([tensor, whole]),
        "allgather_coalesced": group.allgather_coalesced([[torch.ones(4)] for _ in parts], [tensor]),
    }
    return {name: shape_of(work.get_future().wait()) for name, work in works.items()}


def shape_of(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(shape_of(item) for item in value) + "]"
    return type(value).__name__


HELD_S = 0.5


@pytest.mark.parametrize("dropped", [True, False], ids=["dropped", "held"])
@on_ranks(2, True)
def test_a_rank_that_keeps_the_gil_holds_up_no_other(dropped: bool) -> bool:
    """Tensors are not freed by the thread that moves the calls: freeing one may take the GIL."""
    first, second, gathered = torch.ones(8), torch.ones(8), torch.ones(16)
    dist.barrier()
    held = None if dropped else dist.all_gather_into_tensor(gathered, first, async_op=True)
    if dropped:
        dist.all_reduce(first, async_op=True)
    work = dist.all_reduce(second, async_op=True)
    if HERE.rank == 1:
        ctypes.PyDLL(None).usleep(int(HELD_S * 1e6))  # without giving the GIL up
    else:
        work.wait()
    ended = torch.tensor([time.monotonic()], dtype=torch.float64)
    work.wait()
    if held is not None:
        held.wait()
    times = [torch.zeros_like(ended) for _ in range(2)]
    dist.all_gather(times, ended)
    return bool(times[0] < times[1])


@on_ranks(3)
def test_an_error_is_in_work_and_future() -> None:
    group = dist.new_group(range(HERE.size), timeout=timedelta(seconds=1))
    if HERE.rank == 0:
        return
    _, work = start(group=group)
    future, wait = error_of(work.get_future().wait), error_of(work.wait, kind=dist.DistBackendError)
    assert "Timeout: " in future and "rank 0 (pid" in future
    assert wait.startswith("Timeout: ") and "rank 0 (pid" in wait
    assert work.is_completed() and not work.is_success() and work.exception() is not None


def failing_batch() -> tuple[list[str], list[bool]]:
    """On a rank: a batch of two sums that rank 0 does not join: what it and its Future say before and after the end."""
    group = dist.new_group(range(HERE.size))
    backend = group._get_backend(torch.device("cpu"))
    backend.set_timeout(timedelta(seconds=1))  # of the calls from now on
    if HERE.rank == 0:
        return [], []
    backend._start_coalescing()
    sums = [start(group=group)[1] for _ in range(2)]
    batch = backend._end_coalescing()
    states = [batch.is_completed(), batch.is_success(), batch.exception() is not None]
    future = batch.get_future()  # asked for before the end, and below after it
    said = [error_of(batch.wait), error_of(future.wait), error_of(lambda: batch.get_future().wait())]
    states += [batch.is_completed(), batch.is_success(), batch.exception() is not None]
    return [*said, error_of(sums[0].source_rank)], states


@on_ranks(3, [True] * 6)
def test_a_work_from_call_to_end() -> list[bool]:
    """What a Work says before and after."""
    dist.barrier()
    tensor, work = start()
    waits = [work.wait(), work.wait(timedelta(seconds=1)), work.wait()]
    return [
        all(waits),
        work.is_completed(),
        work.is_success(),
        work.exception() is None,
        len(work.result()) == 1 and work.result()[0].data_ptr() == tensor.data_ptr(),
        float(tensor[0]) == HERE.size,
    ]


@on_ranks(3, 3.0)
def test_work_nobody_waits_for_is_done_by_itself() -> float:
    """Nobody waits, and it is done all the same."""
    tensor, work = start()
    end = time.monotonic() + 20
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.001)
    return float(tensor[0])


@on_ranks(3, 6.0)
def test_a_work_that_is_let_go_is_done_too() -> float:
    """The Work and its tensor are let go at once; later sums are not disturbed."""
    for _ in range(50):
        start()
    tensor, work = start(2.0)
    work.wait()
    return float(tensor[0])


@on_ranks(3, {"[Tensor]"})
def test_futures_of_one_output_hold_it_in_a_list() -> set[str]:
    """Of calls whose output is one tensor; gloo has no Future for them, or one of its parts."""
    part, whole = torch.ones(4), torch.ones(4 * HERE.size)
    works = [
        dist.all_gather_into_tensor(whole, part, async_op=True),
        dist.reduce_scatter(part, list(whole.chunk(HERE.size)), async_op=True),
        dist.reduce_scatter_tensor(part, whole, async_op=True),
    ]
    return {shape_of(work.get_future().wait()) for work in works}


@on_ranks(3)
def test_futures_hold_what_gloo_s_hold() -> None:
    """The shapes of their values, also on ranks that receive nothing, as far as gloo has Futures."""
    assert values_over(dist.group.WORLD) == values_over(dist.new_group(backend="gloo"))


@on_ranks(3, ([1.5, 2.5, 3.0], True))
def test_callbacks_run_once_each_and_off_the_calling_thread() -> tuple[list[float], bool]:
    """Callbacks attached before and after the end; whether the early one left the calling thread alone."""
    dist.barrier()
    if HERE.rank == 0:
        time.sleep(0.1)  # the others attach before the end
    threads: list[int] = []

    def halve(future: torch.futures.Future) -> float:
        threads.append(threading.get_ident())
        return float(future.value()[0][0]) / 2

    _, work = start()
    early = work.get_future().then(halve)
    chained = early.then(lambda future: future.value() + 1)
    work.wait()
    late = work.get_future().then(lambda future: float(future.value()[0][0]))
    return [early.wait(), chained.wait(), late.wait()], HERE.rank == 0 or threads[0] != threading.get_ident()


def test_an_error_of_one_is_in_the_batch_and_its_future(pair):
    said, states = pair.run(failing_batch)[1]
    assert all("Timeout: " in words and "rank 0 (pid" in words for words in said[:3]), said
    assert "only a receive has a source rank; this is all_reduce" in said[3]
    assert states == [False, False, False, True, False, True]


@on_ranks(3, [3.0 * step for step in range(20) for _ in range(2)])
def test_two_groups_waited_for_in_crossed_orders() -> list[float]:
    """Two groups, two threads, each waits for them in another order."""
    groups = [dist.new_group(range(HERE.size)) for _ in range(2)]
    sums = []
    for step in range(20):
        pairs = [start(float(step), group) for group in groups]
        order = pairs if HERE.rank % 2 else pairs[::-1]
        waiters = [threading.Thread(target=work.wait) for _, work in order]
        for waiter in waiters:
            waiter.start()
        for waiter in waiters:
            waiter.join()
        sums += [float(tensor[0]) for tensor, _ in pairs]
    one_by_one = [start(1.0, group) for group in groups]
    for _, work in one_by_one if HERE.rank % 2 else one_by_one[::-1]:
        work.wait()
    for group in groups:
        dist.destroy_process_group(group)
    return sums


def waits_for_what_it_calls() -> float:
    """On a rank: callbacks that wait for the Futures of collectives that they start, one within the other."""

    def again(future: torch.futures.Future) -> torch.Tensor:
        return dist.all_reduce(future.value()[0], async_op=True).get_future().then(once_more).wait()

    def once_more(future: torch.futures.Future) -> torch.Tensor:
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    work = dist.all_reduce(torch.ones(100_000), async_op=True)
    return float(work.get_future().then(again).wait()[0])


@on_ranks(2, list(range(50)))
def test_callbacks_keep_the_order_of_the_collectives() -> list[int]:
    """Callbacks of collectives come in the order of the collectives."""
    seen: list[int] = []
    futures = []
    for index in range(50):
        work = dist.all_reduce(torch.ones(10), async_op=True)
        futures.append(work.get_future().then(lambda _, index=index: seen.append(index)))
    for future in futures:
        future.wait()
    return sorted(seen) if seen == sorted(seen) or HERE.size == 1 else seen


@on_ranks(2, 4.0)
def test_a_callback_may_start_the_next_collective() -> float:
    """A callback that starts the next collective, as comm hooks do."""
    work = dist.all_reduce(torch.ones(4), async_op=True)

    def again(future: torch.futures.Future) -> torch.futures.Future:
        return dist.all_reduce(future.value()[0], async_op=True).get_future()

    inner = work.get_future().then(again).wait()
    return float(inner.wait()[0][0])


def test_a_callback_may_wait_for_what_it_calls(pair):
    for _ in range(10):
        assert pair.run(waits_for_what_it_calls) == [8.0, 8.0]


@on_ranks(2)
def test_a_callback_that_fails_harms_no_other() -> None:
    """The error goes to who asked for the callback's value; the next collective works."""
    work = dist.all_reduce(torch.ones(4), async_op=True)
    broken = work.get_future().then(lambda _: 1 // 0)
    with pytest.raises(Exception, match=r"division|ZeroDivisionError"):
        broken.wait()
    tensor = torch.ones(4)
    dist.all_reduce(tensor, async_op=True).get_future().wait()
    assert tensor[0] == 2


@on_ranks(3)
def test_an_error_of_one_is_the_error_of_all() -> None:
    """Rank 1 aborts instead of joining a batch."""
    group = dist.new_group(range(HERE.size))
    backend = group._get_backend(torch.device("cpu"))
    if HERE.rank == 1:
        backend.abort()
    else:
        # The abort may come before the first call, then it is the call that fails.
        with pytest.raises(dist.DistBackendError, match="rank 1 aborted"):
            work = group.allreduce_coalesced([torch.ones(10)] * 3, dist.AllreduceCoalescedOptions())
            try:
                work.wait()
            finally:
                assert not work.is_success()
    dist.barrier()
    dist.destroy_process_group(group)


@on_ranks(3, (True, [3.0] * 3, [3.0] * 3))
def test_results_of_all() -> tuple[bool, list[float], list[float]]:
    """A batch of three sums, waited for with a timeout; result() and Future."""
    tensors = [torch.full((1000 * i,), float(HERE.rank)) for i in range(1, 4)]
    work = dist.group.WORLD.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions())
    work.wait(timedelta(seconds=30))
    done = work.is_completed() and work.is_success()
    return done, [float(tensor[0]) for tensor in work.get_future().wait()], [float(t[-1]) for t in work.result()]


@on_ranks(3, [3.0] * 3)
def test_callbacks_see_all_results() -> list[float]:
    """Torch gives a Future of the coalesced form; its callbacks see all results."""
    tensors = [torch.full((1000 * i,), float(HERE.rank)) for i in range(1, 4)]
    future = dist.all_reduce_coalesced(tensors, async_op=True)
    return future.then(lambda done: [float(tensor[0]) for tensor in done.value()]).wait()


TITLES = [
    "ringdp:all_reduce",
    "ringdp:broadcast",
    "ringdp:all_gather",
    "ringdp:_all_gather_base",
    "ringdp:reduce_scatter",
    "ringdp:_reduce_scatter_base",
    "ringdp:barrier",
]


@on_ranks(2)
def test_the_profiler_sees_every_collective() -> None:
    """Every collective once; how often each event was seen, and how long all_reduce took."""
    parts = [torch.ones(4) for _ in range(HERE.size)]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as result:
        dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(4), 0)
        dist.all_gather(parts, torch.ones(4))
        dist.all_gather_into_tensor(torch.ones(4 * HERE.size), torch.ones(4))
        dist.reduce_scatter(torch.ones(4), parts)
        dist.reduce_scatter_tensor(torch.ones(4), torch.ones(4 * HERE.size))
        dist.barrier()
    events = {event.key: event for event in result.key_averages()}
    assert {title: events[title].count for title in TITLES} == dict.fromkeys(TITLES, 1)
    assert events["record_param_comms"].count >= len(TITLES)
    assert events["ringdp:all_reduce"].cpu_time_total > 0


@on_ranks(2, [2.0] * 20)
def test_a_profiler_may_be_stopped_while_work_is_under_way() -> list[float]:
    """Of collectives and messages; rank 1 begins when rank 0's profiler is gone, and its events with it."""
    found = []
    for _ in range(20):
        numbers, other = torch.ones(50_000), torch.ones(50_000)
        works, events = [], None
        if HERE.rank == 0:
            with profile(activities=[ProfilerActivity.CPU]) as result:
                works = [dist.all_reduce(numbers, async_op=True), dist.isend(other, 1), dist.irecv(other.clone(), 1)]
            events = {event.key for event in result.key_averages()}
            assert {"ringdp:all_reduce", "ringdp:send", "ringdp:recv"} <= events
            del result
        dist.send(torch.ones(1), 1 - HERE.rank, tag=7) if HERE.rank == 0 else dist.recv(torch.ones(1), 0, tag=7)
        if HERE.rank == 1:
            works = [dist.all_reduce(numbers, async_op=True), dist.irecv(other, 0), dist.isend(other.clone(), 0)]
        for work in works:
            work.wait()
        found.append(float(numbers[0]))
    return found


@on_ranks(2, [1.0] * 10)
def test_a_profiler_may_be_left_by_an_error_of_the_first_of_several() -> list[float]:
    """Calls that are waited for one after the other: rank 0 gives the first one up."""
    found = []
    for _ in range(10):
        ones, sums = torch.ones(2000), torch.zeros(1000)
        works = []
        with contextlib.suppress(dist.DistBackendError), profile(activities=[ProfilerActivity.CPU]) as result:
            if HERE.rank == 0:
                with dist._coalescing_manager(async_ops=True) as batch:
                    dist.reduce_scatter_tensor(sums, ones)
                    dist.reduce_scatter_tensor(torch.zeros(1000), ones)
                works = batch.works
                for work in works:
                    work.wait(timedelta(milliseconds=20))
        result.key_averages()
        del result
        dist.send(torch.ones(1), 1, tag=7) if HERE.rank == 0 else dist.recv(torch.ones(1), 0, tag=7)
        if HERE.rank == 1:
            with dist._coalescing_manager():
                dist.reduce_scatter_tensor(sums, ones)
                dist.reduce_scatter_tensor(torch.zeros(1000), ones)
        for work in works:
            work.wait()
        found.append(float(sums[0]) / 2)
    return found


@on_ranks(2, 2.0)
def test_collectives_work_without_a_profiler() -> float:
    """Nothing is recorded for nobody."""
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return float(tensor[0])


@on_ranks(2, ([2.0], [7.0]))
def test_a_call_keeps_the_memory_that_a_tensor_had_when_it_began() -> tuple[list[float], list[float]]:
    """Rank 0 gives the tensor other memory while the call is under way. What the others got; what is in new memory."""
    parts = torch.full((1 << 18,), 1.0)
    if HERE.rank == 1:
        time.sleep(0.2)
    work = dist.all_reduce(parts, async_op=True)
    if HERE.rank == 0:
        parts.data = torch.full((1,), 2.0)
    others = [torch.full((1 << 18,), 7.0) for _ in range(4)]  # where freed memory would be used again
    work.wait()
    return parts.unique().tolist(), torch.cat(others).unique().tolist()
