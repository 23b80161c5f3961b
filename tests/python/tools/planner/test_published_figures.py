"""Figures of textbooks and papers, corrected where needed, from the command line's own output."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ringdp.cli import main

H100S = "--bandwidth 400GB/s --peak-tflops 989 --mfu 0.5 --wire bf16"
RELATIVE, TIGHT = 1e-6, 1e-4

# command line, relative tolerance, figures
NUMBERS: list[tuple[str, float, dict[str, Any]]] = [
    ("fit --params 40e9 --device-gb 40", 0, {"stage0_fits": False, "stage0_min_ranks": None}),
    (
        "lr --base-lr 0.0003 --ranks 8 --total-steps 20000",
        1e-9,
        {"scaled_lr": 0.0024, "warmup_steps": 1000},
    ),
    (
        "comm --params 70000000000.0 --ranks 1024 --wire bf16",
        RELATIVE,
        {
            "gradient_bytes": 140e9,
            "ring_bytes_per_rank": 279.7265625e9,
            "reduce_scatter_bytes_per_rank": 139.86328125e9,
            "all_gather_bytes_per_rank": 139.86328125e9,
            "ring_rounds": 2046,
            "ring_limit_bytes": 280e9,
            "server_bytes_one_way": 143.22e12,
            "server_bytes": 286.44e12,
            "tree_bytes_per_rank": 2.8e12,
        },
    ),
    (
        "ring --ranks 4",
        0,
        {
            "after_round_1": [[10, 11, 12, 56], [30, 21, 22, 23], [30, 52, 32, 33], [40, 41, 74, 43]],
            "owned_after_reduce_scatter": [[1, 104], [2, 108], [3, 112], [0, 100]],
            "result": [100, 104, 108, 112],
            "rounds": 6,
            "bytes_per_rank": 24,
        },
    ),
    ("comm --params 70B --ranks 4 --wire bf16", RELATIVE, {"ring_bytes_per_rank": 210e9}),
    (
        f"step --params 70B --ranks 256 --micro-batch 1 --seq 4096 {H100S}",
        TIGHT,
        {
            "flops_per_step": 4.4040192e17,
            "cluster_flops_per_second": 1.26592e17,
            "compute_seconds": 3.47891,
            "comm_seconds": 0.697266,
            "step_seconds_overlap": 3.47891,
            "step_seconds_no_overlap": 4.176174,
            "tokens_per_second": 301409.5,
            "wait_share_no_overlap": 0.166963,
            "wait_share_overlap": 0,
            "tokens_per_rank": 4096,
            "whole_sequences": True,
        },
    ),
    (
        f"step --params 70B --ranks 2048 --global-tokens 1048576 --seq 4096 {H100S}",
        2e-3,
        {
            "compute_seconds": 0.435,
            "comm_seconds": 0.6997,
            "wait_share_no_overlap": 0.617,
            "wait_share_overlap": 0.3785,
            "tokens_per_rank": 512,
            "whole_sequences": False,
        },
    ),
    (
        f"step --params 70B --ranks 1024 --global-tokens 1048576 --seq 1024 {H100S}",
        TIGHT,
        {"step_seconds_overlap": 0.869727, "step_seconds_no_overlap": 1.569043},
    ),
    (
        f"wall --global-tokens 1048576 {H100S}",
        2e-3,
        {
            "wall_ranks_whole_step": 1272,
            "wall_ranks_backward_only": 848,
            "break_even_tokens_per_rank_whole_step": 824.17,
            "break_even_tokens_per_rank_backward_only": 1236.25,
        },
    ),
    (
        f"wall --global-tokens 1048576 {H100S.replace('bf16', 'fp8')}",
        2e-3,
        {"wall_ranks_whole_step": 2 * 1272, "wall_ranks_backward_only": 2 * 848},
    ),
    (
        "memory --params 70B --ranks 256",
        RELATIVE,
        {
            "weights_bytes": 140e9,
            "gradient_bytes": 140e9,
            "master_bytes": 280e9,
            "moments_bytes": 560e9,
            "stage0_bytes": 1.12e12,
        },
    ),
    (
        "bucket --bucket-mb 25 --bandwidth 400GB/s --launch-us 10",
        RELATIVE,
        {"transfer_us": 62.5, "transfer_to_launch_ratio": 6.25},
    ),
    (
        "memory --params 70B --ranks 64",
        RELATIVE,
        {"stage1_saved_moments_bytes": 551.25e9, "stage1_saved_moments_and_master_bytes": 826.875e9},
    ),
    *(
        (
            f"batch --global-tokens 4000000 --seq 4096 --micro-batch 2 --ranks {dp}",
            1e-9,
            {
                "samples_raw": 976,
                "samples": 1024,
                "rounded_global_tokens": 4194304,
                "grad_acc": accumulation,
                "too_many_ranks": accumulation < 1,
            },
        )
        for dp, accumulation in ((128, 4), (512, 1), (1024, 0.5))
    ),
    ("memory --params 70B --ranks 1", RELATIVE, {"weights_bytes": 140e9}),
    (
        "memory --params 1e9 --ranks 8",
        RELATIVE,
        {
            "stage0_bytes": 16e9,
            "stage1_bytes": 5.5e9,
            "stage2_bytes": 3.75e9,
            "stage3_bytes": 2e9,
            "stage1_limit_bytes": 4e9,
            "stage2_limit_bytes": 2e9,
            "stage3_limit_bytes": 0,
        },
    ),
    ("memory --params 1e9 --ranks 8 --fp32-accumulation yes", RELATIVE, {"stage0_bytes": 20e9}),
    (
        "volume --params 1000000000.0 --micro-batches 1",
        RELATIVE,
        {f"stage{stage}_elements": volume for stage, volume in enumerate((2e9, 2e9, 2e9, 3e9))},
    ),
    (
        "memory --params 7.5B --ranks 64",
        RELATIVE,
        {"stage0_bytes": 120e9, "stage1_bytes": 31.40625e9, "stage2_bytes": 16.640625e9, "stage3_bytes": 1.875e9},
    ),
    (
        "fit --params 7B --device-gb 24",
        0,
        {
            "stage0_fits": False,
            "stage0_min_ranks": None,
            "stage1_min_ranks": None,
            "stage2_min_ranks": 10,
            "stage3_min_ranks": 5,
        },
    ),
    (
        "feed --ranks 8 --samples 4096 --micro-batch 64",
        TIGHT,
        {
            "same_seed_distinct_share": 0.125,
            "independent_distinct_share_per_step": 0.9469885,
            "independent_seen_share_per_epoch": 0.6563911,
        },
    ),
    ("regime --ranks 256 --params 7B", 0, {"regime": "zero-1-2"}),
]


@pytest.mark.parametrize(("command", "tolerance", "expected"), NUMBERS, ids=[row[0] for row in NUMBERS])
def test_figure(command, tolerance, expected, capsys):
    assert main.main(["plan", *command.split(), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    for name, value in expected.items():
        found = results[name]
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert found == pytest.approx(value, rel=tolerance, abs=1e-12), name
        else:
            assert found == value, name


def test_communication_over_compute_is_the_same_at_any_model_size(capsys):
    """Parameters cancel, so 70M and 70B are bound by the same thing."""
    bounds = []
    for params in ("70M", "70B"):
        command = f"plan step --params {params} --ranks 1024 --micro-batch 1 --seq 1024 {H100S} --json"
        assert main.main(command.split()) == 0
        results = json.loads(capsys.readouterr().out)["results"]
        bounds.append(results["comm_seconds"] / results["compute_seconds"])
    assert bounds[0] == pytest.approx(bounds[1])
