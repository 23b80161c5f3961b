"""Time of a step, and how far data parallelism carries: the wall, break-even tokens, efficiency by ranks, regimes."""

from __future__ import annotations

from ringdp.text.units import counted
from ringdp.tools.planner import formulas
from ringdp.tools.planner.presets import peak_tflops
from ringdp.tools.planner.question import Answer, Figure, Input, InputError, Kind, Table
from ringdp.tools.planner.traffic import LATENCY, RATE, WIRE
from ringdp.tools.planner.units import WIRE_BYTES, bandwidth, count, share, whole, wholes

BANDWIDTH = Input("bandwidth", bandwidth, RATE)
PEAK = Input("peak_tflops", peak_tflops, "10**12 operations per second and device, or a name as h100")
MFU = Input("mfu", share, "share of the peak that the model reaches", "0.5")


def global_tokens_of(ranks: int, micro_batch: int | None, seq: int, global_tokens: float | None) -> float:
    """Tokens of a step: as given, or one micro-batch on every rank."""
    if (micro_batch is None) == (global_tokens is None):
        raise InputError("step needs either --micro-batch (samples per rank) or --global-tokens (of all ranks)")
    return global_tokens if micro_batch is None else ranks * micro_batch * seq


def step(
    params: float, ranks: int, micro_batch: int | None, seq: int, global_tokens: float | None, wire: str,
    bandwidth: float, peak_tflops: float, mfu: float,
) -> Answer:  # fmt: skip
    """One optimizer step with one all-reduce of all gradients."""
    tokens = global_tokens_of(ranks, micro_batch, seq, global_tokens)
    per_rank = formulas.tokens_per_rank(tokens, ranks)
    compute = formulas.compute_seconds(params, tokens, ranks, peak_tflops, mfu)
    comm = formulas.comm_seconds(params, ranks, WIRE_BYTES[wire], bandwidth)
    overlap = formulas.step_seconds_overlap(compute, comm)
    backward = formulas.step_seconds_backward_overlap(compute, comm)
    apart = formulas.step_seconds_no_overlap(compute, comm)
    cluster = formulas.cluster_flops_per_second(ranks, peak_tflops, mfu)
    whole_sequences = formulas.whole_sequences(tokens, ranks, seq)
    figures = (
        Figure("flops_per_step", formulas.flops_per_step(params, tokens), "FLOP", "6 P tokens"),
        Figure("cluster_flops_per_second", cluster, "FLOP/s", "N peak mfu"),
        Figure("compute_seconds", compute, "s", "flops / cluster"),
        Figure("comm_seconds", comm, "s", "2(N-1)/N |g| / bandwidth"),
        Figure("step_seconds_overlap", overlap, "s", "max(compute, comm)"),
        Figure("step_seconds_backward_overlap", backward, "s", "compute + max(0, comm - 2/3 compute)"),
        Figure("step_seconds_no_overlap", apart, "s", "compute + comm"),
        Figure("tokens_per_second", formulas.tokens_per_second(tokens, overlap), "tokens/s", "tokens / step"),
        Figure("wait_share_overlap", formulas.wait_share(compute, overlap), "share", "(step - compute) / step"),
        Figure("wait_share_backward_overlap", formulas.wait_share(compute, backward), "share", "only backward hides"),
        Figure("wait_share_no_overlap", formulas.wait_share(compute, apart), "share", "nothing hides"),
        Figure("global_tokens_per_step", tokens, "tokens", "global_tokens, or ranks * micro_batch * seq"),
        Figure("tokens_per_rank", per_rank, "tokens", "tokens / N"),
        Figure("whole_sequences", whole_sequences, "", "tokens_per_rank is a multiple of seq"),
    )
    least = formulas.break_even_tokens_per_rank(WIRE_BYTES[wire], bandwidth, peak_tflops, mfu, 1)
    return Answer(
        figures, advice=_step_advice(compute, comm), warnings=_step_warnings(tokens, ranks, seq, per_rank, least)
    )


def _step_advice(compute: float, comm: float) -> tuple[str, ...]:
    longer, shorter = ("compute", "communication") if compute >= comm else ("communication", "compute")
    return (f"bound by {longer}: {shorter} takes {min(compute, comm) / max(compute, comm):.0%} of its time",)


def _step_warnings(tokens: float, ranks: int, seq: int, per_rank: float, least: float) -> tuple[str, ...]:
    said = []
    if not formulas.whole_sequences(tokens, ranks, seq):
        most = int(tokens // seq)
        fewer = f"use at most {counted(most, 'rank')}, or " if most else ""
        way_out = f"{fewer}raise the global batch to {ranks * seq:,} tokens"
        if per_rank > seq:
            way_out = "make the global batch a multiple of ranks * seq"
        said.append(
            f"impossible with whole sequences: {per_rank:g} tokens per rank are {per_rank / seq:g} sequences of {seq};"
            f" {way_out}"
        )
    if per_rank < least:
        said.append(
            f"{per_rank:g} tokens per rank are below the break-even of {least:.0f}: the global batch must grow with the"
            " ranks, or each computes too little to hide the same communication"
        )
    return tuple(said)


def wall(global_tokens: float, wire: str, bandwidth: float, peak_tflops: float, mfu: float) -> Answer:
    """At a fixed global batch compute shrinks with the ranks and communication does not: where they meet."""
    width = WIRE_BYTES[wire]
    at = (width, bandwidth, peak_tflops, mfu)
    whole_step = formulas.wall_ranks_whole_step(global_tokens, *at)
    backward = formulas.wall_ranks_backward_only(global_tokens, *at)
    half = formulas.wall_ranks_whole_step(global_tokens, width / 2, *at[1:])
    figures = (
        Figure("wall_ranks_whole_step", whole_step, "ranks", "1 + 3 T B / (w F), all of compute hides"),
        Figure("wall_ranks_backward_only", backward, "ranks", "1 + 2 T B / (w F), backward hides"),
        *_break_even(*at),
        Figure("wall_ranks_half_the_wire", half, "ranks", "w / 2: as FP8 for BF16"),
    )
    return Answer(figures, advice=(f"communication shows from about {backward:,.0f} ranks on, at any model size",))


def _break_even(width: float, bandwidth: float, peak_tflops: float, mfu: float) -> tuple[Figure, Figure]:
    at = (width, bandwidth, peak_tflops, mfu)
    whole_step = formulas.break_even_tokens_per_rank(*at, 1)
    backward = formulas.break_even_tokens_per_rank(*at, formulas.backward_share())
    return (
        Figure("break_even_tokens_per_rank_whole_step", whole_step, "tokens", "w F / (3 B)"),
        Figure("break_even_tokens_per_rank_backward_only", backward, "tokens", "w F / (2 B)"),
    )


def break_even(wire: str, bandwidth: float, peak_tflops: float, mfu: float, tokens_per_rank: float | None) -> Answer:
    """Tokens per rank above which compute hides communication. The number of parameters cancels."""
    figures = _break_even(WIRE_BYTES[wire], bandwidth, peak_tflops, mfu)
    if tokens_per_rank is None:
        return Answer(figures, advice=("the same for every model size: compute and gradients both grow with it",))
    bound = "communication" if tokens_per_rank < figures[0].value else "compute"
    if figures[0].value <= tokens_per_rank < figures[1].value:
        bound = "communication, unless forward hides it too"
    return Answer((*figures, Figure("bound_by", bound, "", "tokens_per_rank against both")))


def efficiency(
    params: float, ranks: tuple[int, ...], tokens_per_rank: float | None, global_tokens: float | None, wire: str,
    bandwidth: float, latency_us: float | None, peak_tflops: float, mfu: float,
) -> Answer:  # fmt: skip
    """Throughput per rank over that of a rank alone, by number of ranks."""
    if (tokens_per_rank is None) == (global_tokens is None):
        raise InputError("efficiency needs either --tokens-per-rank (batch grows) or --global-tokens (batch is fixed)")
    rows, size = [], formulas.gradient_bytes(params, WIRE_BYTES[wire])
    for n in ranks:
        tokens = tokens_per_rank * n if global_tokens is None else global_tokens
        compute = formulas.compute_seconds(params, tokens, n, peak_tflops, mfu)
        comm = formulas.ring_seconds(size, n, bandwidth, (latency_us or 0) * 1e-6)
        whole_step = formulas.step_seconds_overlap(compute, comm)
        backward = formulas.step_seconds_backward_overlap(compute, comm)
        shares = (formulas.efficiency(compute, whole_step), formulas.efficiency(compute, backward))
        rows.append((n, compute, comm, *shares, tokens / whole_step))
    figures = tuple(Figure(f"efficiency_{row[0]}", row[3], "share", "compute / max(compute, comm)") for row in rows)
    columns = (
        ("ranks", "ranks"), ("compute", "s"), ("comm", "s"), ("efficiency", "share"),
        ("only backward hides", "share"), ("throughput", "tokens/s"),
    )  # fmt: skip
    warning = "at a fixed global batch each rank's part shrinks, and with it what hides communication"
    warnings = (warning,) if global_tokens is not None and len(ranks) > 1 else ()
    return Answer(figures, (Table("by number of ranks", columns, tuple(rows)),), (), warnings)


# (ranks up to, name, the highest ZeRO stage that is usual, what to do)
REGIMES = (
    (8, "plain", 0, "plain data parallelism: throughput grows with the ranks"),
    (64, "larger-batch", 0, "raise global batch and learning rate with the ranks; communication is below compute"),
    (1024, "zero-1-2", 2, "data parallelism with ZeRO-1 or ZeRO-2: right for models of 7B to 70B"),
    (8192, "zero-3-and-more", 3, "data parallelism alone breaks: ZeRO-3 and other axes (tensor, pipeline, expert)"),
)


_BEYOND = (0, "beyond", 3, "beyond what is known to work: divide the model itself first")


def regime(ranks: int, params: float | None, stage: int | None = 0) -> Answer:
    """What data parallelism is at this size. stage: the smallest that fits (None: none), which outranks the usual."""
    _, name, usual, advice = next((row for row in REGIMES if ranks <= row[0]), _BEYOND)
    if stage is None:
        advice = "no ZeRO stage fits: more ranks or other axes (tensor, pipeline, expert)"
    elif stage > usual:
        advice = f"nothing below ZeRO-{stage} fits here, whatever is usual on {counted(ranks, 'rank')}"
    warnings = []
    if params is not None and params >= 200e9:
        warnings.append("200B parameters and more do not fit whole on any device: ZeRO-3 and other axes at any size")
    figures = (Figure("regime", name, "", "by ranks: 8, 64, 1024, 8192"),)
    rows = tuple((f"up to {most}", name, what) for most, name, _, what in REGIMES)
    table = Table("regimes", (("ranks", ""), ("regime", ""), ("what to do", "")), rows)
    return Answer(figures, (table,), (advice,), tuple(warnings))


_TOKENS = Input("global_tokens", count, "tokens of all ranks per step, as 1M")


KINDS = (
    Kind(
        "step",
        "compute, communication and the step they make",
        (
            Input("params", count, "parameters, as 70B"),
            Input("ranks", whole, "data-parallel ranks"),
            Input("micro_batch", whole, "samples per rank and step, or give --global-tokens", ""),
            Input("seq", whole, "tokens per sample"),
            Input("global_tokens", count, "tokens of all ranks per step", ""),
            WIRE,
            BANDWIDTH,
            PEAK,
            MFU,
        ),
        step,
        "step --params 70B --ranks 256 --micro-batch 1 --seq 4096 --bandwidth 400GB/s --peak-tflops 989",
    ),
    Kind(
        "wall",
        "ranks at which communication catches up with compute",
        (_TOKENS, WIRE, BANDWIDTH, PEAK, MFU),
        wall,
        "wall --global-tokens 1048576 --bandwidth 400GB/s --peak-tflops 989",
    ),
    Kind(
        "break-even",
        "tokens per rank above which compute hides communication",
        (WIRE, BANDWIDTH, PEAK, MFU, Input("tokens_per_rank", count, "yours, to be compared", "")),
        break_even,
        "break-even --bandwidth 400GB/s --peak-tflops h100",
    ),
    Kind(
        "efficiency",
        "throughput per rank by number of ranks",
        (
            Input("params", count, "parameters, as 7B"),
            Input("ranks", wholes, "numbers of ranks, as 1,8,64", "1,8,64,512,1024,2048"),
            Input("tokens_per_rank", count, "the batch grows with the ranks", ""),
            Input("global_tokens", count, "the batch is fixed", ""),
            WIRE,
            BANDWIDTH,
            LATENCY,
            PEAK,
            MFU,
        ),
        efficiency,
        "efficiency --params 7B --global-tokens 1M --bandwidth 400GB/s --peak-tflops h100",
    ),
    Kind(
        "regime",
        "what data parallelism is at a number of ranks",
        (Input("ranks", whole, "data-parallel ranks"), Input("params", count, "parameters, as 70B", "")),
        regime,
        "regime --ranks 256",
    ),
)
