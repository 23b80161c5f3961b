"""One clock for all ranks, and all ranks on one timeline."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from made_up import MS, Run
from ringdp.tools.observe.perfetto import BUCKETS, FIRST_GROUP, STEPS, THREADS, chrome_trace, offsets
from ringdp.tools.observe.traces import collectives


def found(dumps):
    return offsets(dumps, collectives(dumps))


def test_ranks_of_one_host_share_a_clock():
    assert {offset.ns for offset in found(Run(ranks=3).dumps()).values()} == {0}


def test_hosts_are_matched_by_the_ends_of_collectives():
    run = Run(ranks=4, boots=("a", "b"), zero=lambda rank: 77 * MS if rank % 2 else 0)
    got = found(run.dumps())
    assert [got[rank].how for rank in range(4)] == ["shared", "matched", "shared", "matched"]
    assert [got[rank].ns for rank in range(4)] == [0, -77 * MS, 0, -77 * MS]


def test_late_news_of_an_end_moves_the_median_little_and_shows_in_the_spread():
    run = Run(ranks=2, steps=101, boots=("a", "b"), zero=lambda rank: -5 * MS * rank)
    chance = random.Random(1)
    dumps = run.dumps()
    late = tuple(
        e._replace(time=e.time + chance.randint(0, MS // 10)) if e.kind == "finished" else e for e in dumps[1].events
    )
    offset = found([dumps[0], replace(dumps[1], events=late)])[1]
    assert offset.ns == pytest.approx(5 * MS, abs=MS // 10)
    assert 0 < offset.spread <= MS // 10


def test_without_common_collectives_the_wall_clocks_must_do():
    run = Run(ranks=2, boots=("a", "b"), zero=lambda rank: 9 * MS * rank)
    dumps = run.dumps()
    alone = [dumps[0], replace(dumps[1], events=tuple(e for e in dumps[1].events if e.kind != "finished"))]
    offset = found(alone)[1]
    assert (offset.how, offset.ns) == ("wall", 5 * MS - 9 * MS)


@pytest.fixture(scope="module")
def run():
    return Run(
        ranks=3,
        steps=4,
        compute=lambda rank, step: 10.0 + 20 * (rank == 2),
        boots=("a", "a", "b"),
        zero=lambda rank: 500 * MS * (rank == 2),
    )


@pytest.fixture(scope="module")
def events(run):
    return json.loads(json.dumps(chrome_trace(run.dumps())))["traceEvents"]


def of(events, **wanted):
    return [event for event in events if all(event.get(key) == value for key, value in wanted.items())]


def test_a_rank_is_a_process_with_named_lanes(events):
    names = {event["pid"]: event["args"]["name"] for event in of(events, name="process_name")}
    assert names == {0: "rank 0 (host-a)", 1: "rank 1 (host-a)", 2: "rank 2 (host-b)"}
    lanes = {event["args"]["name"] for event in of(events, name="thread_name", pid=2)}
    assert lanes == {"steps", "buckets", "group 0", "thread 102"}


def test_times_are_on_one_clock_in_order(events):
    times = [event["ts"] for event in events if "ts" in event]
    assert times == sorted(times) and times[0] == 0
    ends = [e["ts"] + e["dur"] for e in of(events, ph="X", name="all_reduce #3", tid=FIRST_GROUP)]
    assert len(ends) == 3 and ends == pytest.approx([ends[0]] * 3)


def test_a_collective_is_waiting_and_then_moving(run, events):
    waiting = of(events, ph="X", name="all_reduce #2 waits for ranks", tid=FIRST_GROUP)
    assert {event["pid"]: event["dur"] for event in waiting} == pytest.approx({0: 20e3, 1: 20e3, 2: 0})
    moving = of(events, ph="X", name="all_reduce #2", pid=1)[0]
    assert moving["dur"] == pytest.approx(1e3 * run.transfer)
    assert moving["args"]["plan"] == "direct" and moving["args"]["bytes"] == run.size


def test_arrows_lead_from_the_last_rank_to_the_others(events):
    starts, ends = of(events, ph="s"), of(events, ph="f")
    assert {event["pid"] for event in starts} == {2}
    assert sorted(event["pid"] for event in ends) == [0] * 4 + [1] * 4
    assert sorted(event["id"] for event in starts) == sorted(event["id"] for event in ends)
    for end in ends:
        start = next(event for event in starts if event["id"] == end["id"])
        assert start["ts"] <= end["ts"]


def test_bandwidth_is_a_counter(run, events):
    counters = of(events, ph="C", pid=0)
    rates = [event["args"]["GB/s"] for event in counters]
    assert rates == pytest.approx([run.size / (run.transfer * MS), 0] * run.steps)


def test_steps_have_their_phases(events):
    phases = of(events, ph="X", tid=STEPS, pid=2)
    assert [phase["name"] for phase in phases] == ["forward", "backward", "exposed communication"] * 4
    assert [phase["dur"] for phase in phases[:3]] == pytest.approx([15e3, 15e3, 1e3])


def test_buckets_begin_and_end_by_their_id(run, events):
    begun, ended = of(events, tid=BUCKETS, ph="b"), of(events, tid=BUCKETS, ph="e")
    assert len(begun) == run.ranks * run.steps == len({event["id"] for event in begun})
    assert sorted(event["id"] for event in begun) == sorted(event["id"] for event in ended)
    assert len(of(events, tid=BUCKETS, ph="i", name="bucket 0 ready")) == run.ranks * run.steps


def test_threads_have_lanes_of_their_own_in_a_container(run):
    dumps = [
        replace(dump, events=tuple(event._replace(thread=FIRST_GROUP) for event in dump.events)) for dump in run.dumps()
    ]
    made = chrome_trace(dumps)["traceEvents"]
    assert {event["tid"] for event in of(made, name="waits")} == {THREADS + FIRST_GROUP}
    assert {e["args"]["name"] for e in of(made, name="thread_name", tid=FIRST_GROUP)} == {"group 0"}


def twice(dump):
    """A group of the same name and a model with the same numbers come later in the same process."""
    later = 1 + dump.events[-1].time - dump.events[0].time
    again = [event._replace(time=event.time + later) for event in dump.events]
    again = [event._replace(group=1) if event.group == 0 else event for event in again]
    return replace(dump, groups=dump.groups * 2, events=dump.events + tuple(again))


def test_ids_tell_groups_of_one_name_and_models_apart(run):
    made = chrome_trace([twice(dump) for dump in run.dumps()])["traceEvents"]
    starts = [event["id"] for event in of(made, ph="s")]
    assert len(starts) == len(set(starts)) == 2 * 2 * run.steps
    begun, ended = of(made, tid=BUCKETS, ph="b"), of(made, tid=BUCKETS, ph="e")
    assert len(begun) == 2 * run.ranks * run.steps == len({event["id"] for event in begun})
    assert sorted(event["id"] for event in begun) == sorted(event["id"] for event in ended)


def test_a_bucket_whose_launch_was_overwritten_has_no_end(run):
    dumps = [replace(d, events=tuple(e for e in d.events if e.kind != "launched")) for d in run.dumps()]
    assert of(chrome_trace(dumps)["traceEvents"], tid=BUCKETS, ph="e") == []
