"""The formulas, and their answers: memory, traffic, batches, steps."""

from __future__ import annotations

import ast
import inspect
import random

import pytest
from ringdp import _native
from ringdp.tools.planner import formulas as f
from ringdp.tools.planner.batch import batch, feed, lr, nearest_power_of_two
from ringdp.tools.planner.memory import KINDS as MEMORY_KINDS
from ringdp.tools.planner.memory import activation_bytes, fit, formula_text, memory, widths
from ringdp.tools.planner.question import InputError
from ringdp.tools.planner.traffic import KINDS as TRAFFIC_KINDS
from ringdp.tools.planner.traffic import ring

_ALLOWED = (
    ast.Return, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Compare, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
    ast.Eq, ast.NotEq, ast.BoolOp, ast.And, ast.Or, ast.IfExp, ast.Call, ast.Name, ast.Load, ast.Constant, ast.UnaryOp,
    ast.USub,
)  # fmt: skip
_FUNCTIONS = [node for node in ast.parse(inspect.getsource(f)).body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("function", _FUNCTIONS, ids=lambda function: function.name)
def test_every_function_is_one_documented_expression(function):
    docstring, *rest = function.body
    assert ast.get_docstring(function) and isinstance(docstring, ast.Expr)
    assert len(rest) == 1 and isinstance(rest[0], ast.Return)
    assert {type(node) for node in ast.walk(rest[0])} <= set(_ALLOWED)
    known = {"min", "max", "ceil", "log2", *(other.name for other in _FUNCTIONS)}
    names = {node.id for node in ast.walk(rest[0]) if isinstance(node, ast.Name)}
    assert names <= known | {argument.arg for argument in function.args.args}


def rounds_of_a_ring(ranks: int, chunk: int) -> tuple[int, int]:
    """(rounds, bytes that a rank sends), counted by playing it: a round sends one chunk."""
    sent = [chunk for phase in ("reduce-scatter", "all-gather") for _ in range(ranks - 1)]
    return len(sent), sum(sent)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 1000])
def test_a_ring_counted_round_by_round(ranks):
    rounds, sent = rounds_of_a_ring(ranks, 12)
    assert f.ring_rounds(ranks) == rounds
    assert f.ring_bytes_per_rank(12 * ranks, ranks) == sent <= f.ring_limit_bytes(12 * ranks)
    assert f.ring_seconds(12 * ranks, ranks, 4.0, 0.5) == rounds * 0.5 + sent / 4.0


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_memory_at_one_rank_is_all_and_at_many_the_limit(stage):
    assert f.stage_bytes(1e9, 1, stage, 2, 2, 12) == 16e9
    assert f.stage_bytes(1e9, 2**40, stage, 2, 2, 12) == pytest.approx(f.stage_limit_bytes(1e9, stage, 2, 2, 12), abs=1)


def test_the_fewest_ranks_fit_and_one_less_does_not():
    source = random.Random(5)
    for _ in range(300):
        whole, sharded, device = source.uniform(0, 10), source.uniform(0.1, 100), source.uniform(1, 30)
        fewest = f.min_ranks(whole, sharded, device)
        if fewest is None:
            assert whole + sharded / 1e12 > device
        else:
            assert whole + sharded / fewest <= device * (1 + 1e-12)
            assert fewest == 1 or whole + sharded / (fewest - 1) > device
    assert f.min_ranks(10, 0, 9) is None and f.min_ranks(9, 0, 9) == 1 and f.min_ranks(9, 1, 9) is None


@pytest.mark.parametrize("share", [1, f.backward_share()])
def test_at_the_wall_communication_equals_the_compute_that_hides_it(share):
    at = f.wall_ranks(1 << 20, 2, 400e9, 989, 0.5, share)
    compute = f.compute_seconds(70e9, 1 << 20, at, 989, 0.5)
    assert f.comm_seconds(70e9, at, 2, 400e9) == pytest.approx(share * compute)
    assert f.exposed_seconds(compute, f.comm_seconds(70e9, at, 2, 400e9), share) == pytest.approx(0, abs=1e-12)
    assert f.exposed_seconds(compute, 1.1 * share * compute, share) == pytest.approx(0.1 * share * compute)


def test_half_the_wire_bytes_double_the_wall():
    bf16, fp8 = (f.wall_ranks_whole_step(1 << 20, width, 400e9, 989, 0.5) for width in (2, 1))
    assert fp8 - 1 == pytest.approx(2 * (bf16 - 1))


def test_break_even_tokens_are_the_wall_of_many_ranks():
    tokens = f.break_even_tokens_per_rank(2, 400e9, 989, 0.5, 1)
    ranks = 10**7
    assert f.wall_ranks_whole_step(tokens * ranks, 2, 400e9, 989, 0.5) == pytest.approx(ranks, rel=1e-6)


def test_activations_of_16_bit_layers_are_the_published_formula():
    s, b, h, a = 2048, 3, 4096, 32
    assert f.layer_activation_bytes(b, s, h, a, 2) == s * b * h * (34 + 5 * a * s / h)
    assert f.layer_activation_bytes_without_scores(b, s, h, 2) == 34 * s * b * h
    assert f.layer_input_bytes(b, s, h, 2) == 2 * s * b * h


def test_volume_of_micro_batches():
    """E18: stage 3 gathers twice per micro-batch, stage 2 reduce-scatters every one."""
    assert [f.volume_elements(1, stage, 1) for stage in range(4)] == [2, 2, 2, 3]
    assert [f.volume_elements(1, stage, 4) for stage in range(4)] == [2, 2, 5, 12]
    assert f.gather_elements(1, 3, 4) == 8 and f.reduce_elements(1, 2, 4) == 4


@pytest.mark.parametrize(("tokens", "ranks", "whole"), [(4096, 4, True), (4096, 8, False), (6144, 4, False)])
def test_whole_sequences(tokens, ranks, whole):
    assert f.whole_sequences(tokens, ranks, 1024) is whole


def test_the_suggested_bucket_costs_least():
    def cost(bucket: float) -> float:
        return 1e9 / bucket * 1e-5 + bucket / 4e11

    best = f.suggested_bucket_bytes(1e9, 4e11, 1e-5)
    assert cost(best) < min(cost(1.1 * best), cost(best / 1.1))
    assert f.suggested_bucket_bytes(1e3, 4e11, 1e-5) == 1e3


def test_shares_of_samples_by_simulation():
    ranks, samples, batch = 4, 64, 8
    source = random.Random(11)
    order = list(range(samples))
    step, epoch, rounds = 0, 0, 4000
    for _ in range(rounds):
        shuffles = [source.sample(order, samples) for _ in range(ranks)]
        step += len({i for shuffle in shuffles for i in shuffle[:batch]})
        epoch += len({i for shuffle in shuffles for i in shuffle[: samples // ranks]})
    expected = f.independent_distinct_share_per_step(ranks, samples, batch)
    assert step / rounds / (ranks * batch) == pytest.approx(expected, rel=0.01)
    assert epoch / rounds / samples == pytest.approx(f.independent_seen_share_per_epoch(ranks), rel=0.01)


def test_the_batch_identity():
    assert 2 * f.grad_acc(1024, 2, 128) * 128 == 1024


def test_learning_rate_and_warm_up():
    assert f.scaled_lr(3e-4, 8) == pytest.approx(8 * 3e-4) and f.warmup_steps(20000, 0.05) == 1000


def test_a_bucket_in_launches():
    assert f.transfer_to_launch_ratio(25e6, 400e9, 10e-6) == pytest.approx(62.5 / 10)


def test_the_same_seed_shows_one_rank_s_samples():
    assert f.same_seed_distinct_share(8) == len({sample for _ in range(8) for sample in range(64)}) / (8 * 64)


# Stages, activations, and what fits.

MEMORY, FIT = MEMORY_KINDS
BASE = {"params": "1B", "ranks": "8"}
SHAPE = {"micro_batch": "2", "seq": "1024", "hidden": "512", "layers": "6", "heads": "8"}


@pytest.mark.parametrize(
    ("dtype", "stages"),
    [
        ("bf16", ["16P", "4P + 12P/N", "2P + 14P/N", "16P/N"]),
        ("fp32", ["16P", "8P + 8P/N", "4P + 12P/N", "16P/N"]),
    ],
)
def test_formulas_as_papers_write_them(dtype, stages):
    assert [formula_text(stage, widths(dtype)) for stage in range(4)] == stages


def test_accumulation_in_float32_costs_16_bit_models_4_bytes():
    plain, wide = (MEMORY.ask({**BASE, "fp32_accumulation": word}) for word in ("no", "yes"))
    assert wide["stage0_bytes"] - plain["stage0_bytes"] == 4e9
    assert wide["stage2_bytes"] - plain["stage2_bytes"] == 4e9 / 8
    for kind, given in ((MEMORY, BASE), (FIT, {"params": "1B", "device_gb": "80"})):
        with pytest.raises(InputError, match="in float32 already"):
            kind.ask({**given, "dtype": "fp32", "fp32_accumulation": "yes"})
    assert MEMORY.ask({**BASE, "dtype": "fp32"})["master_bytes"] == 0


def test_activations_grow_with_what_they_are_made_of():
    def size(**changes):
        shape = {"micro_batch": 2, "seq": 1024, "hidden": 512, "layers": 6, "heads": 8, **changes}
        return activation_bytes(**shape, dtype="bf16", recompute="none")

    assert size(micro_batch=4) == 2 * size() and size(layers=12) == 2 * size()
    assert size(seq=2048) > 2 * size()


def test_less_is_kept_when_more_is_computed_again():
    answers = [MEMORY.ask({**BASE, **SHAPE, "recompute": word}) for word in ("none", "scores", "full")]
    sizes = [answer["activation_bytes"] for answer in answers]
    assert sizes == sorted(sizes, reverse=True)


def test_totals_add_what_is_given():
    answer = MEMORY.ask({**BASE, **SHAPE, "largest_unit": "10M"})
    activations = answer["activation_bytes"]
    assert answer["stage0_total_bytes"] == answer["stage0_bytes"] + activations
    assert answer["stage3_transient_bytes"] == 2 * 10e6 * 2 + 10e6 * 2
    assert answer["stage3_total_bytes"] == answer["stage3_bytes"] + activations + answer["stage3_transient_bytes"]


@pytest.mark.parametrize("given", [{"seq": "1024"}, {"recompute": "full"}, {**SHAPE, "heads": ""}])
def test_activations_need_all_sizes(given):
    with pytest.raises(InputError, match=r"memory needs --.*heads"):
        MEMORY.ask({**BASE, **given})


def test_the_ranks_that_fit_do_and_one_less_does_not():
    answer = fit(7e9, 24, "bf16", "no", None, None)
    for stage in (2, 3):
        fewest = answer[f"stage{stage}_min_ranks"]
        held = [memory(7e9, n, "bf16", "no", None, "none", **dict.fromkeys(SHAPE)) for n in (fewest, fewest - 1)]
        assert held[0][f"stage{stage}_bytes"] <= 24e9 < held[1][f"stage{stage}_bytes"]
    assert "stage 2 from 10 ranks, stage 3 from 5 ranks" in answer.advice[0]
    assert "never capacity" in answer.warnings[0]


def test_a_reserve_takes_room():
    assert fit(7e9, 24, "bf16", "no", 4, None)["stage3_min_ranks"] == 6
    with pytest.raises(InputError, match="leaves nothing"):
        fit(7e9, 24, "bf16", "no", 24, None)


def test_stage_3_has_room_for_the_units_that_it_gathers():
    answer = FIT.ask({"params": "7B", "device_gb": "24", "largest_unit": "202M"})
    fewest = answer["stage3_min_ranks"]
    held = [MEMORY.ask({"params": "7B", "ranks": str(n), "largest_unit": "202M"}) for n in (fewest, fewest - 1)]
    assert held[0]["stage3_total_bytes"] <= 24e9 < held[1]["stage3_total_bytes"]
    assert answer["stage2_min_ranks"] == FIT.ask({"params": "7B", "device_gb": "24"})["stage2_min_ranks"]


def test_the_stages_are_shown_with_what_they_send():
    (table,) = MEMORY.ask(BASE).tables
    assert [row[4] for row in table.rows] == [2e9, 2e9, 2e9, 3e9]


def test_what_fits_whole_needs_no_zero():
    answer = fit(1e9, 80, "bf16", "no", None, None)
    assert answer["stage0_fits"] is True and answer["stage0_min_ranks"] == 1
    assert answer.advice == ("fits without ZeRO",) and not answer.warnings


def test_a_device_by_name():
    assert FIT.ask({"params": "7B", "device_gb": "h100"})["room_bytes"] == 80e9


# Bytes by algorithm, elements by stage, buckets; the worked example against a ring played here.

COMM, VOLUME, BUCKET, _ = TRAFFIC_KINDS


def test_seconds_through_a_server():
    """E5: 143 TB at 400 GB/s are minutes, and both directions twice that."""
    answer = COMM.ask({"params": "70B", "ranks": "1024", "bandwidth": "400GB/s"})
    assert answer["server_seconds_one_way"] == pytest.approx(358, rel=1e-3)
    assert answer["server_seconds"] == pytest.approx(716, rel=1e-3)
    assert answer["ring_seconds"] == pytest.approx(0.6993, rel=1e-3)


def test_latency_adds_a_round_at_a_time():
    common = {"params": "1M", "ranks": "5", "bandwidth": "1GB/s"}
    plain, late = (COMM.ask({**common, **extra}) for extra in ({}, {"latency_us": "10"}))
    assert late["ring_seconds"] - plain["ring_seconds"] == pytest.approx(8 * 10e-6)
    with pytest.raises(InputError, match="needs --bandwidth"):
        COMM.ask({"params": "1M", "ranks": "5", "latency_us": "10"})


def test_narrower_wires_save_twice_the_buffer():
    """B29, E15: what is saved on the wire is 2(N-1)/N of what the buffer shrinks by."""
    bf16, fp8 = (COMM.ask({"params": "70B", "ranks": "1024", "wire": wire}) for wire in ("bf16", "fp8"))
    assert bf16["gradient_bytes"] - fp8["gradient_bytes"] == 70e9
    assert bf16["ring_bytes_per_rank"] - fp8["ring_bytes_per_rank"] == pytest.approx(140e9, rel=2e-3)
    assert bf16["ring_bytes_saved_against_fp32"] == pytest.approx(bf16["ring_bytes_per_rank"])


def test_volume_of_micro_batches_and_bytes():
    """E16, E18."""
    answer = VOLUME.ask({"params": "1B", "micro_batches": "4", "wire": "fp32"})
    assert [answer[f"stage{s}_elements"] for s in range(4)] == [2e9, 2e9, 5e9, 12e9]
    assert answer["stage3_bytes_sent"] == 4 * answer["stage3_elements"]
    assert (answer["stage3_gathered_elements"], answer["stage2_reduced_elements"]) == (8e9, 4e9)
    assert answer["no_sync_share"] == 0.25
    assert any("reduce-scatters all 4" in sentence for sentence in answer.advice)


def test_a_bucket_s_best_size_is_the_cheapest_row():
    answer = BUCKET.ask({"bandwidth": "100Gb/s", "params": "1B", "launch_us": "50"})
    (table,) = answer.tables
    cheapest = min(table.rows, key=lambda row: row[-1])
    assert cheapest[0] == pytest.approx(answer["suggested_bucket_mb"])
    assert any(row[0] == 25 for row in table.rows)


def test_a_wire_without_a_model_is_refused():
    with pytest.raises(InputError, match="needs --params together with --wire"):
        BUCKET.ask({"bandwidth": "100Gb/s", "wire": "fp8"})


def played(ranks):
    """(after round 1, chunk and sum owned by each rank) of the textbook's schedule: rank r sends chunk (r-s) mod N."""
    held = [[(r + 1) * 10 + c for c in range(ranks)] for r in range(ranks)]
    first = None
    for step in range(ranks - 1):
        moving = [(r, (r - step) % ranks, held[r][(r - step) % ranks]) for r in range(ranks)]
        for sender, chunk, value in moving:
            held[(sender + 1) % ranks][chunk] += value
        first = first or [list(row) for row in held]
    return first, [[(r + 1) % ranks, held[r][(r + 1) % ranks]] for r in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_the_real_ring_does_what_the_textbook_says(ranks):
    answer = ring(ranks)
    assert (answer["after_round_1"], answer["owned_after_reduce_scatter"]) == played(ranks)
    assert answer["result"] == [sum((r + 1) * 10 + c for r in range(ranks)) for c in range(ranks)]
    assert answer["rounds"] == 2 * (ranks - 1) and answer["bytes_per_rank"] == 2 * (ranks - 1) * 4


def test_too_many_ranks_are_sent_elsewhere():
    with pytest.raises(InputError, match="at most 64; ringdp plan comm takes more"):
        ring(65)


def test_an_extension_that_cannot_be_used_is_one_line(monkeypatch):
    def refuse():
        raise ImportError("not built: do this")

    monkeypatch.setattr(_native, "load", refuse)
    with pytest.raises(InputError, match="not built: do this"):
        ring(4)


# Batch recipe and data feed: rounding, the identity, limits of the shares, and the advice that goes with a row.


def test_the_nearest_power_of_two_by_search():
    for samples in range(1, 3000):
        distances = {2**k: abs(samples - 2**k) for k in range(13)}
        assert distances[nearest_power_of_two(samples)] == min(distances.values())


@pytest.mark.parametrize("dp", [1, 3, 128, 512])
def test_the_identity_holds(dp):
    answer = batch(4e6, 4096, 2, dp)
    assert answer["grad_acc"] * 2 * dp == pytest.approx(answer["samples"])
    assert answer["rounded_global_tokens"] == answer["samples"] * 4096


def test_too_many_ranks_get_three_ways_out():
    (advice,) = batch(4e6, 4096, 2, 1024).advice
    assert "lower --micro-batch to 1;" in advice
    assert "raise the global batch to 2048 samples (8,388,608 tokens)" in advice
    assert "use 512 ranks and leave 512 idle" in advice
    (advice,) = batch(4e6, 4096, 2, 4096).advice
    assert "lower --micro-batch" not in advice  # not even one sample per rank
    (advice,) = batch(4e6, 4096, 2048, 4).advice
    assert "idle" not in advice and advice.endswith("tokens)")  # not even one rank with such a micro-batch


def test_an_accumulation_that_is_not_whole_gets_its_neighbours():
    (advice,) = batch(4e6, 4096, 2, 96).advice
    assert "5 micro-batches (960 samples) or 6 (1152)" in advice


@pytest.mark.parametrize(("micro_batch", "accumulation"), [(12, 8), (1, 96), (96, 1)])
def test_a_batch_that_comes_out_even_is_taken_as_it_is(micro_batch, accumulation):
    """384 samples, which lie half-way between two powers of two."""
    answer = batch(98304, 256, micro_batch, 4)
    assert (answer["samples"], answer["grad_acc"]) == (384, accumulation)
    assert answer.advice == (f"{micro_batch} x {accumulation} x 4 = 384 samples per step",)


def test_the_neighbours_are_those_of_what_was_asked_for():
    (advice,) = batch(390 * 256, 256, 12, 4).advice  # and not of 512
    assert "take 8 micro-batches (384 samples) or 9 (432)" in advice


def test_the_rows_are_those_of_the_recipe_and_one_s_own():
    (table,) = batch(4e6, 4096, 2, 64).tables
    assert [row[:2] for row in table.rows] == [(64, 8), (128, 4), (512, 1), (1024, 0.5)]
    assert [row[2] for row in table.rows] == ["works", "works", "works", "too many ranks"]


def test_less_than_a_sequence_is_refused():
    with pytest.raises(InputError, match="less than one sequence"):
        batch(1000, 4096, 1, 1)


def test_learning_rate():
    answer = lr(1e-3, None, None, 4, 300, 0.1)
    assert (answer["scaled_lr"], answer["warmup_steps"]) == (4e-3, 30)
    assert lr(1e-3, 32, 16, 4, 300, 0.1)["scaled_lr"] == 2e-3  # 64 samples instead of 32
    with pytest.raises(InputError, match="belong together"):
        lr(1e-3, 32, None, 4, 300, 0.1)


def test_one_rank_sees_everything():
    answer = feed(1, 100, 10)
    assert [figure.value for figure in answer.figures] == pytest.approx([1, 1, 1])


def test_whole_batches_are_one_another_s_copies():
    assert feed(8, 64, 64)["independent_distinct_share_per_step"] == feed(8, 64, 64)["same_seed_distinct_share"]


def test_more_than_all_samples_is_refused():
    with pytest.raises(InputError, match="--micro-batch 65 is more than all --samples 64"):
        feed(8, 64, 65)
