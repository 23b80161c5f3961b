"""ringdp/planner/scaling.py: the wall, break-even, efficiency and regimes agree with each other."""

import pytest
from ringdp.planner.kind import InputError
from ringdp.planner.scaling import KINDS, REGIMES
from ringdp.planner.step import KINDS as STEP_KINDS

WALL, BREAK_EVEN, EFFICIENCY, REGIME = KINDS
CLUSTER = {"bandwidth": "400GB/s", "peak_tflops": "989"}


def test_the_step_is_bound_by_compute_before_the_wall_and_not_after():
    wall = WALL.ask({**CLUSTER, "global_tokens": "1M"})["wall_ranks_whole_step"]
    for ranks, bound in ((int(wall), "compute"), (int(wall) + 1, "communication")):
        given = {**CLUSTER, "params": "1B", "ranks": str(ranks), "seq": "1", "global_tokens": "1M"}
        assert f"bound by {bound}" in STEP_KINDS[0].ask(given).advice[0]


def test_half_the_wire_is_the_wall_of_the_narrower_type():
    half = WALL.ask({**CLUSTER, "global_tokens": "1M"})["wall_ranks_half_the_wire"]
    assert half == WALL.ask({**CLUSTER, "global_tokens": "1M", "wire": "fp8"})["wall_ranks_whole_step"]


BOUNDS = [(500, "communication"), (1000, "communication, unless"), (2000, "compute")]


@pytest.mark.parametrize(("tokens", "bound"), BOUNDS)
def test_break_even(tokens, bound):
    answer = BREAK_EVEN.ask({**CLUSTER, "tokens_per_rank": str(tokens)})
    assert answer["bound_by"].startswith(bound)
    assert answer["break_even_tokens_per_rank_whole_step"] == pytest.approx(824.17, rel=1e-4)


def test_efficiency_falls_at_a_fixed_batch_and_stays_at_a_growing_one():
    fixed = EFFICIENCY.ask({**CLUSTER, "params": "7B", "global_tokens": "1M", "ranks": "1,1024,4096"})
    shares = [figure.value for figure in fixed.figures]
    assert shares[0] == 1 and shares[1] == 1 and shares[2] == pytest.approx(1e6 / 4096 / 824.17, rel=2e-3)
    assert "each rank's part shrinks" in fixed.warnings[0]
    growing = EFFICIENCY.ask({**CLUSTER, "params": "7B", "tokens_per_rank": "1K", "ranks": "1,1024,4096"})
    assert [figure.value for figure in growing.figures] == [1, 1, 1] and not growing.warnings


def test_latency_is_paid_in_every_round():
    given = {**CLUSTER, "params": "7B", "global_tokens": "1M", "ranks": "64,1024"}
    plain, slow = (EFFICIENCY.ask({**given, **more}).tables[0].rows for more in ({}, {"latency_us": "50us"}))
    assert [b[2] - a[2] for a, b in zip(plain, slow, strict=True)] == pytest.approx([2 * 63 * 50e-6, 2 * 1023 * 50e-6])


def test_efficiency_needs_one_batch():
    with pytest.raises(InputError, match="either --tokens-per-rank"):
        EFFICIENCY.ask({**CLUSTER, "params": "7B"})


@pytest.mark.parametrize(("ranks", "name"), [(1, "plain"), (8, "plain"), (9, "larger-batch"), (1024, "zero-1-2")])
def test_regimes(ranks, name):
    assert REGIME.ask({"ranks": str(ranks)})["regime"] == name


def test_beyond_the_last_regime_and_beyond_any_device():
    answer = REGIME.ask({"ranks": str(REGIMES[-1][0] + 1), "params": "600B"})
    assert answer["regime"] == "beyond" and "ZeRO-3" in answer.warnings[0]
