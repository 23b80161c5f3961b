"""benchmarks/runner: cells, the C half, rounds of teams without torch, rows, peers; no rank here needs torch."""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from runner.cell import OPS, Cell, parse_size, seed_of, size_name
from runner.coordinator import Coordinator, Team, TeamLost
from runner.limits import probe_bytes, shared_bytes, sweep_bytes
from runner.native import DTYPES, SOURCE, Block, compile_native, load_native, make_shared
from runner.peers import PEERS, commands, why_missing
from runner.rounds import CellRun, Entry, Length, entries_of
from runner.session import refusal
from runner.table import COLUMNS, header, line, paired, rows_of, spread


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("op", OPS)
def test_counts_are_whole_parts_and_at_least_one_each(op, ranks):
    for size in (1, 4096, 10_000):
        cell = Cell(op, "float32", ranks, size)
        assert cell.count == cell.part * ranks
        assert cell.part >= 1
        assert cell.nbytes <= max(size, 4 * ranks)
        assert max(cell.input_count, cell.output_count) == cell.count


@pytest.mark.parametrize("ranks", [2, 5])
def test_expected_covers_every_output_once(ranks):
    for op in OPS:
        cell = Cell(op, "float32", ranks, 4096)
        for rank in range(ranks):
            pieces = cell.expected(rank, root=1)
            covered = sum(piece.count for piece in pieces)
            nothing = op == "reduce" and rank != 1
            assert covered == (0 if nothing else cell.output_count or cell.count)
            for piece in pieces:
                assert set(piece.ranks) <= set(range(ranks))


def test_bus_factors_are_those_of_nccl_tests():
    factors = {op: Cell(op, "float32", 4, 64).bus_factor for op in OPS}
    rest = {"reduce_scatter": 0.75, "all_gather": 0.75, "all_to_all": 0.75}
    assert factors == {"all_reduce": 1.5, "broadcast": 1.0, "reduce": 1.0, **rest}


def test_seeds_differ_by_cell_turn_and_rank():
    cells = [Cell(op, dtype, 2, size) for op in OPS for dtype in ("float32", "bfloat16") for size in (64, 128)]
    seeds = {seed_of(cell, turn, rank) for cell in cells for turn in (-2, 0, 1) for rank in (0, 1)}
    assert len(seeds) == len(cells) * 6


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("4KiB", 4096), ("1M", 1 << 20), ("2 gib", 2 << 30)])
def test_sizes_in_words(text, size):
    assert parse_size(text) == size
    assert parse_size(size_name(size)) == size


@pytest.mark.parametrize("text", ["", "0", "4x", "-1", "1.5MiB"])
def test_no_size(text):
    with pytest.raises(ValueError, match="no size"):
        parse_size(text)


def test_sweep_reads_and_writes_what_a_perfect_collective_would():
    read_write = {op: [sweep_bytes(Cell(op, "bfloat16", 4, 4096), rank, root=1) for rank in (0, 1)] for op in OPS}
    for op in ("all_reduce", "all_gather", "all_to_all"):
        assert read_write[op] == [(4096, 4096)] * 2
    for op in ("reduce_scatter", "reduce"):
        assert read_write[op] == [(4096, 1024)] * 2
    assert read_write["broadcast"] == [(4096, 4096), (0, 0)]


def test_limits_need_memory_for_the_largest_shuffle_or_source():
    assert shared_bytes([Cell("all_reduce", "float32", 4, 64), Cell("all_gather", "float32", 4, 512)]) == 512
    assert shared_bytes([Cell("all_reduce", "float32", 4, 256), Cell("all_gather", "float32", 4, 512)]) == 1024


def test_probe_moves_what_must_enter_a_host():
    assert probe_bytes(Cell("all_reduce", "float32", 8, 4096), hosts=4) == 2 * 3072
    assert probe_bytes(Cell("all_gather", "float32", 8, 4096), hosts=4) == 3072


BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SEEDS = [11, 222, 3333]


@pytest.fixture(scope="session")
def native():
    """The library of native.c, compiled once for all workers and sessions."""
    # Another text has another folder.
    folder = BENCHMARKS.parent / "build" / f"runner-native-{SOURCE.stat().st_mtime_ns}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        library = folder / "native.so"
        return load_native(library if library.exists() else compile_native(folder))


def filled(native, dtype, count, seed, first=0):
    """`count` elements of the pattern from `first` on."""
    whole = torch.empty(first + count, dtype=getattr(torch, dtype))
    getattr(native, f"runner_fill_{dtype}")(whole.data_ptr(), first + count, seed)
    return whole[first:].clone()


def wrong_elements(native, dtype, tensor, first=0, seeds=SEEDS):
    array = (ctypes.c_uint32 * len(seeds))(*seeds)
    return getattr(native, f"runner_wrong_{dtype}")(tensor.data_ptr(), tensor.numel(), first, array, len(seeds))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", [0, 5, 1024])
def test_a_sum_is_right_and_every_single_damage_is_seen(native, dtype, first):
    total = sum(filled(native, dtype, 3000, seed, first).double() for seed in SEEDS).to(getattr(torch, dtype))
    assert wrong_elements(native, dtype, total, first) == 0
    for place in (0, 1023, 1024, 2999):
        damaged = total.clone()
        damaged[place] += 1
        assert wrong_elements(native, dtype, damaged, first) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_ranks_rounds_and_places_give_other_values(native, dtype):
    mine = filled(native, dtype, 4096, 1)
    assert set(mine.tolist()) == set(range(-4, 4))
    for other in (filled(native, dtype, 4096, 2), filled(native, dtype, 4096, 1, first=1)):
        assert (mine == other).float().mean() < 0.2


@pytest.mark.parametrize("dtype", DTYPES)
def test_minus_zero_is_zero(native, dtype):
    assert wrong_elements(native, dtype, torch.zeros(10, dtype=getattr(torch, dtype)).neg(), seeds=[]) == 0


def test_fold_and_scale(native):
    parts = torch.arange(3 * 1500, dtype=torch.float32)
    out = torch.empty(1500)
    native.runner_fold(out.data_ptr(), parts.data_ptr(), 1500, 3)
    assert torch.equal(out, parts.view(3, 1500).sum(0))
    native.runner_scale(out.data_ptr(), 1500, -2.0)
    assert torch.equal(out, -2 * parts.view(3, 1500).sum(0))


def test_the_block_is_what_c_says(native):
    assert 0 <= native.runner_block_bytes() - ctypes.sizeof(Block) < 128


PROGRAM = str(Path(__file__).with_name("fake_rank.py"))
RANKS = 2
BROADCAST = Cell("broadcast", "float32", RANKS, 4096)


@contextmanager
def runner_of(kinds, native, folder):
    """A coordinator with one team per kind."""
    descriptor, block = make_shared("test-block", ctypes.sizeof(Block))
    coordinator = Coordinator(folder, {"ranks": RANKS, "library": native._name, "block": block}, [BROADCAST])
    try:
        for number, kind in enumerate(kinds):
            lines = [[sys.executable, PROGRAM, str(folder), str(number), str(rank), kind] for rank in range(RANKS)]
            coordinator.add(kind, number, RANKS, lines, [{}] * RANKS)
        yield coordinator
    finally:
        processes = [process for team in coordinator.teams for process in team.processes]
        coordinator.close()
        os.close(descriptor)
        assert all(process.poll() is not None for process in processes)


def run_cell(coordinator, least=4):
    cell_run = CellRun(coordinator, 0, lambda name, cell: "")
    cell_run.run(Length(least=least, most=least, seconds=0))
    return cell_run


def test_every_team_runs_every_round_and_damage_is_counted(native, tmp_path):
    with runner_of(["steady", "wrong"], native, tmp_path) as coordinator:
        cell_run = run_cell(coordinator)
    steady, wrong = cell_run.entries
    assert (steady.candidate, wrong.candidate) == ("steady", "wrong")
    assert len(steady.times) == len(wrong.times) == 4
    assert all(seconds > 0 for seconds in steady.times + wrong.times)
    assert steady.wrong == 0
    assert wrong.wrong == 4 + 2  # one element per round, warm-up included
    assert not cell_run.lost


def test_a_team_that_dies_is_named_and_the_others_go_on(native, tmp_path):
    with runner_of(["steady", "mortal"], native, tmp_path) as coordinator:
        first, second = run_cell(coordinator), run_cell(coordinator)
    assert [entry.candidate for entry in first.entries] == ["steady"]
    assert len(first.entries[0].times) == 4
    assert "status 7" in first.lost["mortal"]
    assert "these are my last words" in first.lost["mortal"]
    assert [entry.candidate for entry in second.entries] == ["steady"]


def test_without_the_first_team_there_is_no_race(native, tmp_path):
    with runner_of(["mortal", "steady"], native, tmp_path) as coordinator, pytest.raises(TeamLost, match="status 7"):
        run_cell(coordinator)


def test_a_team_that_cannot_start_is_reported_with_its_last_words(native, tmp_path):
    with (
        runner_of(["steady"], native, tmp_path) as coordinator,
        pytest.raises(TeamLost, match="no such team here"),
    ):
        coordinator.add("other", 1, 1, [[sys.executable, "-c", "raise SystemExit('no such team here')"]], [{}])


TEAM = Team("torch", 0, 2, Path("/dev/null"), hello={"candidates": ["ringdp", "gloo", "sweep"], "limits": ["sweep"]})
ROW_CELL = Cell("all_reduce", "float32", 4, 4000)


def entries(**times):
    return [Entry(name, TEAM, index, list(seconds)) for index, (name, seconds) in enumerate(times.items())]


def test_ratios_are_taken_round_by_round():
    drifting = paired([1.0, 10.0, 100.0], [2.0, 5.0, 200.0])
    assert drifting["median"] == 0.5
    assert (drifting["p10"], drifting["p90"]) == (0.5, 2.0)
    with pytest.raises(ValueError):
        paired([1.0], [1.0, 2.0])


def test_spread_is_the_tenth_and_ninetieth_percentile():
    assert spread(range(11)) == (1, 9)
    assert spread([3.0]) == (3.0, 3.0)


def test_a_row_has_bandwidths_and_shares():
    rows = rows_of(ROW_CELL, entries(ringdp=[2e-6, 4e-6, 8e-6], gloo=[8e-6, 8e-6, 8e-6], sweep=[1e-6, 1e-6, 6e-6]))
    ours, gloo, sweep = rows
    assert ours["time_us"] == pytest.approx(4.0)
    assert ours["algbw"] == pytest.approx(ROW_CELL.nbytes / 4e-6 / 1e9)
    assert ours["busbw"] == pytest.approx(1.5 * ours["algbw"])
    assert ours["of_sweep"]["median"] == pytest.approx(0.5)
    assert ours["over_gloo"]["median"] == pytest.approx(2.0)
    assert "over_ringdp" not in ours
    assert gloo["over_ringdp"]["median"] == pytest.approx(2.0)
    assert "over_gloo" not in gloo
    assert "of_sweep" not in sweep


def test_lines_have_all_columns_and_a_limit_is_no_collective():
    rows = rows_of(ROW_CELL, entries(ringdp=[2e-6], gloo=[8e-6], sweep=[1e-6]))
    lines = [line(row, ["sweep"]) for row in rows]
    assert {len(text) for text in lines} == {len(header())}
    assert sum(width + 1 for _, width in COLUMNS) - 1 == len(header())
    assert lines[2].split()[-9:] == ["-"] * 9


def test_a_candidate_that_refuses_does_not_take_part():
    took_part = entries_of([TEAM], ROW_CELL, lambda name, cell: "cannot" if name == "gloo" else "")
    assert [(entry.candidate, entry.index) for entry in took_part] == [("ringdp", 0), ("sweep", 2)]


MPIS = ("openmpi", "mpich", "intelmpi")


def installer():
    """benchmarks/peers.py, which shares its name with race/peers.py."""
    spec = importlib.util.spec_from_file_location("install_peers", BENCHMARKS / "peers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", MPIS)
def test_mpi_sums_no_bfloat16_but_moves_it(name):
    assert "bfloat16" in refusal(name, Cell("all_reduce", "bfloat16", 2, 64), cores=2)
    assert not refusal(name, Cell("all_gather", "bfloat16", 2, 64), cores=2)
    assert not refusal(name, Cell("all_reduce", "float32", 8, 64), cores=2)


def test_deepspeed_needs_a_core_per_rank():
    assert "4 on 2 cores" in refusal("deepspeed", Cell("all_reduce", "float32", 4, 64), cores=2)
    assert refusal("deepspeed", Cell("broadcast", "float32", 2, 64), cores=2)
    assert not refusal("deepspeed", Cell("all_reduce", "bfloat16", 2, 64), cores=2)


@pytest.mark.parametrize("name", PEERS)
def test_what_is_not_installed_is_named_with_the_way_out(name, tmp_path):
    assert f"peers.py {name}" in why_missing(PEERS[name], tmp_path)


@pytest.mark.parametrize("name", MPIS)
def test_one_launcher_starts_all_ranks(name, tmp_path):
    lines, launch = commands(PEERS[name], tmp_path, 4, 2, ["folder", "1", name])
    assert len(lines) == 1
    assert lines[0][0] == str(tmp_path / "bin/mpiexec")
    assert lines[0][lines[0].index("-n") + 1] == "4"
    assert lines[0][-5:] == ["-m", "runner.mpi_rank", "folder", "1", name]
    assert "mpiexec" in launch.settings


def test_deepspeed_ranks_are_started_one_by_one(tmp_path):
    lines, _ = commands(PEERS["deepspeed"], tmp_path, 2, 2, ["folder"])
    assert [line[-1] for line in lines] == ["0", "1"]


def test_requirements_say_what_every_peer_is_made_of():
    module = installer()
    known = module.packages(module.REQUIREMENTS.read_text())
    assert set(known) == {*PEERS, "simgrid"}
    assert all(known.values())
