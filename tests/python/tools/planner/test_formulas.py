"""The formulas: their shape, which pages rely on, and their values against other ways to get them."""

from __future__ import annotations

import ast
import inspect
import random

import pytest
from ringdp.tools.planner import formulas as f

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
