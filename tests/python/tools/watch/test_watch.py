"""`ringdp.watch` in jobs: what it finds within 50 steps, what it leaves alone, and that nothing of it can hang."""

from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import contextmanager

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.tools.watch import watch as watching
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

STEPS = 50


class Lines(logging.Handler):
    """What the watch has logged on this rank, its notes left out."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


@contextmanager
def logged():
    lines = Lines()
    watching.log.addHandler(lines)
    try:
        yield lines.said
    finally:
        watching.log.removeHandler(lines)


def wrapped(kind="ringdp", backend="ringdp", **arguments):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    group = None if backend == "ringdp" else dist.new_group(backend=backend)
    classes = {"ringdp": ringdp.DistributedDataParallel, "torch": torch.nn.parallel.DistributedDataParallel}
    return classes[kind](model, process_group=group, **arguments)


def train(ddp, steps=STEPS, optimizer=None, before=lambda step: None, after=lambda step: None):
    optimizer = optimizer or torch.optim.Adam(ddp.parameters(), lr=1e-3)
    for step in range(steps):
        before(step)
        optimizer.zero_grad()
        ddp(torch.full((4, 32), 1.0 + HERE.rank + step)).square().mean().backward()
        optimizer.step()
        after(step)


def stopped(watch):
    """On all ranks: what the others report is there when rank 0 judges for the last time."""
    if HERE.rank:
        watch.stop()
    dist.barrier()
    watch.stop()


def nothing_to_find(kind, backend):
    with logged() as said:
        ddp = wrapped(kind, backend)
        with ringdp.watch(ddp, budget=1.0) as watch:
            train(ddp)
            stopped(watch)
    return [line for line in said if "straggler" not in line and "overlap" not in line], watch.measures.compared


@pytest.mark.parametrize(("kind", "backend"), [("ringdp", "ringdp"), ("torch", "ringdp"), ("torch", "gloo")])
def test_equal_replicas_are_compared_and_nothing_is_said(pair, kind, backend):
    (said, compared), (other, _) = pair.run(nothing_to_find, kind, backend)
    assert (said, other) == ([], []) and compared > STEPS / 8


def drifting(kind, backend):
    def plant(step):
        if step == 10 and HERE.rank == 1:
            with torch.no_grad():
                next(ddp.parameters())[3, 5] += 1e-3

    with logged() as said:
        ddp = wrapped(kind, backend)
        watch = ringdp.watch(ddp, budget=1.0)
        train(ddp, after=plant)
        stopped(watch)
    return [line for line in said if "drift" in line], watch.measures.findings["drift"]


@pytest.mark.parametrize(("kind", "backend"), [("ringdp", "ringdp"), ("torch", "gloo")])
def test_drift_is_named_within_50_steps_and_said_once(pair, kind, backend):
    ((line,), times), other = pair.run(drifting, kind, backend)
    assert re.search(r"at step (\d+) ranks 0, 1 hold different bits, .* of 0\.weight", line), line
    assert 10 <= int(re.search(r"at step (\d+)", line)[1]) <= STEPS and "What to do: stop" in line
    assert times >= 1 and other == ([], 0)


def one_rank_late(kind, backend, alone=False):
    """Rank 1 begins a step when rank 0 waits for it; but for the first steps, after which buckets change.

    A busy machine can hold up rank 0 just then, so there may be some rounds of 50 steps until all of one agree, and it
    comes later in each round.
    alone: with a store that takes no reports, so that rank 0 has only what its group counts.
    """
    store, late = dist.distributed_c10d._get_default_store(), HERE.rank == 1
    name, steps = f"{kind}-{backend}-{alone}", []

    def tell(gradient):
        store.set(f"{name}-{len(steps)}", b"")

    def plant(step):
        steps.append(step)
        if late and len(steps) > 3:
            store.wait([f"{name}-{len(steps)}"])
            time.sleep(0.01 * (1 + len(steps) // STEPS))

    with logged() as said, pytest.MonkeyPatch.context() as patch:
        if alone:
            patch.setattr(watching, "why_no_store", lambda: "no store")
        ddp = wrapped(kind, backend)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
        if not late:
            next(ddp.parameters()).register_hook(tell)
        watch = ringdp.watch(ddp, optimizer, budget=1.0)
        found = torch.zeros(1)
        while not found and len(steps) < 10 * STEPS:
            train(ddp, optimizer=optimizer, before=plant)
            found += watch.measures.findings["straggler"]
            dist.all_reduce(found)
        stopped(watch)
    return [line for line in said if "straggler" in line]


@pytest.mark.parametrize(("kind", "backend"), [("ringdp", "ringdp"), ("torch", "gloo")])
def test_a_straggler_is_named_with_what_it_does_longer(pair, kind, backend):
    (line, *_), other = pair.run(one_rank_late, kind, backend)
    assert other == []
    assert re.search(r"up to step \d+ rank 1 makes the others wait .* longer than they do between steps", line), line


@pytest.mark.parametrize("kind", ["ringdp", "torch"])
def test_a_straggler_is_named_by_a_rank_that_is_told_nothing(pair, kind):
    (line, *_), other = pair.run(one_rank_late, kind, "ringdp", True)
    assert other == [] and re.search(r"up to step \d+ rank 1 makes the others wait", line), line


def overlap_lost():
    """From step 16 on a bucket is kept back after its sum is there."""
    step_now = [0]

    def hook(state, bucket):
        work = dist.all_reduce(bucket.buffer().div_(HERE.size), async_op=True)
        done = torch.futures.Future()

        def finish():
            work.wait()
            time.sleep(0.05 if step_now[0] >= 16 else 0.0)
            done.set_result(bucket.buffer())

        threading.Thread(target=finish).start()
        return done

    with logged() as said:
        ddp = wrapped()
        ddp.register_comm_hook(None, hook)
        watch = ringdp.watch(ddp, budget=1.0)
        train(ddp, before=lambda step: step_now.__setitem__(0, step))
        stopped(watch)
    return [line for line in said if "overlap" in line]


def test_lost_overlap_is_named_within_50_steps(pair):
    found, other = pair.run(overlap_lost)
    assert len(found) == 1 and other == []
    assert re.search(r"every rank waits .* for communication that nothing hides, .* before", found[0])


def bits(watched):
    ddp = wrapped()
    if watched:
        with ringdp.watch(ddp, budget=1.0):
            train(ddp, steps=20)
    else:
        train(ddp, steps=20)
    return ringdp.testing.parameters_hash(ddp)


def test_it_changes_no_bit(pair):
    assert len({value for watched in (True, False) for value in pair.run(bits, watched)}) == 1


def on_one_rank_only(which):
    with logged() as said:
        ddp = wrapped()
        watch = ringdp.watch(ddp, budget=1.0) if HERE.rank == which else None
        train(ddp, steps=150)
        if watch is not None:
            watch.stop()
        dist.barrier()
    return [line for line in said if "straggler" not in line]


@pytest.mark.parametrize("which", [0, 1])
def test_ranks_that_do_not_watch_are_named_and_nothing_hangs(pair, which):
    said = pair.run(on_one_rank_only, which)
    assert len(said[which]) == 1 and said[1 - which] == []
    absent = "rank 1: nothing to compare with" if which == 0 else "rank 0 does not watch this model"
    assert absent in said[which][0]


def begun_later(hooked):
    with logged() as said:
        ddp = wrapped()
        if hooked:
            ddp.register_comm_hook(None, allreduce_hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for rank in (0, 1):
            if HERE.rank == rank:
                watch = ringdp.watch(ddp, optimizer, budget=1.0)
            train(ddp, steps=3, optimizer=optimizer)
        train(ddp, optimizer=optimizer)
        stopped(watch)
    return [line for line in said if "straggler" not in line], watch.measures.findings["drift"]


def test_ranks_that_begin_at_different_steps_are_named_where_that_matters(pair):
    ((line,), drifts), (other, _) = pair.run(begun_later, True)
    assert line == ("ringdp.watch: rank 1 began at another step than rank 0: their parameters are not compared")
    assert drifts == 0 and other == []
    assert pair.run(begun_later, False) == [([], 0)] * 2


def wrong_ways():
    """By what was tried: the error, or '' where it goes."""

    def error_of(call):
        try:
            call().stop()
        except (RuntimeError, TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    found = {}
    with logged() as said:
        ddp, plain = wrapped(), torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        watch = ringdp.watch(ddp, optimizer)
        found["twice"] = error_of(lambda: ringdp.watch(ddp))
        train(ddp, steps=3, optimizer=optimizer)
        watch.stop()
        watch.stop()
        train(ddp, steps=3, optimizer=optimizer)
        found["number"] = watch._number
        found["again, and after training"] = error_of(lambda: ringdp.watch(ddp))
        found["unwrapped"] = error_of(lambda: ringdp.watch(plain))
        found["no model"] = error_of(lambda: ringdp.watch(optimizer))
        found["no optimizer"] = error_of(lambda: ringdp.watch(ddp, ddp))
        found["no budget"] = error_of(lambda: ringdp.watch(ddp, budget=0))
        found["negative"] = error_of(lambda: ringdp.watch(ddp, repeat_minutes=-1))
    return found, said


def test_each_wrong_way_is_refused_by_name_or_harmless(pair):
    for found, said in pair.run(wrong_ways):
        assert said == []
        assert found == {
            "twice": "RuntimeError: ringdp.watch: this model is watched already: stop() that watch first",
            "number": 2,
            "again, and after training": "",
            "unwrapped": "",
            "no model": "TypeError: ringdp.watch: model is a SGD, not a torch.nn.Module",
            "no optimizer": (
                "TypeError: ringdp.watch: optimizer is a DistributedDataParallel, not a torch.optim.Optimizer"
            ),
            "no budget": "ValueError: ringdp.watch: invalid value '0' for budget (expected above 0, at most 1)",
            "negative": ("ValueError: ringdp.watch: invalid value '-1' for repeat_minutes (expected 0 or more)"),
        }


def test_without_a_process_group_it_is_refused():
    with pytest.raises(RuntimeError, match=r"there is no process group: call init_process_group\(\) first"):
        ringdp.watch(torch.nn.Linear(2, 2))


def local_steps(fused):
    """Ranks step with gradients of their own, so their parameters differ, and log by collectives."""
    with logged() as said:
        ddp = wrapped()
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, fused=fused)
        with ringdp.watch(ddp, optimizer, budget=1.0) as watch:
            with ddp.no_sync():
                train(ddp, optimizer=optimizer, after=lambda step: dist.all_reduce(torch.ones(1)))
            train(ddp, optimizer=optimizer)
            stopped(watch)
    return [line for line in said if "straggler" not in line], watch.measures.findings["drift"]


@pytest.mark.parametrize("fused", [False, True])  # which leaves the versions of parameters as they were
def test_steps_that_are_not_averaged_are_no_drift(pair, fused):
    for said, drifts in pair.run(local_steps, fused):
        assert drifts == 0 and len([line for line in said if "no longer compared" in line]) == 1


def accumulated():
    with logged() as said:
        ddp = wrapped()
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        with ringdp.watch(ddp, optimizer, budget=1.0) as watch:
            for _ in range(20):
                with ddp.no_sync():
                    ddp(torch.full((4, 32), 1.0 + HERE.rank)).sum().backward()
                ddp(torch.full((4, 32), 2.0 + HERE.rank)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            stopped(watch)
    return [line for line in said if "straggler" not in line], watch.measures.compared


def test_accumulation_under_no_sync_is_compared(pair):
    (said, compared), (other, _) = pair.run(accumulated)
    assert said == other == [] and compared >= 4


def sharded(stage, in_backward):
    with logged() as said:
        ddp = wrapped(zero_stage=stage)
        more = {"overlap_with_ddp": True} if in_backward else {}
        optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.Adam, lr=1e-3, **more)
        with ringdp.watch(ddp, optimizer, budget=1.0) as watch:
            train(ddp, optimizer=optimizer)
            stopped(watch)
    return [line for line in said if "straggler" not in line and "overlap:" not in line], watch.measures.compared


@pytest.mark.parametrize(("stage", "in_backward"), [(1, False), (2, True), (3, False)])
def test_shards_are_not_compared_and_replicas_are(pair, stage, in_backward):
    (said, compared), _ = pair.run(sharded, stage, in_backward)
    assert (compared > 0) == (stage != 3) and said == []


def failing():
    """Its own failure, an exception of the training's step, and a model that is gone."""
    with logged() as said:
        ddp = wrapped()
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        watch = ringdp.watch(ddp, optimizer)
        train(ddp, steps=2, optimizer=optimizer)

        class Stop(Exception):
            pass

        def raises(*_):
            raise Stop

        handle = optimizer.register_step_pre_hook(raises)
        try:
            train(ddp, steps=1, optimizer=optimizer)
        except Stop:
            handle.remove()
        train(ddp, steps=2, optimizer=optimizer)
        assert said == [] and watching.running() == [watch]
        watch._start_thread = lambda: 1 // 0
        train(ddp, steps=16, optimizer=optimizer)
    return said, watching.running()


def test_its_own_failure_is_a_line_and_ends_it(pair):
    for rank, (said, running) in enumerate(pair.run(failing)):
        assert running == [] and len(said) == 1
        assert said[0].startswith(f"ringdp.watch stops on rank {rank}, and the training goes on without: ZeroDivision")


def in_another_group():
    with logged() as said:
        ddp = wrapped()
        with ringdp.watch(ddp, budget=1.0) as watch:
            train(ddp, steps=10)
            ddp._update_process_group(dist.new_group())
            train(ddp, steps=20)
            running = watch in watching.running()
    return said, running


def test_a_model_that_gets_another_group_is_watched_no_longer(pair):
    for rank, (said, running) in enumerate(pair.run(in_another_group)):
        assert not running
        assert said == [f"ringdp.watch ends on rank {rank}: the model has another group now: watch it again"]


def in_a_part():
    group = dist.new_group([1, 2])
    if HERE.rank == 0:
        return []
    with logged() as said:
        torch.manual_seed(0)
        ddp = ringdp.DistributedDataParallel(torch.nn.Linear(32, 8), process_group=group)
        watch = ringdp.watch(ddp, budget=1.0)
        if HERE.rank == 2:
            with torch.no_grad():
                ddp.module.bias[1] += 1
        train(ddp, steps=STEPS)
        if HERE.rank == 2:
            watch.stop()
        dist.barrier(group)
        watch.stop()
    return [line for line in said if "drift" in line]


def test_ranks_of_a_part_are_named_by_their_rank_in_the_job(trio):
    _, (line,), other = trio.run(in_a_part)
    assert "ranks 1, 2 hold different bits" in line and other == []
