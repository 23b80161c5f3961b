"""Batch recipe (global batch = micro-batch x accumulation x ranks), learning rate, warm-up, what a data feed shows."""

from __future__ import annotations

from math import floor, log2

from ringdp.text.units import counted
from ringdp.tools.planner import formulas
from ringdp.tools.planner.question import Answer, Figure, Input, InputError, Kind, Table
from ringdp.tools.planner.units import amount, count, share, whole

_SHOWN_RANKS = (128, 512, 1024)


def nearest_power_of_two(samples: int) -> int:
    """The nearer of the powers of two below and above; half-way goes up."""
    below = 2 ** floor(log2(samples))
    return below if samples - below < 2 * below - samples else 2 * below


def batch(global_tokens: float, seq: int, micro_batch: int, dp: int) -> Answer:
    """From tokens to samples to micro-batches per rank and step."""
    raw = floor(global_tokens / seq)
    if raw < 1:
        raise InputError(f"--global-tokens {global_tokens:g} is less than one sequence of --seq {seq}: raise it")
    fits = raw % (micro_batch * dp) == 0
    samples = raw if fits else nearest_power_of_two(raw)
    how = "samples_raw" if fits else "the nearest power of two: micro_batch * dp does not divide samples_raw"
    accumulation = formulas.grad_acc(samples, micro_batch, dp)
    figures = (
        Figure("samples_raw", raw, "samples", "global_tokens / seq, whole sequences only"),
        Figure("samples", samples, "samples", how),
        Figure("rounded_global_tokens", samples * seq, "tokens", "samples * seq"),
        Figure("grad_acc", accumulation, "micro-batches per step", "samples / (micro_batch * dp)"),
        Figure("too_many_ranks", accumulation < 1, "", "grad_acc < 1"),
        Figure("most_ranks", samples // micro_batch, "ranks", "grad_acc = 1: prefer ranks over accumulation"),
    )
    return Answer(figures, (_by_ranks(samples, micro_batch, dp),), _advice(raw, samples, micro_batch, dp, seq))


def _by_ranks(samples: int, micro_batch: int, dp: int) -> Table:
    rows = []
    for ranks in sorted({*_SHOWN_RANKS, dp}):
        accumulation = formulas.grad_acc(samples, micro_batch, ranks)
        rows.append((ranks, accumulation, _verdict(accumulation)))
    columns = (("ranks", "ranks"), ("grad_acc", ""), ("", ""))
    return Table("the same batch on other numbers of ranks", columns, tuple(rows))


def _verdict(accumulation: float) -> str:
    if accumulation < 1:
        return "too many ranks"
    return "works" if accumulation == int(accumulation) else "not a whole number"


def _advice(raw: int, samples: int, micro_batch: int, dp: int, seq: int) -> tuple[str, ...]:
    accumulation = formulas.grad_acc(samples, micro_batch, dp)
    if accumulation < 1:
        most, smaller = samples // micro_batch, samples // dp
        bigger = micro_batch * dp
        lower = f"lower --micro-batch to {smaller}; " if smaller else ""
        fewer = f"; or use {counted(most, 'rank')} and leave {dp - most} idle" if most else ""
        return (
            f"{dp} ranks are too many for {samples} samples: {lower}raise the global batch to {bigger} samples"
            f" ({bigger * seq:,} tokens){fewer}",
        )
    if accumulation == int(accumulation):
        return (f"{micro_batch} x {accumulation:g} x {dp} = {samples} samples per step",)
    steps = max(1, floor(formulas.grad_acc(raw, micro_batch, dp)))
    return (
        f"{micro_batch} x {accumulation:.3f} x {dp}: accumulation must be whole: take {steps} "
        f"micro-batch{'' if steps == 1 else 'es'} ({micro_batch * steps * dp} samples) or {steps + 1} "
        f"({micro_batch * (steps + 1) * dp})",
    )


def lr(base_lr: float, ranks: int, steps: float, warmup_share: float) -> Answer:
    """Linear scaling of a learning rate that was found on one rank, and its warm-up."""
    return Answer(
        (
            Figure("scaled_lr", formulas.scaled_lr(base_lr, ranks), "", "base_lr * ranks (Goyal et al., 2017)"),
            Figure("warmup_steps", formulas.warmup_steps(steps, warmup_share), "steps", "steps * warmup_share"),
        ),
        advice=("a starting point, not a law: it assumes that the global batch grew by the number of ranks",),
    )


def feed(ranks: int, samples: int, batch_per_rank: int) -> Answer:
    """Expected shares when a DistributedSampler is forgotten: with one seed, and with a shuffle per rank."""
    if batch_per_rank > samples:
        raise InputError(f"--batch-per-rank {batch_per_rank} is more than all --samples {samples}: lower it")
    step = formulas.independent_distinct_share_per_step(ranks, samples, batch_per_rank)
    epoch = formulas.independent_seen_share_per_epoch(ranks)
    figures = (
        Figure("same_seed_distinct_share", formulas.same_seed_distinct_share(ranks), "share", "1/N"),
        Figure("independent_distinct_share_per_step", step, "share", "S (1 - (1 - b/S)^N) / (N b), expected"),
        Figure("independent_seen_share_per_epoch", epoch, "share", "1 - (1 - 1/N)^N, expected"),
    )
    return Answer(figures, advice=("with a DistributedSampler and set_epoch all three are 100 %",))


KINDS = (
    Kind(
        "batch",
        "samples and accumulation steps of a global batch in tokens",
        (
            Input("global_tokens", count, "tokens per step, as 4M"),
            Input("seq", whole, "tokens per sample", "4096"),
            Input("micro_batch", whole, "samples per rank and backward pass"),
            Input("dp", whole, "data-parallel ranks"),
        ),
        batch,
        "batch --global-tokens 4M --seq 4096 --micro-batch 2 --dp 128",
    ),
    Kind(
        "lr",
        "learning rate and warm-up when ranks are added",
        (
            Input("base_lr", amount, "learning rate on one rank"),
            Input("ranks", whole, "data-parallel ranks"),
            Input("steps", count, "steps of the whole run"),
            Input("warmup_share", share, "part of the steps", "5%"),
        ),
        lr,
        "lr --base-lr 3e-4 --ranks 8 --steps 20000",
    ),
    Kind(
        "feed",
        "distinct samples when ranks do not share the data out",
        (
            Input("ranks", whole, "data-parallel ranks"),
            Input("samples", whole, "in the data set"),
            Input("batch_per_rank", whole, "samples per rank and step"),
        ),
        feed,
        "feed --ranks 8 --samples 4096 --batch-per-rank 64",
    ),
)
