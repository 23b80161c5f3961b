"""Common statements about data-parallel training that do not hold: what does, and its number computed.

Corrected numbers come from the planner, from the real ring, or from playing it here. Each function below returns
figures by name; those that need torch or numpy import them when called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from itertools import product
from statistics import pvariance
from typing import TYPE_CHECKING, Any

from ringdp.tools.plan_viewer.play import execute, inputs
from ringdp.tools.planner import formulas, units
from ringdp.tools.planner.memory import formula_text, widths
from ringdp.tools.planner.presets import MODELS
from ringdp.tools.planner.question import Answer, Figure, Input, InputError, Kind, Table
from ringdp.tools.planner.scaling import break_even, step
from ringdp.tools.planner.traffic import comm, ring, volume

if TYPE_CHECKING:
    from torch import Tensor

_LIMIT = timedelta(seconds=20)


def built(parameters: Sequence[Tensor]) -> list[Tensor | str]:
    """By rank: its parameter after the constructor's two steps, or why it was refused. parameters: one of each rank."""
    import torch.distributed as dist

    store = dist.HashStore()

    def construct(rank: int) -> Tensor | str:
        own = parameters[rank].clone()
        group = dist.ProcessGroup(store, rank, len(parameters))
        try:
            gloo = dist.ProcessGroupGloo(store, rank, len(parameters), _LIMIT)
        except (AttributeError, RuntimeError) as error:
            raise ImportError(f"gloo does not start: {str(error).splitlines()[0]}") from None
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        group._register_backend(own.device, dist.ProcessGroup.BackendType.GLOO, gloo)
        try:
            dist._verify_params_across_processes(group, [own], None)
            dist._broadcast_coalesced(group, [own], own.nbytes, 0)
        except RuntimeError as error:
            return str(error)  # not the error, which would keep the group that the other rank waits for
        return own

    with ThreadPoolExecutor(len(parameters)) as pool:
        return list(pool.map(construct, range(len(parameters))))


Figures = dict[str, Any]
_PARAMS, _RANKS = 70e9, 1024
_RATE, _PEAK, _MFU = 400e9, 989, 0.5


def short_gradient() -> Figures:
    """Two elements on four ranks through the real ring."""
    ran = execute([[float(10 * rank), 1.0] for rank in range(4)], "rotated")
    return {"results": ran["results"], "rounds": max(ran["rounds"])}


def receiving_chunk() -> Figures:
    """Adding to the chunk before the one that was sent, and adding to the one that was sent."""
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
    """How far variance and deviation of the mean of 4 fair coins are below one coin's, over all outcomes."""
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

    taken = built([torch.zeros(3), torch.ones(3)])
    refused = built([torch.zeros(3), torch.ones(4)])
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


@dataclass(frozen=True)
class Erratum:
    """compute: the corrected number's figures; how: where they come from."""

    number: str
    claimed: str
    holds: str
    how: str
    compute: Callable[[], dict[str, Any]]


ERRATA = (
    Erratum(
        "E1",
        "a ring cuts 2 elements into 4 chunks",
        "chunks of 0 elements raise; a ring must take any length",
        "the real ring sums 2 elements on 4 ranks",
        short_gradient,
    ),
    Erratum(
        "E2",
        "the receiver adds to the chunk before the one sent",
        "it adds to the chunk that was sent",
        "both loops played on the worked example",
        receiving_chunk,
    ),
    Erratum(
        "E3",
        "the mean gradient is compared with a big batch of data drawn again",
        "keep the shards: only the same data gives the same gradient",
        "4 ranks of 8 samples, both ways",
        same_data,
    ),
    Erratum(
        "E4",
        "after the reduce-scatter rank 0 owns d, 1 a, 2 b, 3 c",
        "rank r owns chunk (r+1) mod N",
        "the real ring's events",
        ownership,
    ),
    Erratum(
        "E5",
        "143 TB through a server at 400 GB/s take an hour; both directions are counted",
        "143 TB are one direction; minutes",
        "comm --params 70B --ranks 1024 --bandwidth 400GB/s",
        server_seconds,
    ),
    Erratum(
        "E6",
        "averaging N gradients lowers the variance by sqrt(N)",
        "the variance by N, the standard deviation by sqrt(N)",
        "all outcomes of 4 coins",
        variance_of_a_mean,
    ),
    Erratum(
        "E7",
        "70B on 1024 ranks is bound by communication, 70M by compute",
        "parameters cancel: it depends on tokens per rank",
        "step of both sizes; break-even",
        break_even_of_sizes,
    ),
    Erratum(
        "E8",
        "a 7B model has hundreds of thousands of parameter tensors",
        "about 300",
        "counted by layer",
        parameter_tensors,
    ),
    Erratum(
        "E9",
        "DDP compares checksums of parameters when it is built",
        "it compares shapes and counts, then takes rank 0's values",
        "what torch does when DDP is built, by two threads over gloo",
        replicas_of_two,
    ),
    Erratum(
        "E10",
        "NDR InfiniBand carries 400 GB/s",
        "a port carries 400 Gb/s; 400 GB/s are a node with 8 ports",
        "units; a bandwidth without one is refused",
        ports,
    ),
    Erratum(
        "E11",
        "main prints a loss that its step function never returns",
        "the step returns it",
        "both scripts, run",
        returned_loss,
    ),
    Erratum(
        "E12",
        "the gradients computed last fill the first bucket",
        "those computed first do, of the last layers",
        "the reducer's layout of 6 layers",
        first_bucket,
    ),
    Erratum(
        "E13",
        "the mean of the ranks' means is the global mean",
        "only when shards have equal sizes; else weight them",
        "shards of 3 and 1",
        unequal_means,
    ),
    Erratum(
        "E14",
        "losses that differ between ranks show dropout seeded alike",
        "they differ anyway, with the data; look for identical masks",
        "masks of two ranks",
        dropout_masks,
    ),
    Erratum(
        "E15",
        "FP8 instead of BF16 saves 70 GB per rank on the wire",
        "70 GB is the buffer; a ring sends 2(N-1)/N of it",
        "comm --wire bf16 and fp8",
        fp8_saving,
    ),
    Erratum(
        "E16",
        "volumes of ZeRO are P and 2P bytes",
        "they are elements; bytes depend on the type on the wire",
        "volume --params 1",
        bytes_of_elements,
    ),
    Erratum(
        "E17",
        "2048 ranks have 512 tokens each of the same batch",
        "that is an eighth of a sequence: impossible with whole ones",
        "step --ranks 2048 --global-tokens 1048576 --seq 4096",
        part_of_a_sequence,
    ),
    Erratum(
        "E18",
        "ZeRO sends 2P and 3P per step",
        "per micro-batch; K of them make stage 3 gather 2K P and stage 2 reduce-scatter K P",
        "volume --micro-batches 4",
        micro_batch_volume,
    ),
)
_NUMBERS = [erratum.number for erratum in ERRATA]


def errata(number: str | None) -> Answer:
    """All of them, or one; each corrected number is computed now."""
    if number is not None and number not in _NUMBERS:
        raise InputError(f"invalid value '{number}' for --number (expected {_NUMBERS[0]} to {_NUMBERS[-1]})")
    chosen = [erratum for erratum in ERRATA if number in (None, erratum.number)]
    figures, rows, lacking = [], [], []
    for erratum in chosen:
        try:
            found = erratum.compute()
        except (ImportError, InputError) as error:  # no torch, no numpy, no extension
            found = None
            lacking.append(f"{erratum.number} is not computed here: {error}")
        figures.append(Figure(erratum.number, found, "", erratum.how))
        rows.append((erratum.number, erratum.claimed, erratum.holds))
    columns = (("erratum", ""), ("claimed", ""), ("holds", ""))
    return Answer(tuple(figures), (Table("errata", columns, tuple(rows)),), warnings=tuple(lacking))


KINDS = (
    Kind(
        "errata",
        "common statements that do not hold, corrected",
        (Input("number", str, "one of E1 to E18", ""),),
        errata,
        "errata --number E7",
    ),
)
