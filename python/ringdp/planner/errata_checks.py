"""The corrected number of every erratum, computed: by the planner, by the real ring, or by playing it here.

Each function returns figures by name. Those that need torch or numpy import them when called.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from statistics import pvariance
from typing import Any

from ringdp.planner import formulas, replicas, units
from ringdp.planner.memory import formula_text, widths
from ringdp.planner.presets import MODELS
from ringdp.planner.scaling import break_even
from ringdp.planner.step import step
from ringdp.planner.traffic import comm, volume
from ringdp.planner.walkthrough import ring
from ringdp.playback.executor import execute
from ringdp.playback.play import inputs

Figures = dict[str, Any]
_PARAMS, _RANKS = 70e9, 1024
_RATE, _PEAK, _MFU = 400e9, 989, 0.5


def short_gradient() -> Figures:
    """Two elements on four ranks through the real ring."""
    ran = execute([[float(10 * rank), 1.0] for rank in range(4)], "rotated")
    return {"results": ran["results"], "rounds": max(ran["rounds"])}


def receiving_chunk() -> Figures:
    """Adding one chunk beside, and adding to the chunk that was sent."""
    return {"added_beside": all_reduce_played(-1), "added_to_what_was_sent": all_reduce_played(0)}


def all_reduce_played(added_to: int) -> list[int]:
    """What rank 0 has after both phases of the textbook's loop; a receiver adds to chunk `sent` + added_to."""
    ranks = 4
    held = [[int(value) for value in row] for row in inputs(ranks, ranks)]
    for turn in range(ranks - 1):
        for rank in range(ranks):
            sent = (rank - turn) % ranks
            held[(rank + 1) % ranks][(sent + added_to) % ranks] += held[rank][sent]
    for turn in range(ranks - 1):
        for rank in range(ranks):
            sent = (rank - turn + 1) % ranks
            held[(rank + 1) % ranks][sent] = held[rank][sent]
    return held[0]


def same_data() -> Figures:
    """Gradient of y = 3x + 0.5 at zero, over the shards that were used and over data that is drawn again."""
    import numpy as np

    source = np.random.RandomState(0)

    def shards() -> list[tuple[Any, Any]]:
        drawn = []
        for rank in range(4):
            x = source.randn(8).astype(np.float32) + rank
            drawn.append((x, 3.0 * x + 0.5 + 0.1 * source.randn(8)))
        return drawn

    def gradient(x: Any, y: Any) -> list[float]:
        return [float(2 * (-y * x).mean()), float(2 * (-y).mean())]

    def of_all(parts: list[tuple[Any, Any]]) -> list[float]:
        return gradient(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    used, again = shards(), shards()
    mean = [sum(column) / 4 for column in zip(*(gradient(*shard) for shard in used), strict=True)]
    return {"mean_of_ranks": mean, "same_data": of_all(used), "drawn_again": of_all(again)}


def ownership() -> Figures:
    """[chunk, sum] of ranks 0 to 3 after the reduce-scatter of the real ring."""
    return {"owned": ring(4)["owned_after_reduce_scatter"]}


def server_seconds() -> Figures:
    """One direction through the server, and both."""
    answer = comm(_PARAMS, _RANKS, "bf16", _RATE, None)
    return {"one_way_seconds": answer["server_seconds_one_way"], "both_ways_seconds": answer["server_seconds"]}


def variance_of_a_mean() -> Figures:
    """Of 4 fair coins, over all outcomes: by how much the mean's variance and deviation are below one coin's."""
    means = [Fraction(sum(coins), 4) for coins in product((0, 1), repeat=4)]
    factor = Fraction(1, 4) / pvariance(means)
    return {"variance_falls_by": int(factor), "deviation_falls_by": float(factor) ** 0.5}


def break_even_of_sizes() -> Figures:
    """Communication over compute of a small and a large model at the same tokens per rank; the break-even."""
    found = break_even("bf16", _RATE, _PEAK, _MFU, None)
    return {
        "whole_step": found["break_even_tokens_per_rank_whole_step"],
        "backward_only": found["break_even_tokens_per_rank_backward_only"],
        **{f"comm_over_compute_{name}": _comm_over_compute(params) for name, params in (("70M", 70e6), ("70B", 70e9))},
    }


def _comm_over_compute(params: float) -> float:
    answer = step(params, _RANKS, 1, 1024, None, "bf16", _RATE, _PEAK, _MFU)
    return answer["comm_seconds"] / answer["compute_seconds"]


def parameter_tensors() -> Figures:
    """A layer of this family has 4 projections of attention, 3 of the MLP, 2 norms; then embedding, norm, head."""
    return {"tensors_of_llama_7b": 9 * MODELS["llama-7b"].layers + 3}


def replicas_of_two() -> Figures:
    """What becomes of rank 1's parameters when DDP is built, with other values and other shapes than rank 0's."""
    import torch

    taken = replicas.built([torch.zeros(3), torch.ones(3)])
    refused = replicas.built([torch.zeros(3), torch.ones(4)])
    return {
        "other_values": "kept" if torch.equal(taken[1], torch.ones(3)) else f"rank 0's: {taken[1].tolist()}",
        "other_shapes": "refused" if isinstance(refused[1], str) else "accepted",
    }


def ports() -> Figures:
    """Bytes per second of a port, and ports for 400 GB/s."""
    port = units.bandwidth("400Gb/s")
    return {"port_bytes_per_second": port, "ports": units.bandwidth("400GB/s") / port}


def returned_loss() -> Figures:
    """What main prints after a step that keeps its loss, and after one that returns it."""
    return {"kept": _printed("pass", ""), "returned": _printed("return loss", "loss = ")}


def _printed(end_of_step: str, assigned: str) -> Any:
    script = f"def step():\n    loss = 0.25\n    {end_of_step}\n{assigned}step()\nprinted = loss\n"
    names: dict[str, Any] = {}
    try:
        exec(script, names)
    except NameError as error:
        return f"NameError: {error}"
    return names["printed"]


def first_bucket() -> Figures:
    """Layers in the first bucket when gradients of layers 5, 4, ... 0 arrive in that order, two to a bucket."""
    from ringdp import _native

    parts = [(100, 0, False)] * 6
    return {"layers": _native.load().make_layout(parts, [5, 4, 3, 2, 1, 0], [200])[0]}


def unequal_means() -> Figures:
    """[1, 2, 3] and [10]: the mean of means, weighted means, and the mean of all."""
    parts = ([1, 2, 3], [10])
    means = [Fraction(sum(part), len(part)) for part in parts]
    everything = [value for part in parts for value in part]
    weighted = sum(mean * len(part) for mean, part in zip(means, parts, strict=True)) / len(everything)
    return {"mean_of_means": float(sum(means) / 2), "weighted": float(weighted), "mean": sum(everything) / 4}


def dropout_masks() -> Figures:
    """Share of 4096 elements in which two ranks' masks agree, with one seed and with a seed each."""
    import torch

    def mask(seed: int) -> torch.Tensor:
        return torch.rand(4096, generator=torch.Generator().manual_seed(seed)) < 0.5

    def agreement(one: int, other: int) -> float:
        return float((mask(one) == mask(other)).float().mean())

    return {"same_seed": agreement(3, 3), "seed_per_rank": agreement(3, 4)}


def fp8_saving() -> Figures:
    """Per rank, FP8 instead of BF16: of the buffer, and of what a ring sends."""
    bf16, fp8 = (comm(_PARAMS, _RANKS, wire, None, None) for wire in ("bf16", "fp8"))
    return {
        "buffer_bytes": bf16["gradient_bytes"] - fp8["gradient_bytes"],
        "wire_bytes": bf16["ring_bytes_per_rank"] - fp8["ring_bytes_per_rank"],
    }


def bytes_of_elements() -> Figures:
    """Stage 1 of one parameter: elements, bytes in BF16, and with gradients in float32."""
    elements = volume(1, 1, "bf16")["stage1_elements"]
    reduced, gathered = formulas.reduce_elements(1, 1, 1), formulas.gather_elements(1, 1, 1)
    return {"elements": elements, "bf16_bytes": 2 * elements, "fp32_gradient_bytes": 4 * reduced + 2 * gathered}


def part_of_a_sequence() -> Figures:
    """1,048,576 tokens on 2048 ranks, in sequences of 4096."""
    answer = step(_PARAMS, 2048, None, 4096, 1048576, "bf16", _RATE, _PEAK, _MFU)
    return {
        "tokens_per_rank": answer["tokens_per_rank"],
        "sequences": answer["tokens_per_rank"] / 4096,
        "possible": answer["whole_sequences"],
    }


def micro_batch_volume() -> Figures:
    """With K = 4, in P elements; and the memory of stage 2 when it keeps whole gradients instead."""
    return {
        "stage3_gathers": formulas.gather_elements(1, 3, 4),
        "stage2_reduce_scatters": formulas.reduce_elements(1, 2, 4),
        "stage2_with_whole_gradients": formula_text(1, widths("bf16")),
    }
