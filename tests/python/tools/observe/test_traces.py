"""Files that ranks wrote are read or refused, and their events put together: collectives, clocks, one timeline."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import pickletools
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from made_up import MS, Run, as_file
from ringdp.tools.observe.perfetto import BUCKETS, FIRST_GROUP, STEPS, THREADS, chrome_trace, offsets
from ringdp.tools.observe.traces import Event, Group, TraceError, collectives, missing_ranks, read, read_folder

ANALYSER = "torch.distributed.flight_recorder.fr_trace"


def analyse(folder, *options):
    """What torch's own tool makes of it."""
    command = [sys.executable, "-m", ANALYSER, folder, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_file_gives_back_the_dump(tmp_path):
    dumps = Run(ranks=2, steps=3).dumps()
    for dump in dumps:
        as_file(dump, tmp_path)
    (tmp_path / "trace.json").write_text("{}")
    assert read_folder(tmp_path) == dumps
    assert missing_ranks(dumps) == []
    assert missing_ranks(dumps[1:]) == [0]


def test_nothing_there_says_how_to_get_it(tmp_path):
    with pytest.raises(TraceError, match=r"RINGDP_TRACE="):
        read_folder(tmp_path)
    with pytest.raises(TraceError, match=r"there is no folder .*absent"):
        read_folder(tmp_path / "absent")


class Harm:
    def __reduce__(self):
        return os.system, ("touch harmed",)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-40]),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(pickle.dumps({"entries": []})),
        lambda file: file.write_bytes(pickle.dumps({"ringdp": {"format": 9}})),
        lambda file: file.write_bytes(pickle.dumps({"ringdp": Harm()})),
        lambda file: (file.unlink(), file.mkdir()),
    ],
    ids=["cut", "empty", "another recorder's", "newer format", "code", "folder"],
)
def test_a_damaged_file_is_named_and_nothing_runs(tmp_path, damage, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = as_file(Run(ranks=2, steps=2).dumps()[1], tmp_path)
    damage(file)
    with pytest.raises(TraceError, match=r"rank_1"):
        read(file)
    assert not (tmp_path / "harmed").exists()


def changed(event=None, **head):
    """A dump of rank 1 with another value in its head, or in its second event."""
    dump = Run(ranks=2, steps=2).dumps()[1]
    events = list(dump.events)
    events[1] = events[1]._replace(**(event or {}))
    return replace(dump, events=tuple(events), **head)


WRONG = [
    changed({"group": 7}),
    changed({"group": "0"}),
    changed({"kind": "blocked", "group": 0, "peer": 2}),
    changed({"time": 10**400}),
    changed({"name": None}),
    changed(wall="now"),
    changed(groups=(Group("0", 1, (0, 5)),)),
    changed(groups=(Group("0", 9, (0, 1)),)),
    changed(groups=(Group("0", 1, ([], 1)),)),
    changed(groups=(Group("a\nb", 0, (0, 1)),)),
]


@pytest.mark.parametrize("dump", WRONG)
def test_values_that_no_rank_writes_are_refused_when_they_are_read(tmp_path, dump):
    with pytest.raises(TraceError, match=r"rank_1 is not a trace of ringdp") as caught:
        read(as_file(dump, tmp_path))
    assert len(str(caught.value).splitlines()) == 1


def test_a_format_of_another_kind_is_quoted_in_one_short_line(tmp_path):
    file = tmp_path / "rank_0"
    written = pickle.dumps({"ringdp": {"format": "\x1b\n" + 1000 * "x"}}, protocol=2)
    file.write_bytes(pickletools.optimize(written))  # without a memo
    with pytest.raises(TraceError, match=r"^\S+ has trace format '\\x1b\\nx{33}, this ringdp reads") as caught:
        read(file)
    assert len(str(caught.value).splitlines()) == 1


def train(steps):
    import torch
    import torch.distributed as dist

    for _ in range(steps):
        dist.all_reduce(torch.ones(1000))
    out = [torch.empty(3) for _ in range(dist.get_world_size())]
    dist.all_gather(out, torch.ones(3))
    dist.barrier()


def disagree():
    import torch
    import torch.distributed as dist

    with contextlib.suppress(Exception):
        dist.all_reduce(torch.ones(4 + dist.get_rank()))


def test_ranks_that_leave_have_written_what_they_did(run_on_fresh_ranks, tmp_path):
    world = run_on_fresh_ranks(2, trace=tmp_path / "new")
    world.join()
    world.run(train, 5)
    world.leave()
    dumps = read_folder(tmp_path / "new")
    assert [dump.rank for dump in dumps] == [0, 1]
    assert [dump.pid for dump in dumps] == [world.pid(0), world.pid(1)]
    for dump in dumps:
        group = dump.groups[0]
        assert (group.rank, group.members) == (dump.rank, (0, 1))
        kinds = [event.kind for event in dump.events if event.group == 0]
        assert [kinds.count(kind) for kind in ("enqueued", "started", "arrived", "finished")] == [7] * 4
        called = [(e.name, e.bytes, e.dtype) for e in dump.events if e.kind == "enqueued"]
        assert called[0] == ("all_reduce", 4000, "float32") and called[5] == ("all_gather", 24, "float32")
        assert dump.events == tuple(sorted(dump.events, key=lambda event: event.time))
        assert not dump.overwritten and dump.lost == 0
    analysed = analyse(tmp_path / "new", "-o", tmp_path / "db")
    assert analysed.returncode == 0, analysed.stderr
    _, database = pickle.loads((tmp_path / "db").read_bytes())
    found = [(c.collective_name, c.pass_check, c.collective_state) for c in database.collectives]
    assert found == [("gloo:all_reduce", True, "completed")] * 5 + [
        ("gloo:all_gather", True, "completed"),
        ("gloo:barrier", True, "completed"),
    ]


def test_a_failure_is_dumped_at_once_and_torch_s_analyser_names_the_culprit(run_on_fresh_ranks, tmp_path):
    world = run_on_fresh_ranks(2, trace=tmp_path / "failed")
    world.join()
    world.run(train, 1)
    world.run(disagree)  # and no rank leaves
    dumps = read_folder(tmp_path / "failed")
    assert [[e.seq for e in dump.events if e.kind == "failed"] for dump in dumps] == [[4], [4]]
    analysed = analyse(tmp_path / "failed")
    assert analysed.returncode == 0, analysed.stderr
    assert "SIZE_OR_SYNTAX_MISMATCH" in analysed.stdout + analysed.stderr


def test_a_small_ring_keeps_the_latest(run_on_fresh_ranks, tmp_path):
    world = run_on_fresh_ranks(2, trace=tmp_path / "small", trace_events=64)
    world.join()
    world.run(train, 40)
    world.leave()
    for dump in read_folder(tmp_path / "small"):
        assert dump.overwritten and len(dump.events) <= 64
        assert max(event.seq for event in dump.events) == 42


def test_waits_and_transfers_are_those_that_were_made_up():
    run = Run(3, 4, compute=lambda rank, step: 10.0 + 7 * (rank == 1), transfer=2.5, zero=lambda rank: 10**12 * rank)
    rows = collectives(run.dumps())
    assert [row.seq for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert (row.group, row.name, row.dtype, row.op) == ("0", "all_reduce", "float32", "SUM")
        assert row.algorithm == "direct"
        assert row.whole and row.bytes == run.size
        assert {rank: side.wait for rank, side in row.sides.items()} == {0: 7 * MS, 1: 0, 2: 7 * MS}
        assert all(side.transfer == pytest.approx(2.5 * MS, abs=2) for side in row.sides.values())


def test_what_a_rank_has_not_seen_or_failed_is_not_whole():
    dumps = Run(ranks=2, steps=3).dumps()
    cut = replace(dumps[1], events=tuple(e for e in dumps[1].events if (e.kind, e.seq) != ("arrived", 2)))
    fails = {("finished", 3): "failed"}
    failed = replace(cut, events=tuple(e._replace(kind=fails.get((e.kind, e.seq), e.kind)) for e in cut.events))
    assert [row.whole for row in collectives([dumps[0], failed])] == [True, False, False]
    assert [row.whole for row in collectives(dumps[:1])] == [False] * 3


def test_groups_of_one_name_are_told_apart():
    dump = Run(ranks=1, steps=2).dumps()[0]
    again = Event("enqueued", 10**9, group=1, seq=1, name="barrier")
    both = replace(dump, groups=(*dump.groups, Group("0", 0, (0,))), events=(*dump.events, again))
    rows = [(row.seq, row.name) for row in collectives([both])]
    assert rows == [(1, "all_reduce"), (2, "all_reduce"), (1, "barrier")]


def test_full_links_name_ranks_of_the_job():
    run = Run(ranks=2, steps=1, full=lambda rank, peer: 4.0 if rank == 0 else 0)
    dumps = [replace(d, groups=(Group("0", d.groups[0].rank, (0, 1)),)) for d in run.dumps()]
    row = collectives(dumps)[0]
    assert row.sides[0].backlogs == {1: (run.size, 4 * MS)}
    assert row.sides[1].backlogs == {}


# One clock for all ranks, and all ranks on one timeline.


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
