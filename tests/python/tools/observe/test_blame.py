"""From traces to the judge's table and to its verdict: faults are named with rank and cause, jitter is not blamed."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from made_up import MS, Run, as_file
from ringdp.tools.observe.blame import Table, chance, delay, judge
from ringdp.tools.observe.evidence import covered, overlap, steps_of, table_of, table_of_folder, union
from ringdp.tools.observe.traces import TraceError, read_folder


def moments(spans):
    return {t for begin, end in spans for t in range(begin, end)}


@pytest.mark.parametrize("seed", range(20))
def test_against_single_moments(seed):
    chance = random.Random(seed)

    def spans():
        return [(b, b + chance.randint(-2, 9)) for b in (chance.randint(0, 60) for _ in range(chance.randint(0, 12)))]

    one, other = spans(), spans()
    joined, second = union(one), union(other)
    assert moments(joined) == moments(one)
    assert all(a[1] < b[0] for a, b in pairwise(joined))
    assert overlap(joined, second) == len(moments(one) & moments(other))
    for begin, end in other:
        assert covered(joined, begin, end) == len(moments(one) & moments([(begin, end)]))


def test_phases_are_without_the_waits():
    run = Run(ranks=2, steps=5, data=lambda rank, step: 1.0 + rank, compute=lambda rank, step: 10.0 * (2 - rank))
    for rank, dump in enumerate(run.dumps()):
        steps = steps_of(dump)
        assert [step.number for step in steps] == [2, 3, 4, 5]  # nothing is before the first
        for step in steps:
            assert step.data == pytest.approx(run.data(rank, 0) * MS, abs=2)
            assert step.compute == pytest.approx(run.compute(rank, 0) * MS, abs=2)


def test_a_wait_inside_a_phase_is_taken_out():
    dump = Run(ranks=1, steps=2).dumps()[0]
    plain = steps_of(dump)[0]
    inside = plain.began + MS // 2 + MS // 5
    waited = dump.events[-1]._replace(kind="waited", time=inside, ns=MS // 5)
    held = steps_of(replace(dump, events=tuple(sorted((*dump.events, waited), key=lambda e: e.time))))[0]
    assert held.data == plain.data - MS // 5
    assert held.compute == plain.compute


def test_a_step_with_a_mark_missing_is_left_out():
    dump = Run(ranks=1, steps=6).dumps()[0]
    cut = replace(dump, events=tuple(e for e in dump.events if (e.kind, e.seq) != ("computed", 4)))
    assert 4 not in [step.number for step in steps_of(cut)]
    assert [step.number for step in steps_of(dump)] == [2, 3, 4, 5, 6]


def test_the_table_has_what_was_made_up():
    run = Run(
        ranks=3,
        steps=6,
        compute=lambda rank, step: 10.0 + 5 * rank,
        transfer=2.0,
        full=lambda rank, peer: 1.5 if (rank, peer) == (1, 2) else 0,
        zero=lambda rank: 10**15 * rank,
    )
    table = table_of(run.dumps())
    assert len(table.waits) == 5  # the first is warming up
    for waits in table.waits:
        assert waits == pytest.approx({0: 0.010, 1: 0.005, 2: 0.0}, abs=1e-8)
    assert len(table.steps) == 5
    assert table.within == [0, 1, 2, 3, 4]
    for step in table.steps:
        for rank, work in step.items():
            assert (work.data, work.compute) == pytest.approx((0.001, 0.010 + 0.005 * rank), abs=1e-8)
    assert table.full == {(1, 2): (pytest.approx(5 * 0.0015), 5 * run.size)}
    assert table.held == pytest.approx({rank: 5 * 0.002 for rank in range(3)}, abs=1e-7)
    assert table.seconds == pytest.approx(5 * 0.023, rel=0.1)


def test_models_that_count_their_own_steps_are_told_apart():
    dumps = Run(ranks=2, steps=9, compute=lambda rank, step: 10.0 + 5 * rank + step).dumps()
    marks = ("forward", "backward", "computed", "stepped")
    # A second model begins at the sixth step; rank 1 has lost its first events.
    both = [
        replace(d, events=tuple(e._replace(seq=e.seq - 5) if e.kind in marks and e.seq > 5 else e for e in d.events))
        for d in dumps
    ]
    cut = replace(both[1], events=both[1].events[20:])
    whole = [step for step in table_of([both[0], cut]).steps if len(step) == 2]
    assert len(whole) >= 6
    for step in whole:
        assert step[1].compute - step[0].compute == pytest.approx(0.005, abs=1e-8)


def test_a_rank_without_a_trace_is_named(tmp_path):
    for dump in Run(ranks=3, steps=4).dumps()[:2]:
        as_file(dump, tmp_path)
    with pytest.raises(TraceError, match=r"no trace of ranks \[2\]"):
        table_of_folder(tmp_path)


def test_nothing_in_common_is_said():
    with pytest.raises(TraceError, match="nothing to compare"):
        table_of(Run(ranks=2, steps=1).dumps())
    with pytest.raises(TraceError, match="nothing to compare"):
        table_of(Run(ranks=1, steps=9).dumps())


# The judge: planted faults are named with rank and cause, jitter is not blamed; then real ranks that sleep.


def verdict(run):
    return [(finding.cause, finding.ranks) for finding in judge(table_of(run.dumps()))]


def jitter(seed, width=3.0):
    """ms that depend on rank and step only."""
    return lambda rank, step: random.Random(f"{seed}/{rank}/{step}").uniform(0, width)


def test_the_rank_that_waits_least_came_last():
    assert delay({0: 0.2, 1: 0.0, 2: 0.5}) == (1, pytest.approx(0.2))
    assert delay({4: 0.0, 7: 0.3}) == (4, pytest.approx(0.3))


def test_chance_is_the_binomial_tail():
    assert chance(0, 10, 2) == pytest.approx(1)
    assert chance(10, 10, 2) == pytest.approx(2**-10)
    assert chance(2, 3, 4) == pytest.approx(3 * 0.25**2 * 0.75 + 0.25**3)
    ways = sum(math.comb(5000, k) for k in range(2600, 5001))  # more than any float
    assert chance(2600, 5000, 2) == pytest.approx(float(Fraction(ways, 2**5000)))


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_a_sleep_in_backward_is_compute_of_that_rank(ranks, seed):
    noise = jitter(seed)
    run = Run(ranks, compute=lambda rank, step: 10 + noise(rank, step) + 200 * (rank == 1))
    assert verdict(run) == [("compute", (1,))]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_sleep_in_the_loader_is_data_of_that_rank(ranks):
    noise = jitter(5)
    run = Run(ranks, data=lambda rank, step: noise(rank, step) + 200 * (rank == 0), compute=jitter(6))
    assert verdict(run) == [("data", (0,))]


def test_without_marks_of_steps_the_rank_is_late():
    run = Run(3, compute=lambda rank, step: 10 + 50 * (rank == 2), marks=False)
    assert verdict(run) == [("late", (2,))]


def test_a_sleep_now_and_then_is_found():
    run = Run(4, steps=80, data=jitter(3, 1.0), compute=lambda rank, step: 10 + 100 * (rank == 3 and step % 5 == 0))
    assert verdict(run) == [("compute", (3,))]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("steps", [6, 20, 100])
def test_jitter_that_goes_round_is_not_blamed(ranks, steps):
    assert verdict(Run(ranks, steps, compute=lambda rank, step: 10 + 200 * (step % ranks == rank))) == []


@pytest.mark.parametrize("ranks", [2, 4])
def test_random_jitter_is_not_blamed(ranks):
    for seed in range(60):
        noise = jitter(seed, 30.0)
        steps = random.Random(seed).randint(4, 60)
        run = Run(ranks, steps, compute=lambda rank, step, noise=noise: 10 + noise(rank, step))
        assert verdict(run) == [], f"seed {seed}"


def test_one_long_pause_is_no_habit():
    assert verdict(Run(3, steps=50, compute=lambda rank, step: 10 + 5000 * (rank == 1 and step == 9))) == []


def test_what_costs_little_is_not_worth_a_word():
    assert verdict(Run(3, steps=50, compute=lambda rank, step: 100 + 2 * (rank == 1))) == []


def test_a_slow_link_among_others_is_named():
    run = Run(3, compute=lambda rank, step: 10, transfer=50, full=lambda a, b: 45.0 if (a, b) == (2, 0) else 2.0)
    assert verdict(run) == [("link", (0, 2))]
    assert "2 -> 0" in str(judge(table_of(run.dumps()))[0])


def test_slow_links_of_one_rank_are_that_rank_s():
    run = Run(4, compute=lambda rank, step: 10, transfer=50, full=lambda a, b: 45.0 if a == 2 else 2.0)
    assert verdict(run) == [("link", (2,))]


def test_of_two_ranks_the_link_is_named_when_it_takes_most_of_the_time():
    def full(a, b):
        return 80.0

    assert verdict(Run(2, compute=lambda rank, step: 10, transfer=100, full=full)) == [("link", (0, 1))]
    assert verdict(Run(2, compute=lambda rank, step: 100, transfer=20, full=full)) == []


def test_links_that_are_equally_busy_are_not_blamed():
    assert verdict(Run(4, compute=lambda rank, step: 10, transfer=50, full=lambda a, b: 40.0)) == []


def test_the_costliest_comes_first():
    run = Run(
        3,
        compute=lambda rank, step: 10 + 30 * (rank == 1),
        transfer=100,
        full=lambda a, b: 90.0 if (a, b) == (0, 1) else 1.0,
    )
    assert verdict(run) == [("link", (0, 1)), ("compute", (1,))]


def test_many_buckets_of_few_steps_are_few_cases():
    """Six steps of eight buckets, all late on rank 1: by chance one time in 64."""
    late = {0: 0.1, 1: 0.0}
    assert judge(Table(6.0, waits=[late] * 48, within=[n // 8 for n in range(48)])) == []
    assert judge(Table(6.0, waits=[late] * 48, within=[n // 2 for n in range(48)])) != []


def test_an_empty_table_has_nothing_to_blame():
    assert judge(Table(seconds=1.0)) == []


def sleep_and_train(steps, where, who, nap):
    """Rank `who` naps in `where`, at least as long as two steps of a busy machine; -1: all ranks do, in turn."""
    import ringdp
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    rank = dist.get_rank()
    step, ended = [0], [float("inf")]
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))

    def maybe(place):
        if place == where and who == rank:
            time.sleep(max(nap, 2 * (time.monotonic() - ended[0])))
            ended[0] = time.monotonic()
        elif place == where and who < 0 and step[0] % dist.get_world_size() == rank:
            time.sleep(nap)

    model[0].register_full_backward_hook(lambda *_: maybe("compute"))
    ddp = ringdp.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    for step[0] in range(steps):
        maybe("data")
        optimizer.zero_grad()
        ddp(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()


def judged(world, folder, *arguments):
    world.join()
    world.run(sleep_and_train, *arguments)
    world.leave()
    return [(finding.cause, finding.ranks) for finding in judge(table_of(read_folder(folder)))]


@pytest.mark.parametrize("where", ["compute", "data"])
def test_ranks_that_sleep_are_named_with_where_they_sleep(run_on_fresh_ranks, tmp_path, where):
    assert judged(run_on_fresh_ranks(2, trace=tmp_path), tmp_path, 14, where, 1, 0.2) == [(where, (1,))]


def test_ranks_that_sleep_in_turn_are_not_blamed(run_on_fresh_ranks, tmp_path):
    assert judged(run_on_fresh_ranks(2, trace=tmp_path), tmp_path, 14, "compute", -1, 0.2) == []
