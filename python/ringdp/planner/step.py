"""Time of a step: compute, communication, and what of it shows."""

from __future__ import annotations

from ringdp.planner import formulas
from ringdp.planner.answer import Answer, Figure
from ringdp.planner.kind import Input, InputError, Kind
from ringdp.planner.presets import peak_tflops
from ringdp.planner.traffic import RATE, WIRE
from ringdp.planner.units import WIRE_BYTES, bandwidth, count, share, whole

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
    return Answer(figures, advice=_advice(compute, comm), warnings=_warnings(tokens, ranks, seq, per_rank, least))


def _advice(compute: float, comm: float) -> tuple[str, ...]:
    longer, shorter = ("compute", "communication") if compute >= comm else ("communication", "compute")
    return (f"bound by {longer}: {shorter} takes {min(compute, comm) / max(compute, comm):.0%} of its time",)


def _warnings(tokens: float, ranks: int, seq: int, per_rank: float, least: float) -> tuple[str, ...]:
    said = []
    if not formulas.whole_sequences(tokens, ranks, seq):
        most = int(tokens // seq)
        fewer = f"use at most {most} ranks, or " if most else ""
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
)
