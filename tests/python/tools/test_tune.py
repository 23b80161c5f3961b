"""What is measured, where a crossing lies, the ranks that measure, and the file, because of which no job fails."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from ringdp import _native
from ringdp.tools.tune import cache
from ringdp.tools.tune.microbenchmark import (
    Microbenchmark,
    at_the_edge,
    confidence,
    crossing_of,
    decide,
    fastest_of,
    microbenchmarks,
    spread,
)
from ringdp.tools.tune.path import Path as NetworkPath
from ringdp.tools.tune.path import (
    exchange_benchmark,
    exchange_bytes,
    exchange_limit,
    is_alike,
    path_of,
    streams_benchmark,
)
from ringdp.tools.tune.rank import Assignment
from ringdp.tools.tune.rank import main as rank_main
from ringdp.tools.tune.session import TuneError, measured


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The file of this host, which does not exist yet."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "deep" / "tuned.json"))
    return cache.path()


def written(file: Path, **replaced: object) -> None:
    cache.save({"spin_us": 17})
    content = {**json.loads(file.read_text()), **replaced}
    file.write_text(json.dumps(content))


def test_what_is_saved_is_loaded_and_kept(file):
    assert cache.load() == {}
    assert cache.save({"spin_us": 17, "slot_bytes_of_two": 8192}) == file
    assert cache.save({"spin_us": 18}) == file
    assert cache.load() == {"spin_us": 18, "slot_bytes_of_two": 8192}
    assert list(file.parent.iterdir()) == [file], "no half-written file is left"


def test_a_failed_write_leaves_the_old_file(file, monkeypatch):
    cache.save({"spin_us": 17})

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(cache.os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        cache.save({"spin_us": 18})
    assert cache.load() == {"spin_us": 17}
    assert list(file.parent.iterdir()) == [file]


def test_the_file_is_the_host_s_in_the_user_s_cache(tmp_path, monkeypatch):
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = cache.path()
    assert here.parent == tmp_path / "ringdp"
    facts = cache.host()
    for fact in facts:
        monkeypatch.setattr(cache, "host", lambda fact=fact: {**facts, fact: "other"})
        assert cache.path() != here, fact
    monkeypatch.setattr(cache, "host", lambda: facts)
    assert cache.path() == here
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.path().parent == tmp_path / ".cache" / "ringdp"


def test_off_means_no_file(monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, "off")
    assert cache.path() is None
    assert cache.load() == {}
    with pytest.raises(ValueError, match="RINGDP_TUNE=off"):
        cache.save({"spin_us": 17})


BAD = {
    "empty": ("", "not JSON"),
    "cut off": ('{"format": 1, "val', "not JSON"),
    "binary": ("\0\1\2", "not JSON"),
    "a list": ("[1]", "did not write it"),
    "deep": ("[" * 60000, ""),
    "too large": (" " * (1 << 17), "larger than"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_broken_file_is_ignored_with_one_warning(file, name):
    text, why = BAD[name]
    file.parent.mkdir()
    file.write_text(text)
    expect_ignored(file, why)


@pytest.mark.parametrize(
    ("replaced", "why"),
    [
        ({"format": 2}, "another release"),
        ({"values": []}, "another release"),
        ({"host": {**cache.host(), "ringdp": "0.0.1"}}, "measured on"),
        ({"host": {**cache.host(), "cores": 0}}, "measured on"),
        ({"values": {"heap_bytes": 0}}, "heap_bytes=0 is not a value"),
        ({"values": {"spin_us": "50"}}, "spin_us='50' is not a value"),
        ({"values": {"spin_us": True}}, "spin_us=True is not a value"),
        ({"values": {"spin_us": -1}}, "invalid value '-1' for spin_us"),
        ({"values": {"slot_bytes_of_two": 100}}, "invalid value '100' for slot_bytes_of_two"),
    ],
)
def test_a_foreign_or_outdated_file_is_ignored_with_one_warning(file, replaced, why):
    written(file, **replaced)
    expect_ignored(file, why)


def test_a_folder_in_its_place_is_ignored(file):
    file.mkdir(parents=True)
    expect_ignored(file, "directory")


def test_a_pipe_in_its_place_is_ignored_and_blocks_no_reader(file):
    file.parent.mkdir()
    os.mkfifo(file)
    expect_ignored(file, "not a regular file")


def expect_ignored(file: Path, why: str) -> None:
    with pytest.warns(RuntimeWarning, match="is ignored: ") as heard:
        assert cache.load() == {}
    assert len(heard) == 1
    assert str(file) in str(heard[0].message) and why in str(heard[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.load() == {}, "said once is enough"


def test_tuned_values_stand_in_for_defaults_only(file):
    cache.save({"spin_us": 17, "slot_bytes_of_two": 8192})
    rows = _native.load().setting_table()
    rows = [{**row, "source": "environment"} if row["field"] == "spin_us" else row for row in rows]
    shown = {row["field"]: row for row in cache.in_force(rows) if row["field"]}
    assert (shown["slot_bytes_of_two"]["value"], shown["slot_bytes_of_two"]["source"]) == ("8192", "tuned")
    assert shown["spin_us"]["source"] == "environment" and shown["spin_us"]["value"] != "17"
    assert shown["slot_bytes_of_more"]["source"] == "default"


def test_every_measured_field_is_a_setting():
    assert set(cache.FIELDS) <= {row["field"] for row in _native.load().setting_table()}


# Thresholds from made-up times whose crossing is known.

SIZES = [1 << i for i in range(12, 21)]
ROWS = {row["field"]: row for row in _native.load().setting_table()}
DEFAULTS = {field: int(ROWS[field]["default"]) for field in cache.FIELDS}


@pytest.mark.parametrize("limit", [SIZES[0] // 2, *SIZES])
def test_the_crossing_is_found_wherever_it_is(limit):
    times = {size: [[1.0, 1.5] if size <= limit else [1.5, 1.0]] * 3 for size in SIZES}
    assert crossing_of(times) == limit


def test_one_odd_size_does_not_move_the_crossing():
    times = {size: [[1.0, 1.5] if size <= SIZES[5] else [1.5, 1.0]] for size in SIZES}
    times[SIZES[2]] = [[1.1, 1.0]]
    times[SIZES[7]] = [[1.0, 1.1]]
    assert crossing_of(times) == SIZES[5]


def test_a_round_that_was_disturbed_counts_once():
    times = {4096: [[1.0, 1.5], [1.0, 1.5], [90.0, 1.5]]}
    assert crossing_of(times) == 4096


def test_another_value_has_to_be_worth_it():
    values = (10, 20, 30)
    assert fastest_of({1: [[1.0, 0.99, 1.2]], 2: [[1.0, 0.99, 1.2]]}, values) == 10
    assert fastest_of({1: [[1.0, 0.80, 1.2]], 2: [[1.0, 0.80, 1.2]]}, values) == 20
    assert fastest_of({1: [[1.0, 0.80, 0.5]], 2: [[1.0, 1.90, 0.9]]}, values) == 30


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_every_field_of_these_ranks_has_its_benchmark(ranks):
    suffix = "of_more" if ranks == 2 else "of_two"
    found = microbenchmarks(ranks, DEFAULTS, spin=True)
    assert {benchmark.field for benchmark in found} == {field for field in cache.FIELDS if not field.endswith(suffix)}
    assert {benchmark.field for benchmark in microbenchmarks(ranks, DEFAULTS, spin=False)} == {
        field for field in cache.FIELDS if not field.endswith(suffix) and field != "spin_us"
    }
    for benchmark in found:
        assert benchmark.ranks == ranks
        assert len(benchmark.candidates) == (2 if benchmark.crossing else len(benchmark.values))
        times = {size: [[1.0] * len(benchmark.candidates)] for size in benchmark.sizes}
        if not benchmark.crossing:
            assert benchmark.values[0] == DEFAULTS[benchmark.field] == decide(benchmark, times)
        for options in benchmark.candidates:
            for field, value in options.items():
                _native.load().Options().set(field, str(value))


def limits(*sizes):
    return Microbenchmark("one_shot_bytes_of_two", 2, ({}, {}), sizes)


def test_confidence_falls_with_rounds_that_disagree():
    clear = {size: [[1.0, 1.5] if size < 16384 else [1.5, 1.0]] * 20 for size in SIZES}
    noisy = {size: [[1.0, 1.5], [1.5, 1.0]] * 10 for size in SIZES}
    assert confidence(limits(*SIZES), clear) == 1 > confidence(limits(*SIZES), noisy)
    assert confidence(limits(*SIZES), {size: rows[:2] for size, rows in clear.items()}) == 0  # too few


def test_limits_at_an_edge_are_known():
    found = {value: at_the_edge(limits(*SIZES), value) for value in (SIZES[0] // 2, *SIZES)}
    assert [value for value, edge in found.items() if edge] == [SIZES[0] // 2, SIZES[-1]]
    waits = Microbenchmark("spin_us", 2, ({},) * 3, (4096,), crossing=False, values=(50, 10, 200))
    assert [value for value in waits.values if at_the_edge(waits, value)] == [10, 200]  # the default is none


def test_the_spread_is_that_of_most_rounds():
    assert spread({4096: [[1.0, 2.0]] * 9 + [[90.0, 90.0]]}) == 0
    assert spread({4096: [[1.0 + i % 2, 1.0 + i % 2] for i in range(10)]}) > 0.5


# Between hosts: sizes follow from the path, whose figures follow from two times.

PATHS = [NetworkPath(3, 0.05, 2e8), NetworkPath(2, 0.2, 1e7), NetworkPath(8, 2e-5, 1e11), NetworkPath(16, 1e-3, 1e9)]


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_benchmarks_between_hosts_suit_the_path(path):
    streams = streams_benchmark(path, 15.0, 2)
    assert streams.values == (2, 0, 1, 4, 8)
    benchmarks = [streams, exchange_benchmark(path, 4)] if path.hosts > 2 else [streams]
    for benchmark in benchmarks:
        assert all(size % 4 == 0 for size in benchmark.sizes) and max(benchmark.sizes) <= 64 << 20
        for options in benchmark.candidates:
            for field, value in options.items():
                _native.load().Options().set(field, str(value))
    if path.hosts > 2:
        # Where both take equally long: what exchange sends more is what the link carries in half a round trip.
        crossing = exchange_limit(path.bytes_per_s * path.round_trip_s / 2, path.hosts)
        assert benchmarks[1].sizes[0] <= crossing <= benchmarks[1].sizes[-1]


def test_the_path_is_that_of_a_direct_all_reduce():
    """Each of four hosts sends three quarters of 8 MB twice, at 100 Mb/s: 0.96 s, and a round trip of waiting."""
    path = path_of(4, 0.04, 8_000_000, 1.0)
    assert (path.hosts, path.round_trip_s) == (4, 0.04)
    assert path.bits_per_s == pytest.approx(1e8)


@pytest.mark.parametrize("hosts", [3, 4, 8, 16])
def test_a_limit_of_exchange_is_in_bytes_beyond_those_of_direct(hosts):
    for size in SIZES:
        sent = {"exchange": (hosts - 1) * size, "direct": 2 * (hosts - 1) * size / hosts}
        assert exchange_bytes(size, hosts) == pytest.approx(sent["exchange"] - sent["direct"], abs=1)
        assert size <= exchange_limit(exchange_bytes(size, hosts), hosts) < 1.01 * size


def test_neighbouring_numbers_of_streams_are_as_good_as_alike():
    """Four and eight take turns at being the quicker ones: that is sure enough. The default and four are not alike."""
    streams = Microbenchmark("tcp_streams", 2, ({},) * 3, (4096,), crossing=False, values=(0, 4, 8), doubling=True)
    assert confidence(streams, {4096: [[2.0, 1.0, 1.01], [2.0, 1.01, 1.0]] * 10}) == 1
    assert confidence(streams, {4096: [[1.0, 0.9, 3.0], [1.0, 1.06, 3.0]] * 10}) < 1
    assert confidence(replace(streams, doubling=False), {4096: [[2.0, 1.0, 1.01], [2.0, 1.01, 1.0]] * 10}) < 1


@pytest.mark.parametrize(
    ("field", "value", "other", "alike"),
    [
        ("tcp_streams", 4, 4, True),
        ("tcp_streams", 4, 2, False),
        ("tcp_streams", 0, 4, False),
        ("exchange_bytes", 30_000, 24_576, True),
        ("exchange_bytes", 10_000, 24_576, False),
        ("exchange_bytes", 0, 24_576, False),
    ],
)
def test_a_value_as_good_as_the_one_in_force(field, value, other, alike):
    assert is_alike(field, value, {field: other}) == alike


# Real ranks run their benchmarks, or say what keeps them from it.

CANDIDATES = ({"transport": "shm"}, {"transport": "shm", "slot_bytes": 4096})
SLOT_BENCHMARK = Microbenchmark("slot_bytes_of_two", 2, CANDIDATES, (64, 4096), crossing=False, values=(1, 2))


def reports(assignment: Assignment) -> list[list[object]]:
    """What each rank sends, by rank."""
    spawner = multiprocessing.get_context("forkserver")
    spawner.set_forkserver_preload(["ringdp.tools.tune.rank"])
    pipes = [spawner.Pipe(duplex=False) for _ in range(assignment.size)]
    ranks = [spawner.Process(target=rank_main, args=(pipe[1], rank, assignment)) for rank, pipe in enumerate(pipes)]
    for rank, (_, theirs) in zip(ranks, pipes, strict=True):
        rank.start()
        theirs.close()
    found: list[list[object]] = []
    for mine, _ in pipes:
        found.append([])
        while not found[-1] or isinstance(found[-1][-1], dict):
            assert mine.poll(60), found
            found[-1].append(mine.recv())
    for rank in ranks:
        rank.join()
    return found


def test_rank_0_reports_every_round_of_every_benchmark(tmp_path):
    benchmarks = (SLOT_BENCHMARK, replace(SLOT_BENCHMARK, shared=True))
    zero, one = reports(Assignment(2, benchmarks, 0.01, str(tmp_path)))
    assert one == [None]
    assert len(zero) == len(benchmarks) + 1 and zero[-1] is None
    for times in zero[:-1]:
        assert set(times) == set(SLOT_BENCHMARK.sizes)
        assert len({len(rows) for rows in times.values()}) == 1, "every size takes part in every round"
        for rows in times.values():
            assert rows and all(len(row) == len(CANDIDATES) and min(row) > 0 for row in rows)


@pytest.mark.parametrize(
    ("fields", "named"), [({"slot_bytes": 1}, "slot_bytes"), ({"heap_bytes": 0}, "heap_bytes is 0")]
)
def test_what_cannot_be_measured_is_said_by_every_rank(tmp_path, fields, named):
    benchmark = replace(SLOT_BENCHMARK, candidates=(fields,), shared=True)
    for rank, said in enumerate(reports(Assignment(2, (benchmark,), 0.01, str(tmp_path)))):
        assert said[-1].startswith(f"rank {rank}: ") and named in said[-1]


# Ranks that die or give up are named; no process is left behind.

SPIN_BENCHMARK = Microbenchmark("spin_us", 2, ({}, {}), (64,))
ASSIGNMENT = Assignment(2, (SPIN_BENCHMARK, replace(SPIN_BENCHMARK, field="other")), 0.01)
TIMES = {64: [[1.0, 2.0]]}


def plays_along(pipe, rank, assignment):
    """Two benchmarks, without a group."""
    assert os.path.isdir(assignment.folder)
    for _ in assignment.benchmarks if rank == 0 else ():
        pipe.send(TIMES)
    pipe.send(None)


def rank_1_dies(pipe, rank, assignment):
    """While rank 0 waits."""
    if rank == 1:
        os._exit(7)
    signal.pause()


def rank_0_gives_up(pipe, rank, assignment):
    """With a reason."""
    if rank == 0:
        pipe.send("rank 0: no memory")
    signal.pause()


def test_benchmarks_come_in_order_with_their_times():
    others = multiprocessing.active_children()
    found = list(measured(ASSIGNMENT, plays_along))
    assert found == [(benchmark, TIMES) for benchmark in ASSIGNMENT.benchmarks]
    assert set(multiprocessing.active_children()) <= set(others)


@pytest.mark.parametrize(
    ("entry", "named"), [(rank_1_dies, "rank 1 died with status 7"), (rank_0_gives_up, "rank 0: no memory")]
)
def test_a_rank_that_stops_is_named_and_all_are_ended(entry, named):
    others = multiprocessing.active_children()
    with pytest.raises(TuneError, match=named):
        list(measured(ASSIGNMENT, entry))
    assert set(multiprocessing.active_children()) <= set(others)
