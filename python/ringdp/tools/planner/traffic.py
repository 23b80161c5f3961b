"""What a step sends: bytes per algorithm, elements per ZeRO stage, buckets, and a worked example of the ring."""

from __future__ import annotations

from typing import Any

from ringdp.tools.plan_viewer.play import execute, inputs
from ringdp.tools.planner import formulas
from ringdp.tools.planner.memory import STAGES
from ringdp.tools.planner.question import Answer, Figure, Input, InputError, Kind, Table
from ringdp.tools.planner.units import WIRE_BYTES, bandwidth, count, megabytes, microseconds, whole, wire

WIRE = Input("wire", wire, "type of gradients on the wire: " + ", ".join(WIRE_BYTES), "bf16")
LATENCY = Input("latency_us", microseconds, "of one round, as 10us", "")
RATE = "bytes or bits per second of a rank's link, as 400GB/s or 100Gb/s"


def comm(params: float, ranks: int, wire: str, bandwidth: float | None, latency_us: float | None) -> Answer:
    """Bytes of one all-reduce of all gradients, by algorithm; with a bandwidth also seconds."""
    size = formulas.gradient_bytes(params, WIRE_BYTES[wire])
    one_way = formulas.server_bytes_one_way(size, ranks)
    fp32 = formulas.gradient_bytes(params, WIRE_BYTES["fp32"])
    saved = formulas.ring_bytes_per_rank(fp32, ranks) - formulas.ring_bytes_per_rank(size, ranks)
    figures = [
        Figure("gradient_bytes", size, "bytes", f"{WIRE_BYTES[wire]:g}P = |g|"),
        Figure("ring_bytes_per_rank", formulas.ring_bytes_per_rank(size, ranks), "bytes", "2(N-1)/N |g|"),
        Figure(
            "reduce_scatter_bytes_per_rank",
            formulas.reduce_scatter_bytes_per_rank(size, ranks),
            "bytes",
            "(N-1)/N |g|",
        ),
        Figure("all_gather_bytes_per_rank", formulas.all_gather_bytes_per_rank(size, ranks), "bytes", "(N-1)/N |g|"),
        Figure("ring_rounds", formulas.ring_rounds(ranks), "rounds", "2(N-1)"),
        Figure("ring_limit_bytes", formulas.ring_limit_bytes(size), "bytes", "2|g|"),
        Figure("server_bytes_one_way", one_way, "bytes", "(N-1)|g|"),
        Figure("server_bytes", formulas.server_bytes(size, ranks), "bytes", "2(N-1)|g|: both directions"),
        Figure("tree_bytes_per_rank", formulas.tree_bytes_per_rank(size, ranks), "bytes", "2|g| log2 N"),
        Figure("ring_bytes_saved_against_fp32", saved, "bytes", "2(N-1)/N (4P - |g|)"),
    ]
    if bandwidth is None and latency_us is not None:
        raise InputError("comm needs --bandwidth together with --latency-us, as --bandwidth 400GB/s")
    if bandwidth is not None:
        figures += _seconds(size, ranks, bandwidth, (latency_us or 0) * 1e-6)
    return Answer(tuple(figures))


def _seconds(size: float, ranks: int, rate: float, latency: float) -> list[Figure]:
    one_way = formulas.server_bytes_one_way(size, ranks)
    return [
        Figure("ring_seconds", formulas.ring_seconds(size, ranks, rate, latency), "s", "2(N-1) alpha + bytes / B"),
        Figure("server_seconds_one_way", formulas.transfer_seconds(one_way, rate), "s", "server_bytes_one_way / B"),
        Figure("server_seconds", formulas.transfer_seconds(2 * one_way, rate), "s", "server_bytes / B"),
    ]


def volume(params: float, micro_batches: int, wire: str) -> Answer:
    """Elements that a rank sends in a step at every stage, times (N-1)/N; bytes follow from the wire's type."""
    width = WIRE_BYTES[wire]
    by_stage = {stage: formulas.volume_elements(params, stage, micro_batches) for stage in STAGES}
    formula = {0: "2P", 1: "2P", 2: "(K+1)P", 3: "3K P"}
    figures = [Figure(f"stage{s}_elements", by_stage[s], "elements", formula[s]) for s in STAGES]
    figures += [Figure(f"stage{s}_bytes_sent", by_stage[s] * width, "bytes", f"{width:g} per element") for s in STAGES]
    figures += [
        Figure("stage2_reduced_elements", formulas.reduce_elements(params, 2, micro_batches), "elements", "K P"),
        Figure("stage3_gathered_elements", formulas.gather_elements(params, 3, micro_batches), "elements", "2K P"),
        Figure("no_sync_share", 1 / micro_batches, "share", "1/K: stages 0 and 1 reduce once in K micro-batches"),
    ]
    advice = [
        "P counts elements, not bytes; each is sent (N-1)/N times per rank",
        "ringdp's stage 1 sends 3P: it leaves the whole mean in .grad, so that any code may read it",
    ]
    if micro_batches > 1:
        advice.append(
            f"stage 2 reduce-scatters all {micro_batches} micro-batches; keeping whole gradients (no_sync) sends 2P"
            " again and holds 4P + 12P/N bytes"
        )
    return Answer(tuple(figures), advice=tuple(advice))


def bucket(bucket_mb: float, bandwidth: float, launch_us: float, params: float | None, wire: str | None) -> Answer:
    """A bucket's transfer against its launch; with the model's size also the size that costs least."""
    transfer = formulas.transfer_seconds(bucket_mb * 1e6, bandwidth)
    ratio = formulas.transfer_to_launch_ratio(bucket_mb * 1e6, bandwidth, launch_us * 1e-6)
    figures = [
        Figure("transfer_us", transfer * 1e6, "us", "bucket / bandwidth"),
        Figure("transfer_to_launch_ratio", ratio, "", "transfer / launch"),
    ]
    if params is None and wire is not None:
        raise InputError("bucket needs --params together with --wire: a bucket's size is in bytes already")
    if params is None:
        return Answer(tuple(figures))
    size = formulas.gradient_bytes(params, WIRE_BYTES[wire or "bf16"])
    best = formulas.suggested_bucket_bytes(size, bandwidth, launch_us * 1e-6)
    figures.append(Figure("suggested_bucket_mb", best / 1e6, "MB", "sqrt(|g| launch bandwidth)"))
    sizes = _sizes(best, bucket_mb)
    rows = tuple((chosen / 1e6, *_bucket_costs(size, chosen, bandwidth, launch_us)) for chosen in sizes)
    columns = (("bucket", "MB"), ("collectives", ""), ("launches", "us"), ("last bucket", "us"), ("sum", "us"))
    return Answer(
        tuple(figures),
        (Table("what nothing hides, by bucket size", columns, rows),),
        (f"bucket_cap_mb={best / 2**20:.3g} (torch's unit is MiB)",),
    )


def _sizes(best: float, bucket_mb: float) -> list[float]:
    return sorted({best / 4, best, 4 * best, bucket_mb * 1e6})


def _bucket_costs(size: float, bucket: float, rate: float, launch_us: float) -> tuple[float, float, float, float]:
    collectives = max(1, round(size / bucket))
    last = min(size, bucket) / rate * 1e6
    return collectives, collectives * launch_us, last, collectives * launch_us + last


_MOST_RANKS = 64


def ring(ranks: int) -> Answer:
    """What every rank holds after round 1, owns after the reduce-scatter, and ends with; rounds and bytes counted."""
    if ranks > _MOST_RANKS:
        raise InputError(
            f"--ranks {ranks}: the example is played with at most {_MOST_RANKS}; ringdp plan comm takes more"
        )
    given = inputs(ranks, ranks)
    try:
        ran = execute(given, "rotated")
    except ImportError as error:
        raise InputError(f"ring runs the real ring: {error}") from None
    figures = (
        Figure("after_round_1", _after_first_round(given, ran["events"]), "", "inputs, one chunk summed on each rank"),
        Figure("owned_after_reduce_scatter", _owned(ran["events"]), "", "[chunk, sum] of rank r: chunk (r+1) mod N"),
        Figure("result", [int(value) for value in ran["results"][0]], "", "the same on all ranks"),
        Figure("rounds", max(ran["rounds"]), "rounds", "counted; 2(N-1)"),
        Figure("bytes_per_rank", max(ran["bytes_sent"]), "bytes", "counted; float32"),
    )
    rows = tuple((r, *row) for r, row in enumerate(figures[0].value))
    columns = (("rank", ""), *((f"chunk {c}", "") for c in range(ranks)))
    return Answer(figures, (Table("after round 1", columns, rows),), ("`ringdp ring` shows every round",))


def _after_first_round(given: list[list[float]], events: list[dict[str, Any]]) -> list[list[int]]:
    held = [[int(value) for value in row] for row in given]
    for event in events:
        if event["round"] == 0:
            begin = event["begin"]
            held[event["rank"]][begin : begin + len(event["values"])] = [int(value) for value in event["values"]]
    return held


def _owned(events: list[dict[str, Any]]) -> list[list[int]]:
    finals = {event["rank"]: event for event in events if event["kind"] == "final sum"}
    return [[finals[rank]["begin"], int(finals[rank]["values"][0])] for rank in sorted(finals)]


KINDS = (
    Kind(
        "comm",
        "bytes per rank of an all-reduce, by algorithm",
        (
            Input("params", count, "parameters, as 70B"),
            Input("ranks", whole, "data-parallel ranks"),
            WIRE,
            Input("bandwidth", bandwidth, RATE, ""),
            LATENCY,
        ),
        comm,
        "comm --params 70B --ranks 1024 --wire bf16",
    ),
    Kind(
        "volume",
        "elements per step at ZeRO stages 0 to 3",
        (
            Input("params", count, "parameters, as 1B"),
            Input("micro_batches", whole, "per step, K", "1"),
            WIRE,
        ),
        volume,
        "volume --params 1B --micro-batches 4",
    ),
    Kind(
        "bucket",
        "a bucket's transfer against its launch, and the best size",
        (
            Input("bucket_mb", megabytes, "size of a bucket, as 25MB", "25"),
            Input("bandwidth", bandwidth, RATE),
            Input("launch_us", microseconds, "to start a collective, as 10us", "10"),
            Input("params", count, "parameters, for the best size", ""),
            Input("wire", wire, "type on the wire, for the best size (bf16)", ""),
        ),
        bucket,
        "bucket --bucket-mb 25 --bandwidth 400GB/s --launch-us 10",
    ),
    Kind(
        "ring",
        "the worked example of a ring, as the real ring runs it",
        (Input("ranks", whole, "at most 64", "4"),),
        ring,
        "ring --ranks 4",
    ),
)
