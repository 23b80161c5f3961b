"""benchmarks/devices over devices of host threads, and benchmarks/gpu.py without a GPU."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import devices.team
import gpu
import pytest
import torch
from devices import copies, findings, loading, small_world, spin
from devices.cell import ALL_REDUCE, DDP_STEP, ZERO_STEP, Cell
from devices.core import (
    EPOCH_BYTES,
    FLAGS_BYTES,
    MAX_BLOCKS,
    MAX_STEPS,
    SHARE_AUTO,
    SHARE_FD,
    SPIN,
    STREAM,
    Core,
    CoreError,
    Work,
    open_core,
    sizes,
)
from devices.one_process import OneProcess
from devices.one_rank import OneRank
from devices.plan import ALIGNMENT, Launch, Layout, Problem, plan_of, plans_of
from devices.shared_rank import KINDS, variables_of
from devices.table import BARS, LIMITS, bars_of, draw, line, roofline, rows_of
from devices.team import LEAST_ROUNDS, MOST_CALLS, CandidateFailed, Entry, Rounds, Team, TeamLost, took
from devices.worker import answer
from programs import refusal
from ranks import HERE, error_of, on_ranks
from ringdp import _native
from stand_in import StandInPlace

PAGE = 1 << 20  # an address that is never read: every case is refused before
PLAN = plans_of(Problem(algorithm="one_shot", count=64))[1]
PUSH = plans_of(Problem(algorithm="push", count=64))[1]


@pytest.fixture(scope="module")
def core() -> Core:
    path = _native.load().gpu_report()["library"]
    if path is None:
        pytest.skip("the CUDA part is not built here")
    return Core(path)


def sound(plan=PLAN) -> Work:
    """Work that only lacks a device."""
    work = Work(rank=1, world=2, blocks=1, steps=plan.steps, epoch=PAGE, deadline_ns=1, abort=PAGE, expired=PAGE)
    for rank in range(2):
        for pointers in (work.input, work.output, work.stage, work.pushed, work.flags):
            pointers[rank] = PAGE
    work.pushed_bytes, work.stream_epoch = 1 << 10, 1
    ctypes.memmove(work.step, plan.packed, len(plan.packed))
    return work


def spoil(name: str, value: int | None, rank: int | None = None) -> Callable[[Work], None]:
    """Sets a field, or one rank's."""

    def change(work: Work) -> None:
        if rank is None:
            setattr(work, name, value)
        else:
            getattr(work, name)[rank] = value

    return change


CASES = [
    ("invalid value 9 for world", spoil("world", 9), PLAN),
    ("invalid value 2 for rank", spoil("rank", 2), PLAN),
    (f"invalid value {MAX_BLOCKS + 1} for blocks", spoil("blocks", MAX_BLOCKS + 1), PLAN),
    (f"invalid value {MAX_STEPS + 1} for steps", spoil("steps", MAX_STEPS + 1), PLAN),
    ("invalid value 0 for deadline_ns", spoil("deadline_ns", 0), PLAN),
    ("epoch is null", spoil("epoch", None), PLAN),
    ("abort is null", spoil("abort", None), PLAN),
    ("expired is null", spoil("expired", None), PLAN),
    ("flags[1] is null", spoil("flags", None, 1), PLAN),
    ("from of rank 1 is null", spoil("input", None, 1), PLAN),
    ("to of rank 1 is null", spoil("output", None, 1), PLAN),
    ("of rank 0 is null", spoil("stage", None, 0), PLAN),
    ("pushed[0] is null", spoil("pushed", None, 0), PUSH),
    ("invalid value 511 for step 0: pushed_bytes", spoil("pushed_bytes", 511), PUSH),
]


def test_every_structure_has_the_size_of_the_extension():
    assert sizes() == _native.load().device_sizes()


@pytest.mark.parametrize(("sentence", "change", "plan"), CASES, ids=[sentence for sentence, *_ in CASES])
def test_every_field_of_work_lies_where_the_library_looks(core, sentence, change, plan):
    work = sound(plan)
    change(work)
    with pytest.raises(CoreError) as refusal:
        core.run(work, plan.element, plan.reduce, SPIN)
    assert sentence in str(refusal.value)


def test_the_launch_number_of_streams_lies_where_the_library_looks(core):
    work = sound()
    work.stream_epoch = 0
    with pytest.raises(CoreError, match="stream_epoch is 0"):
        core.run(work, PLAN.element, PLAN.reduce, STREAM)


def test_a_library_that_does_not_open_is_named():
    with pytest.raises(CoreError, match=r"/nowhere/gpu\.so does not open"):
        Core("/nowhere/gpu.so")


PROBLEMS = [Problem(algorithm=a, world=4, count=1000) for a in ("direct", "one_shot", "push", "ring/rank")]


def test_parts_follow_one_another_and_hold_what_every_plan_needs():
    plans = [plan for problem in PROBLEMS for plan in plans_of(problem)]
    layout = Layout.of(4, plans)
    starts = [layout.epoch, layout.flags, layout.pushed, layout.stage, layout.input, layout.output, layout.total]
    spaces = [end - begin for begin, end in pairwise(starts)]
    most = [max(getattr(plan, f"{part}_bytes") for plan in plans) for part in ("pushed", "stage", "input", "output")]
    assert all(start % ALIGNMENT == 0 for start in starts)
    needs = [EPOCH_BYTES, FLAGS_BYTES, 2 * 4 * most[0], *most[1:]]
    assert all(need <= space < need + ALIGNMENT for need, space in zip(needs, spaces, strict=True))
    assert most[0] > 0 and most[1] > 0 and layout.pushed_bytes == most[0]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_launch_names_the_parts_of_all_ranks(in_place):
    problem = PROBLEMS[2]
    plan = plan_of(problem, 2)
    layout = Layout.of(4, plans_of(problem))
    bases = [0x100000 * (rank + 1) for rank in range(4)]
    launch = Launch(layout, bases, [7000 + r for r in range(4)], abort=64, expired=128, blocks=5, deadline_s=0.25)
    work = launch.at(in_place=in_place).work(plan, divisor=4.0, stream_epoch=9)
    assert (work.rank, work.world, work.blocks, work.steps) == (2, 4, 5, plan.steps)
    assert (work.deadline_ns, work.divisor, work.stream_epoch) == (250_000_000, 4.0, 9)
    assert work.epoch == bases[2] + layout.epoch and (work.abort, work.expired) == (64, 128)
    part = layout.input if in_place else layout.output
    assert list(work.output)[:4] == [base + part for base in bases]
    assert list(work.pushed)[:4] == [base + layout.pushed for base in bases]
    assert list(work.flags)[:4] == [7000, 7001, 7002, 7003] and work.flags[4] is None
    assert bytes(work.step).startswith(plan.packed)


COUNT = 4 * 101
SUMS = ["direct", "one_shot", "ring/rank"]


def inputs_of(world: int) -> list[torch.Tensor]:
    return [torch.randn(COUNT, generator=torch.Generator().manual_seed(rank)) for rank in range(world)]


def folded(inputs: list[torch.Tensor]) -> bytes:
    """Their sum in rank order."""
    total = inputs[0].clone()
    for one in inputs[1:]:
        total += one
    return total.numpy().tobytes()


def without_one(library: str) -> tuple[int, list[str]]:
    """In one process: what a rank says that waited in vain, whether an aborted wait leaves a record, and a refusal."""
    problem, said = Problem(world=2, count=COUNT), []
    with OneProcess(open_core(), StandInPlace(library), 2, [problem]) as ranks:
        ranks.launch(problem, [0], deadline_s=0.05)
        ranks.place.synchronize()
        said.append(error_of(ranks.check, kind=CoreError))
    with OneProcess(open_core(), StandInPlace(library), 2, [problem]) as ranks:
        ranks.launch(problem, [0], deadline_s=100)
        ranks.abort(0)
        ranks.place.synchronize()
        ranks.check()
        said.append(error_of(lambda: ranks.launch(problem, blocks=65), kind=CoreError))
        return ranks.expired(0).set, said


def as_processes(library: str, sharing: int) -> list[str]:
    """On a rank: every algorithm whose bytes are wrong here."""
    place, core = StandInPlace(library), open_core()
    problems = [Problem(algorithm=name, world=HERE.size, count=COUNT) for name in SUMS]
    inputs, wrong = inputs_of(HERE.size), []
    with OneRank(core, place, problems, STREAM, sharing) as rank:
        pinned = core.host_alloc(4 * COUNT)
        memory = torch.frombuffer((ctypes.c_char * (4 * COUNT)).from_address(pinned.host), dtype=torch.float32)
        for problem in problems:
            memory.copy_(inputs[HERE.rank])
            core.copy(rank.input(), pinned.host, 4 * COUNT, rank.stream)
            rank.launch(problem)
            core.copy(pinned.host, rank.output(), 4 * COUNT, rank.stream)
            place.synchronize()
            if memory.numpy().tobytes() != folded(inputs) or rank.expired().set:
                wrong.append(problem.algorithm)
        core.host_free(pinned)
    return wrong


@pytest.mark.parametrize("executor", [SPIN, STREAM], ids=["SPIN", "STREAM"])
@pytest.mark.parametrize("world", [1, 2, 4])
@on_ranks(1, [])
def test_streams_of_one_process(stand_in: str, world: int, executor: int) -> list[str]:
    """In one process: every algorithm and rank whose bytes are wrong, plans following one another."""
    place = StandInPlace(stand_in)
    algorithms = [*SUMS, *(["push"] if executor == SPIN else [])] * 2
    problems = [Problem(algorithm=name, world=world, count=COUNT) for name in algorithms]
    inputs, wrong = inputs_of(world), []
    with OneProcess(open_core(), place, world, problems, executor) as ranks:
        for rank, tensor in enumerate(inputs):
            ranks.put(ranks.input(rank), tensor.numpy().tobytes())
        for problem in problems:
            for rank in range(world):
                ranks.put(ranks.output(rank), bytes(4 * COUNT))
            ranks.launch(problem)
            for rank in range(world):
                if ranks.get(ranks.output(rank), 4 * COUNT) != folded(inputs) or ranks.expired(rank).set:
                    wrong.append(f"rank {rank}: {problem.algorithm}")
    return wrong


def test_a_missing_rank_is_named_and_bad_work_is_refused(world_of, stand_in):
    [(aborted, said)] = world_of(1).run(without_one, stand_in)
    assert aborted == 0
    assert "rank 0 waited in vain for rank 1 in step" in said[0] and "invalid value 65 for blocks" in said[1]


@pytest.mark.parametrize("sharing", [SHARE_AUTO, SHARE_FD], ids=["IPC", "descriptors"])
@pytest.mark.parametrize("world", [2, 3])
def test_processes_that_share_a_device(world_of, stand_in, world, sharing):
    assert world_of(world).run(as_processes, stand_in, sharing) == [[]] * world


def in_a_small_world(library: str, found: str, multiprocessors: str) -> list[tuple[str, str]]:
    """In one process: names and verdicts of what runs under compute-sanitizer."""
    os.environ |= {"FINDINGS": found, "STAND_IN_MULTIPROCESSORS": multiprocessors}
    small_world.DEADLINE_S = 0.3 if multiprocessors == "1" else 10.0
    place = StandInPlace(library)
    small_world.run_all(open_core(), place)
    return [(one.name, one.verdict) for one in findings.read(Path(found))]


@pytest.mark.parametrize(("multiprocessors", "kept_apart"), [("4", "passed"), ("1", "skipped")])
def test_a_small_world_is_right_or_says_that_kernels_are_kept_apart(
    run_on_fresh_ranks, stand_in, tmp_path, multiprocessors, kept_apart
):
    arguments = (stand_in, str(tmp_path / "found"), multiprocessors)
    [found] = run_on_fresh_ranks(1).run(in_a_small_world, *arguments)
    assert len(found) == len(list(small_world.cases())) > 8
    assert all(
        verdict == (kept_apart if name.startswith("SPIN, ") and "world 2" in name else "passed")
        for name, verdict in found
    ), found


def measured(library: str) -> list[dict[str, object]]:
    """In one process: what gpu-check measures of copies, late ranks, full devices and loading."""
    os.environ |= {"STAND_IN_DEVICES": "2", "STAND_IN_MULTIPROCESSORS": "16"}
    spin.TIMES, spin.COUNT = 2, 1 << 14
    place, core = StandInPlace(library), open_core()
    return [
        copies.speeds(core),
        spin.after_a_late_rank(core, place),
        spin.on_a_full_device(core, place),
        loading.seconds(core),
    ]


def test_what_is_measured_of_kernels_and_copies(run_on_fresh_ranks, stand_in):
    [[speeds, late, full, loaded]] = run_on_fresh_ranks(1).run(measured, stand_in)
    pairs = {f"GB/s, device {reader} from device {owner}" for reader in range(2) for owner in range(2)}
    assert set(speeds) == {"us of a copy of 16 bytes", *pairs}
    assert set(late) == {f"us, {name}, {blocks} blocks" for name in spin.ALGORITHMS for blocks in (1, 8)}
    assert set(full) == {"blocks of each rank", "us, alone", "us, beside other grids"}
    assert all(value > 0 for facts in (speeds, late, full) for value in facts.values())
    assert loaded["seconds"] >= 0


def test_kernels_that_are_not_loaded_in_time_or_not_at_all():
    def refuse() -> None:
        raise CoreError("no kernel image")

    slow, none = SimpleNamespace(kernels=lambda: time.sleep(60)), SimpleNamespace(kernels=refuse)
    assert loading.seconds(slow, limit_s=0.05) == {"seconds": "more than 0.05"}
    with pytest.raises(findings.NotHere, match="no kernel image"):
        loading.seconds(none)


# benchmarks/gpu.py without a GPU: options, candidates of a cell, rows and bars of known times, a picture; teams.

MIB = 1 << 20


def entry(name: str, *seconds: float, wrong: int = 0) -> Entry:
    return Entry(name, calls=3, wrong=wrong, seconds=list(seconds))


def rows(world: int, size: int, op: str = ALL_REDUCE, **seconds: float) -> list[dict]:
    """Rows of one round; __ stands for a blank in a name."""
    return rows_of(Cell(op, world, size), [entry(name.replace("__", " "), took) for name, took in seconds.items()])


def test_the_least_bytes_are_those_of_inputs_and_outputs():
    assert Cell(ALL_REDUCE, 4, 100).least_bytes == 2 * 4 * 100
    assert Cell(ZERO_STEP, 4, 100).least_bytes == 4 * 100 + 3 * 100 + 4 * 100 + 2 * 100


def test_the_roofline_is_the_faster_limit_of_every_round():
    entries = [entry("copy", 2.0, 3.0), entry("sweep", 1.0, 4.0), entry("threads", 4.0, 4.0)]
    assert roofline(entries) == [1.0, 3.0]
    assert rows_of(Cell(ALL_REDUCE, 2, MIB), entries)[2]["x"]["roofline"] == 0.5  # of 0.25 and 0.75
    assert roofline(entries[2:]) == []


def test_ratios_are_medians_within_rounds():
    entries = [entry("gloo", 8.0, 8.0, 80.0), entry("threads", 1.0, 2.0, 40.0)]
    [_, ours] = rows_of(Cell(ALL_REDUCE, 2, MIB), entries)
    assert ours["x"] == {"gloo": 4.0} and ours["microseconds"] == 2e6
    assert "4" in line(ours) and line(ours).count("-") == 1  # no roofline


def test_a_bar_is_taken_where_it_is_hardest_and_said_where_nothing_was_measured():
    measured = rows(2, 256 * MIB, copy=1.0, threads=1.1) + rows(4, 256 * MIB, copy=1.0, threads=2.0)
    [bar], unmeasured = bars_of(measured)
    assert bar.measured == 0.5 and not bar.held and "4 ranks" in bar.what
    assert len(unmeasured) == len(BARS) - 1


def test_every_bar_can_be_held():
    large = rows(2, 256 * MIB, copy=1.0, threads=1.1, processes=1.5, nccl=2.0)
    small = [r for size in (4 << 10, 64 << 10) for r in rows(2, size, threads__push=1.0, symm__one_shot=1.0)]
    middle = rows(2, 64 * MIB, processes=1.0, gloo=11.0)
    steps = rows(2, 256 * MIB, ZERO_STEP, fused__step=1.0, separate__step=2.0)
    bars, unmeasured = bars_of([*large, *small, *middle, *steps])
    assert len(bars) == len(BARS) and all(bar.held for bar in bars) and unmeasured == []


def test_what_bars_ask_for_is_raced():
    for _, op, size, ours, theirs, _ in BARS:
        names = gpu.wanted(Cell(op, 2, size))
        assert ours in names and set(LIMITS) <= set(names) and (theirs == "roofline" or theirs in names)
    asked = gpu.cells_of(gpu.parse([]), 2)
    assert {(op, size) for _, op, size, *_ in BARS} <= {(cell.op, cell.size) for cell in asked}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--ranks", "3"], "invalid number of ranks 3"),
        (["--ranks", "two"], "'two'"),
        (["--sizes", "100"], "100 bytes"),
        (["--sizes", "1 furlong"], "furlong"),
        (["--peers", "pigeon"], "'pigeon' is none of gloo"),
        (["--seconds", "0"], "--seconds is 0"),
        (["--json", "/nowhere/x.json"], "no folder"),
    ],
)
def test_bad_input_is_refused(arguments, named):
    assert named in refusal(gpu.parse, *arguments)


def test_every_peer_is_a_team_and_the_ring_of_nccl_differs_by_its_setting_alone():
    assert set(KINDS) == {"ringdp", *gpu.PEERS}
    assert variables_of("nccl ring", 0) == {**variables_of("nccl", 0), "NCCL_ALGO": "Ring"}
    assert gpu.cells_of(gpu.parse(["--sizes", "4KiB,1GiB"]), 2)[2] == Cell(DDP_STEP, 2, 64 * MIB)
    assert gpu.wanted(Cell(DDP_STEP, 2, MIB)) == ["ringdp ddp", "gloo ddp", "nccl ddp"]


def test_a_row_is_a_finding_for_who_checks_a_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("FINDINGS", str(tmp_path / "found"))
    measured = rows_of(Cell(ZERO_STEP, 2, MIB), [entry("fused step", 1.0), entry("copy", 1.0, wrong=3)])
    for row in measured:
        gpu.note(row)
    found = findings.read(tmp_path / "found")
    assert [(one.name, one.verdict, one.text) for one in found] == [
        ("zero_step by fused step, 2 ranks, 1048576 bytes", "passed", ""),
        ("zero_step by copy, 2 ranks, 1048576 bytes", "failed", "3 elements are wrong"),
    ]


def test_the_picture_has_a_panel_for_every_number_of_ranks(tmp_path):
    pytest.importorskip("matplotlib")
    many = [r for world in (2, 4) for size in (4096, MIB) for r in rows(world, size, copy=1e-3, threads=2e-3)]
    draw({"rows": many, "machine": {"gpu": "none"}}, tmp_path / "gpu.png")
    assert (tmp_path / "gpu.png").stat().st_size > 10_000


BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RANK = """
import json, os, sys, time
from devices.worker import serve
class Steady:
    def __init__(self, name, wrong=0): self.name, self._wrong = name, wrong
    def open(self, cell): print("chatter", cell); return self._wrong
    def run(self, calls): return 0.0, calls * 0.01 * (1 + int(os.environ["RANK"]))
    def close(self): pass
class Failing(Steady):
    def run(self, calls): raise ValueError("no such kernel\\nsecond line")
class Ending(Steady):
    def open(self, cell): print("cut down", file=sys.stderr); sys.stderr.flush(); os._exit(7)
class Stuck(Steady):
    def open(self, cell): time.sleep(600)
kinds = {"steady": Steady, "failing": Failing, "ending": Ending, "stuck": Stuck}
if sys.argv[1] == "absent":
    serve(lambda: 1 / 0)
serve(lambda: [kinds[name](name) for name in sys.argv[1].split(",")])
"""
CELL = Cell(ALL_REDUCE, 2, 4096)


def make_team(names: str) -> Team:
    """Two ranks with these candidates."""
    variables = [{"PYTHONPATH": str(BENCHMARKS), "RANK": str(rank)} for rank in range(2)]
    return Team(names, [[sys.executable, "-c", RANK, names]] * 2, variables)


@pytest.fixture
def rounds():
    """Rounds whose teams are ended."""
    rounds = Rounds()
    yield rounds
    rounds.close()


def test_every_candidate_runs_in_every_round(rounds):
    rounds.welcome(make_team("steady,stuck"), 30)
    [entry] = rounds.measure(CELL, ["steady"], 0.0)  # other candidates are not asked
    assert len(entry.seconds) == LEAST_ROUNDS
    assert 1 <= entry.calls <= MOST_CALLS and entry.seconds == pytest.approx([0.02] * LEAST_ROUNDS)


def test_an_error_leaves_out_the_candidate_and_keeps_its_team(rounds):
    rounds.welcome(make_team("failing,steady"), 30)
    entries = rounds.measure(CELL, ["failing", "steady"], 0.0)
    assert [entry.candidate for entry in entries] == ["steady"]
    assert rounds.left_out == {"failing": "no such kernel"}


@pytest.mark.parametrize(("names", "reason"), [("ending,steady", "cut down"), ("absent", "division by zero")])
def test_ranks_that_end_take_their_team_along(rounds, names, reason):
    rounds.welcome(make_team(names), 30)
    rounds.welcome(make_team("steady"), 30)
    entries = rounds.measure(CELL, ["ending", "steady"], 0.0)
    assert [entry.candidate for entry in entries] == ["steady"]
    assert all(reason in why for why in rounds.left_out.values()) and rounds.left_out


def test_ranks_that_do_not_answer_are_ended(monkeypatch):
    team = make_team("stuck")
    assert team.welcome(30) == ["stuck"]
    with pytest.raises(TeamLost, match="rank 0 did not answer to 'open stuck' in time"):
        team.ask(0.2, "open", "stuck", cell=CELL.as_json())
    pids = [process.pid for process in team._processes]
    monkeypatch.setattr(devices.team, "END_S", 0.1)
    team.dismiss()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_error_of_one_rank_is_that_of_all():
    team = make_team("failing")
    team.welcome(30)
    with pytest.raises(CandidateFailed, match="no such kernel"):
        team.ask(30, "run", "failing", calls=1)
    team.dismiss()


def test_a_call_takes_from_the_first_start_to_the_last_end():
    assert took([{"start": 1.0, "stop": 3.0}, {"start": 2.0, "stop": 6.0}], 5) == 1.0


def test_an_answer_is_json_whatever_happens():
    class Broken:
        name = "broken"

        def close(self) -> None:
            raise KeyError

    assert json.dumps(answer(Broken(), {"do": "close"})) == '{"error": "KeyError"}'
