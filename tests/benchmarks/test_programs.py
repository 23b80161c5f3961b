"""Programs of benchmarks/ from end to end, on tiny models: what is right passes, what is broken is seen."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace

import ablation
import algorithms
import collectives
import elastic
import fat_pipes
import leaves
import ledger
import pytest
import round_trips
import torch
import zero
import zero_memory
import zero_step
from programs import read, refusal, run
from runner.cell import OPS
from runner.hosts import why_impossible, why_not_far
from runner.program import Bar
from sharding.memory import Row, Sampler, pss
from sharding.model import MasteredAdamW
from sharding.stages import BF16, FP32, bytes_per_parameter, passes_per_step
from torch import nn

QUICK = ("--ranks", 2, "--rounds", 2, "--seconds", 0)


@pytest.mark.long
def test_every_collective_is_measured_and_right(tmp_path):
    out, picture = tmp_path / "r.json", tmp_path / "r.png"
    said = run(
        *("collectives.py", *QUICK, "--sizes", "4KiB", "--ops", "all", "--dtypes", "all"),
        *("--peers", "all", "--peers-folder", tmp_path, "--json", out, "--plot", picture),
    )
    result = read(out)
    assert picture.stat().st_size > 10_000
    assert result["machine"]["cores"] >= 1
    for op in OPS:
        for dtype in ("float32", "bfloat16"):
            rows = {row["candidate"]: row for row in result["rows"] if (row["op"], row["type"]) == (op, dtype)}
            assert {"ringdp", "gloo", "sweep", "barrier"} <= set(rows)
            assert ("shuffle" in rows) == (op == "all_reduce")
            assert all(row["wrong"] == 0 and row["rounds"] == 2 and row["time_us"] > 0 for row in rows.values())
            assert rows["ringdp"]["of_sweep"]["median"] > 0
            assert rows["ringdp"]["over_gloo"]["p10"] <= rows["ringdp"]["over_gloo"]["p90"]
    for peer in ("openmpi", "mpich", "intelmpi", "deepspeed"):
        assert f"{peer}, 2 ranks: not installed" in said


def test_one_wrong_element_makes_the_status_one(tmp_path):
    out = tmp_path / "r.json"
    run(
        *("collectives.py", *QUICK, "--sizes", "4KiB", "--backend", "broken:broken_backend", "--json", out),
        status=1,
    )
    wrong = {row["candidate"]: row["wrong"] for row in read(out)["rows"]}
    rounds, ranks = 2 + 2, 2  # with the warm-up
    assert wrong.pop("broken") == rounds * ranks
    assert set(wrong.values()) == {0}


def test_a_backend_that_cannot_start_is_reported_and_nothing_hangs():
    said = run("collectives.py", *QUICK, "--sizes", "64", "--backend", "absent:no_such_module", status=1)
    assert "no_such_module" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "4x"], "no size"),
        (["--ranks", "1"], "2 to 64 ranks"),
        (["--ops", "all_sum"], "'all_sum' is none of"),
        (["--ranks", "3", "--hosts", "2"], "does not divide evenly"),
        (["--json", "/no/such/folder/r.json"], "there is no folder"),
        (["--backend", "nccl"], "NAME:MODULE"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(arguments, words):
    assert words in refusal(collectives.parse, *arguments)


@pytest.mark.long
def test_over_hosts_the_limit_is_a_pair_of_sockets(tmp_path):
    if reason := why_impossible():
        pytest.skip(reason)
    out = tmp_path / "r.json"
    run("collectives.py", *QUICK, "--sizes", "64KiB", "--hosts", 2, "--rate", 1, "--json", out)
    rows = {row["candidate"]: row for row in read(out)["rows"]}
    assert set(rows) == {"ringdp", "gloo", "probe"}
    assert rows["ringdp"]["of_probe"]["median"] > 0
    assert sum(row["wrong"] for row in rows.values()) == 0


# benchmarks/ablation.py from end to end, on a tiny model; its arithmetic on samples with known medians.

MODES = ["naive", "overlap per parameter", "bucketed", "bucketed + overlap", "alone"]
TINY = ("--rounds", 2, "--layers", 3, "--width", 32, "--rows", 4, "--bucket-mb", 0.004)


@pytest.mark.parametrize("backend", ["ringdp", pytest.param("gloo", marks=pytest.mark.long)])
def test_four_modes_in_one_run(tmp_path, backend):
    out = tmp_path / "r.json"
    said = run("ablation.py", *TINY, "--backend", backend, "--json", out)
    rows = {row["mode"]: row for row in read(out)["rows"]}
    assert list(rows) == MODES and all(mode in said for mode in MODES)
    assert rows["naive"]["collectives"] == rows["overlap per parameter"]["collectives"] == 6
    assert rows["bucketed"]["collectives"] == rows["bucketed + overlap"]["collectives"] == 3
    for mode in ("naive", "bucketed"):
        assert rows[mode]["exposed"] == pytest.approx(rows[mode]["communication"])


def sample(step: float, communication: float = 0.0, exposed: float = 0.0, last: float = 1.0) -> dict[str, float]:
    return {"step": step, "communication": communication, "exposed": exposed, "last": last, "collectives": 2}


def test_rows_are_medians_of_the_rank_that_computed_longest():
    ranks = [
        {
            "samples": {
                "naive": [sample(4.0), sample(6.0), sample(8.0)],
                "bucketed + overlap": [sample(2.0, 4.0, 2.0)] * 3,
            }
        },
        {
            "samples": {
                "naive": [sample(4.0), sample(6.0), sample(8.0)],
                "bucketed + overlap": [sample(3.0, 4.0, 3.0)] * 3,
            }
        },
    ]
    naive, best = ablation.rows_of(ranks)
    assert (naive.step, naive.speedup, best.step, best.speedup, best.exposed, best.hidden) == (6, 1, 2, 3, 2, 0.5)
    assert ablation.verdict([naive, best])[0] is False and "MORE" in ablation.verdict([naive, best])[1]
    assert "50%" in ablation.text_of([naive, best])


def test_the_bar_is_the_last_bucket_plus_a_tenth():
    def judged(exposed: float) -> bool:
        samples = {"naive": [sample(1.0)], "bucketed + overlap": [sample(1.0, 3.0, exposed, 1.0)]}
        return ablation.verdict(ablation.rows_of([{"samples": samples}]))[0]

    assert judged(1.09) and not judged(1.11)


def test_bad_input_of_the_ablation_is_refused():
    assert "--rounds is 0" in refusal(ablation.parse, "--rounds", 0)
    assert "do not divide evenly" in refusal(ablation.parse, "--ranks", 3, "--hosts", 2)


# benchmarks/algorithms.py: from end to end on small tensors, and bad input.


def test_algorithms_sum_by_turns_and_are_compared_with_the_first(tmp_path):
    out = tmp_path / "r.json"
    small = ("--ranks", 2, "--sizes", "4KiB,64KiB", "--rounds", 2)
    said = run("algorithms.py", *small, "--algorithms", "all", "--json", out)
    rows = read(out)["rows"]
    names = [name for name in algorithms.NAMES if not algorithms.obstacle(name, ranks=2, hosts=1)]
    assert "arena" in names and "hierarchy" not in names
    assert [(row["size"], row["algorithm"]) for row in rows] == [(s, n) for s in (4096, 65536) for n in names]
    assert all(row["seconds"] > 0 for row in rows) and {row["ratio"] for row in rows[:: len(names)]} == {1}
    assert "4 KiB  halving" in said


def test_bad_input_of_the_algorithms_is_refused():
    assert "'bubble' is none of direct, direct/tree" in refusal(algorithms.parse, "--algorithms", "bubble")
    assert "a power of two of ranks, not 3" in refusal(algorithms.parse, "--ranks", 3)
    assert "hierarchy/tree needs --hosts" in refusal(algorithms.parse, "--algorithms", "direct,hierarchy/tree")
    apart = ("--ranks", 2, "--hosts", 2, "--algorithms", "arena")
    assert "arena needs all ranks on one host, not on 2" in refusal(algorithms.parse, *apart)
    assert "--rtt needs --hosts" in refusal(algorithms.parse, "--rtt", 50)
    assert "there is only ring" in refusal(algorithms.parse, "--algorithms", "ring", "--check", 1)


# benchmarks/round_trips.py: its arithmetic, bad input, and one run.


def report_of(*intervals: tuple[float, float]) -> dict[str, object]:
    return {"times": {"4 KiB": {"ringdp": list(intervals)}, "12 x 1 MiB": {"ringdp": [(0.0, 0.4)]}}, "compute": [0.1]}


def test_a_call_lasts_from_the_last_start_to_the_last_end():
    calls, backward = round_trips.rows_of([report_of((1.0, 1.5), (3.0, 3.2)), report_of((1.2, 1.4), (2.0, 3.3))], 100)
    assert calls.seconds == pytest.approx((0.3 + 0.3) / 2) and calls.trips == pytest.approx(3.0)
    assert (calls.compute, backward.compute) == (0.0, 0.1)
    small, large = round_trips.bars_of([calls, backward], rate=1.0)
    assert small.measured == pytest.approx(0.055 / 0.3) and not small.held
    assert large.measured == pytest.approx((0.1 + 0.15 + 12 * 2**20 * 8e-9) / 0.4)


def test_bad_input_of_the_round_trips_is_refused():
    assert "one on each" in refusal(round_trips.parse, "--ranks", 17)
    assert "above 0 ms" in refusal(round_trips.parse, "--rtt", "50,0")


@pytest.mark.long
def test_round_trips_are_measured_by_turns_with_gloo(tmp_path):
    if reason := why_not_far():
        pytest.skip(reason)
    out = tmp_path / "r.json"
    run("round_trips.py", "--ranks", 2, "--rtt", 20, "--rounds", 2, "--json", out)
    rows = {(row["call"], row["backend"]): row for row in read(out)["rows"]}
    assert len(rows) == 4 * 2 and all(row["trips"] > 0.4 for row in rows.values())
    assert rows["4 KiB", "ringdp"]["trips"] < rows["4 KiB", "gloo"]["trips"]


# benchmarks/fat_pipes.py: its arithmetic, bad input, and one run.


def test_the_limit_is_the_quicker_of_one_and_eight_connections():
    took = {"ringdp": [0.5, 0.6], "gloo": [1.0, 0.9], "1 sockets": [2.0, 2.0], "8 sockets": [0.4, 0.3]}
    times = {name: [(float(n), n + t) for n, t in enumerate(each)] for name, each in took.items()}
    rows = fat_pipes.rows_of([{"times": {str(16 << 20): times}}] * 2, fat_pipes.Distance(50, 0.001))
    (ours,) = (row for row in rows if row.candidate == "ringdp")
    assert ours.of_limit == pytest.approx((0.4 / 0.5 + 0.3 / 0.6) / 2)
    assert ours.x_gloo == pytest.approx((1.0 / 0.5 + 0.9 / 0.6) / 2)
    assert [bar.held for bar in fat_pipes.bars_of(rows)] == [False, True]


def test_bad_input_of_the_fat_pipes_is_refused():
    assert "--loss: from 0 to below 1" in refusal(fat_pipes.parse, "--loss", 1)
    assert "--rtt: 0 ms or more" in refusal(fat_pipes.parse, "--rtt", -1)
    assert "'fast' (allowed here: " in refusal(fat_pipes.parse, "--congestion", "fast")


@pytest.mark.long
def test_a_path_that_becomes_long_is_measured(tmp_path):
    if reason := why_not_far():
        pytest.skip(reason)
    out = tmp_path / "r.json"
    which = ("--rtt", 20, "--loss", 0, "--sizes", "1MiB", "--rounds", 2, "--buffers", "default", "--grows")
    run("fat_pipes.py", *which, "--congestion", "reno", "--json", out)
    rows = {row["candidate"]: row for row in read(out)["rows"]}
    assert set(rows) == {"ringdp", "gloo", "1 sockets", "8 sockets"}
    assert all(row["seconds"] > 0.010 for row in rows.values()), "half a round trip at least"


# benchmarks/elastic.py: a death and the shares from end to end, its arithmetic, bad input.


@pytest.mark.long  # tests/faults/test_survive.py has such deaths
def test_a_rank_dies_and_the_others_go_on(tmp_path):
    out = tmp_path / "r.json"
    run("elastic.py", "deaths", "--ranks", 2, "--micro-batches", 4, "--kills", 1, "--every", 0.3, "--json", out)
    (row,) = read(out)["rows"]
    assert (row["system"], row["kills"], row["lost"]) == ("ringdp", 1, 0) and row["step"] > 0


@pytest.mark.long
@pytest.mark.parametrize("stage", [0, 3])
def test_being_ready_is_compared_with_a_plain_loop(tmp_path, stage):
    out, small = tmp_path / "r.json", ["--micro-batches", 4, "--width", 16, "--rounds", 2]
    run("elastic.py", "price", "--ranks", 2, "--stage", stage, *small, "--json", out)
    (row,) = read(out)["rows"]
    assert row["ratio"] > 0 and row["survive"] > 0 and row["plain"] > 0


def test_a_death_is_timed_by_how_long_no_step_is_applied():
    steps = [elastic.Step(at, 2, pid) for at in (0.0, 1.0, 2.0, 3.0) for pid in (7, 8)]
    steps += [elastic.Step(4.5, 1, 8), elastic.Step(5.5, 1, 8)]
    steps += [elastic.Step(7.0, 2, 8), elastic.Step(7.0, 2, 9), elastic.Step(8.0, 2, 9)]
    row = elastic.deaths_of("ringdp", steps, 3, [(3.25, 7)])
    assert (row.kills, row.step, row.lost) == (1, 1.0, 3)
    assert row.standstill == row.standstill_longest == pytest.approx(4.5 - 3.0 - 1.0) and row.standstill_p99 is None
    assert row.pause == row.pause_longest == pytest.approx(7.0 - 5.5 - 1.0)


@pytest.mark.long
def test_a_host_vanishes_and_the_others_go_on(tmp_path):
    if reason := why_impossible():
        pytest.skip(reason)
    out = tmp_path / "r.json"
    run("elastic.py", "hosts", "--hosts", 2, "--ranks", 2, "--rounds", 2, "--host-timeout", 2, "--json", out)
    rows = read(out)["rows"]
    assert len(rows) == 2 and all(row["standstill"] > 1.0 for row in rows)


def test_bad_input_of_elastic_is_refused():
    assert "3 ranks do not divide evenly over 2" in refusal(elastic.parse, "hosts", "--ranks", 3, "--hosts", 2)
    assert "'mpi' is none of ringdp, restart" in refusal(elastic.parse, "deaths", "--systems", "mpi")
    assert "--micro-batches is 2, must be at least 4" in refusal(elastic.parse, "price", "--micro-batches", 2)


# benchmarks/ledger.py: its arithmetic, bad input, and one run.


def decided(gigabits: float, codes: float, mode: str, where: str = ledger.LINK) -> ledger.Row:
    times = {"plain": [2.0, 2.0], "codes": [2.0 * codes] * 2, "auto": [2.0, 2.1]}
    modes = {"codes": "coded", "plain": "whole"}
    report = {"decisions": [(0, "probe"), (60, modes[mode])], "hashes": ["a", "a"], "times": times}
    return ledger.row_of(where, gigabits, [report, report])


def test_the_break_even_is_between_the_rates_at_which_codes_pay_and_do_not():
    rows = [decided(4.0, 2.0, "plain"), decided(1.0, 0.5, "codes"), decided(0.1, 0.3, "codes")]
    assert ledger.break_even(rows) == pytest.approx(2.0)
    assert ledger.break_even(rows[:1]) == 0.0 and ledger.break_even(rows[1:]) == math.inf
    assert all(bar.held for bar in ledger.bars_of(rows))
    wrong = [decided(1.0, 0.5, "plain"), *rows[::2], decided(2.2, 1.1, "codes")]
    assert [bar.what for bar in ledger.bars_of(wrong) if not bar.held] == ["link, 1 Gb/s: codes, decided:"]


def test_what_must_hold_in_shared_memory():
    (row,) = rows = [decided(0.0, 1.5, "codes", ledger.SHARED)]
    assert (row.since, row.codes, row.low, row.high, row.auto) == (60, 1.5, 1.5, 1.5, pytest.approx(1.025))
    assert [bar.held for bar in ledger.bars_of(rows)] == [True, False, True, False]
    other = {
        "decisions": [(0, "probe")],
        "hashes": ["a", "b"],
        "times": {n: [1.0, 1.0] for n in ("plain", "codes", "auto")},
    }
    assert not ledger.row_of(ledger.SHARED, 0.0, [other]).replayed


def test_bad_input_of_the_ledger_is_refused():
    assert "above 0 Gb/s" in refusal(ledger.parse, "--rates", "1,0")
    assert "--blocks is 1, must be at least 2" in refusal(ledger.parse, "--blocks", 1)


@pytest.mark.long
def test_decisions_are_right_and_can_be_followed(tmp_path):
    if reason := why_impossible():
        pytest.skip(reason)
    out = tmp_path / "r.json"
    run("ledger.py", "--rates", "0.05", "--blocks", 2, "--blocks-shared", 2, "--width", 256, "--json", out)
    shared, link, throttled = read(out)["rows"]
    assert (shared["mode"], link["mode"], throttled["mode"]) == ("plain", "codes", "codes")
    assert shared["replayed"] and link["replayed"] and throttled["replayed"]
    assert throttled["since"] > 80


# benchmarks/leaves.py: its arithmetic.


def test_a_step_with_leaves_is_compared_with_its_round():
    first = {"rank order": [1.0, 2.0, 4.0], "micro_batches": [1.1, 1.8, 4.0]}
    second = {"rank order": [0.5, 1.0, 1.0], "micro_batches": [0.5, 2.2, 1.0]}
    rows = leaves.rows_of([{"seconds": first}, {"seconds": second}])
    assert [(row.mode, row.step) for row in rows] == [("rank order", 2.0), ("micro_batches", 2.2)]
    assert [row.ratio for row in rows] == pytest.approx([1, 1.1])
    assert "micro_batches" in leaves.text_of(rows) and "1.100" in leaves.text_of(rows)


# benchmarks/zero.py, zero_memory.py and zero_step.py from end to end on tiny models; their arithmetic and checks.


@pytest.mark.long
def test_every_stage_races_torchs_program_and_ends_with_the_same_bits(tmp_path):
    out = tmp_path / "r.json"
    tiny = ("--rounds", 2, "--layers", 2, "--width", 48, "--rows", 4)
    said = run("zero.py", *tiny, "--json", out)
    names = [row["training"] for row in read(out)["rows"]]
    assert names == [
        "ringdp stage 1",
        "ringdp stage 1, gather=forward",
        "DDP + ZeroRedundancyOptimizer",
        "ringdp stage 2",
        "ringdp stage 2, gather=forward",
        "FSDP2, parameters kept",
        "ringdp stage 3",
        "ringdp stage 3, prefetch off",
        "FSDP2",
    ]
    assert "parameters of ringdp's trainings: equal" in said
    assert "ringdp stage 2 / ringdp stage 2, gather=forward: " in said
    assert [bar["least"] for bar in read(out)["bars"]] == [1.5, 2.0, 1.0]
    waited = {row["training"]: row["exposed gathers"] for row in read(out)["rows"]}
    assert [name for name in names if waited[name]] == [name for name in names if name.startswith("ringdp")]


def test_a_round_takes_as_long_as_its_slowest_rank():
    ranks = [{"seconds": {"a": [1.0, 5.0]}}, {"seconds": {"a": [2.0, 3.0]}}]
    assert zero.by_round(ranks, "seconds", max) == {"a": [2.0, 5.0]}


def test_a_bar_is_held_from_its_value_on():
    assert Bar("x", 1.5, 1.5).held and not Bar("x", 1.49, 1.5).held
    assert "NOT HELD: x 1.49" in str(Bar("x", 1.49, 1.5))


def test_bad_input_of_zero_is_refused():
    assert "--stages has '4'" in refusal(zero.parse, "--stages", "1,4")
    assert "do not divide evenly" in refusal(zero.parse, "--ranks", 3, "--hosts", 2)


def test_a_run_reports_memory_bytes_sent_and_bits(tmp_path):
    out = tmp_path / "r.json"
    small = ("--ranks", 2, "--layers", 2, "--width", 256, "--stages", "2", "--micro-batches", 2)
    said = run("zero_memory.py", *small, "--slack", 1000, "--json", out)  # so small a model is less than the noise
    (row,) = read(out)["rows"]
    assert "right at every stage" in said and len(row["digest"]) == 64
    assert row["sent_formula"] == 3 * 2 * 256**2 * 4 / 2 <= row["sent"]
    assert row["account"]["parameters"] == 4 and row["account"]["gradients"] == 2 and row["account"]["state"] >= 4


def test_stages_are_compared_where_they_have_the_same_sums():
    rows = [replace(RIGHT, stage=stage, digest=digest) for stage, digest in ((0, "a"), (1, "a"), (2, "b"), (3, "b"))]
    assert [zero_memory.expected_digest(row, rows, 1) for row in rows] == ["a"] * 4
    assert [zero_memory.expected_digest(row, rows, 2) for row in rows] == ["a", "a", "b", "b"]


def test_bad_input_of_zero_memory_is_refused():
    assert "--stages is '0,4'" in refusal(zero_memory.parse, "--stages", "0,4")
    assert "--ranks is 1, must be at least 2" in refusal(zero_memory.parse, "--ranks", 1)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_formulas_are_those_of_the_paper(n):
    assert [bytes_per_parameter(s, n, FP32) for s in range(4)] == pytest.approx([16, 8 + 8 / n, 4 + 12 / n, 16 / n])
    assert [bytes_per_parameter(s, n, BF16) for s in range(4)] == pytest.approx([16, 4 + 12 / n, 2 + 14 / n, 16 / n])


@pytest.mark.parametrize("k", [1, 4])
def test_passes_are_gathers_and_reductions(k):
    gathers, reductions = (0, 1, 1, 2 * k), (2 * k, 2 * k, k, k)
    assert [passes_per_step(stage, k) for stage in range(4)] == list(map(sum, zip(gathers, reductions, strict=True)))


RIGHT = Row(2, 4, 7.0, 7.5, 0.1, {}, {"buckets": 0.5, "padding": 0.0}, 600.0, 600.0, "a")


def test_what_is_right_is_not_complained_about():
    assert RIGHT.wrong(1.03, "a") == []


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"measured": 16.0}, "memory 16.00"),  # a stage that silently keeps everything
        ({"measured": 4.0}, "memory 4.00"),  # or has not measured all of it
        ({"sent": 900.0}, "900 bytes sent"),  # or all-reduces
        ({"sent": 0.0}, "0 bytes sent"),
        ({"digest": "b"}, "parameters b"),
    ],
)
def test_each_of_the_three_is_found_wrong_alone(changed, word):
    (said,) = replace(RIGHT, **changed).wrong(1.03, "a")
    assert said.startswith(word)


def test_stage_0_may_have_torchs_temporaries_and_others_may_not():
    held = replace(RIGHT, formula=16.0, measured=16.7, account={"buckets": 0.0, "padding": 0.0})
    assert replace(held, stage=0).wrong(1.03, "a") == []
    assert replace(held, stage=1).wrong(1.03, "a")


def test_what_a_process_holds_is_seen_and_seen_to_go():
    size = 64 << 20
    with Sampler() as sampler:
        sampler.start([os.getpid()])
        begin, before = time.monotonic(), pss()
        block = bytearray(size)
        full = pss()
        while sampler.peak(os.getpid(), begin, time.monotonic()) < before + 0.9 * size:
            pass
        del block
    assert full - before == pytest.approx(size, rel=0.1)
    assert pss() - before < size / 2
    assert sampler.peak(os.getpid(), begin - 2, begin - 1) == 0 and pss(2**30) == 0


def test_stage_0_in_bfloat16_steps_float32_copies():
    torch.manual_seed(0)
    module = nn.Linear(3, 2).bfloat16()
    masters = [p.detach().float().requires_grad_() for p in module.parameters()]
    plain, ours = torch.optim.AdamW(masters, lr=0.1), MasteredAdamW(module, 0.1)
    for _ in range(2):
        for p, master in zip(module.parameters(), masters, strict=True):
            p.grad = torch.full_like(p, 0.3)
            master.grad = p.grad.float()
        ours.step()
        plain.step()
    assert all(torch.equal(p, m.bfloat16()) for p, m in zip(module.parameters(), masters, strict=True))
    ours.zero_grad()
    assert all(p.grad is None for p in module.parameters())


def test_four_optimizers_in_one_run_with_torchs_bits(tmp_path):
    out = tmp_path / "r.json"
    said = run("zero_step.py", "--parameters", 10_001, "--tensors", 3, "--rounds", 2, "--json", out)
    result = read(out)
    assert [row["optimizer"] for row in result["rows"]] == ["torch", "torch fused", "ringdp", "ringdp fused"]
    assert all(row["seconds"] > 0 for row in result["rows"])
    assert "equal to torch's bits" in said
    assert [bar["least"] for bar in result["bars"]] == [3.0, 0.4, 0.95]
    assert sum(f"held: {bar['what']}" in said.lower() for bar in result["bars"]) == 3


def test_a_ratio_is_the_median_of_those_of_the_rounds():
    seconds = {"ringdp": [1.0, 2.0, 4.0], "torch": [2.0, 2.0, 2.0]}
    assert zero_step.ratio(seconds, "ringdp", "torch") == 1.0


def test_bad_input_of_zero_step_is_refused():
    assert "--rounds is 0" in refusal(zero_step.parse, "--rounds", 0)
    assert "more than --parameters 3" in refusal(zero_step.parse, "--parameters", 3)
