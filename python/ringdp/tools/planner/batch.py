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


def batch(global_tokens: float, seq: int, micro_batch: int, ranks: int) -> Answer:
    """From tokens to samples to micro-batches per rank and step."""
    raw = floor(global_tokens / seq)
    if raw < 1:
        raise InputError(f"--global-tokens {global_tokens:g} is less than one sequence of --seq {seq}: raise it")
    fits = raw % (micro_batch * ranks) == 0
    samples = raw if fits else nearest_power_of_two(raw)
    how = "samples_raw" if fits else "the nearest power of two: micro_batch * ranks does not divide samples_raw"
    accumulation = formulas.grad_acc(samples, micro_batch, ranks)
    figures = (
        Figure("samples_raw", raw, "samples", "global_tokens / seq, whole sequences only"),
        Figure("samples", samples, "samples", how),
        Figure("rounded_global_tokens", samples * seq, "tokens", "samples * seq"),
        Figure("grad_acc", accumulation, "micro-batches per step", "samples / (micro_batch * ranks)"),
        Figure("too_many_ranks", accumulation < 1, "", "grad_acc < 1"),
        Figure("most_ranks", samples // micro_batch, "ranks", "grad_acc = 1: prefer ranks over accumulation"),
    )
    return Answer(figures, (_by_ranks(samples, micro_batch, ranks),), _advice(raw, samples, micro_batch, ranks, seq))


def _by_ranks(samples: int, micro_batch: int, ranks: int) -> Table:
    rows = []
    for number in sorted({*_SHOWN_RANKS, ranks}):
        accumulation = formulas.grad_acc(samples, micro_batch, number)
        rows.append((number, accumulation, _verdict(accumulation)))
    columns = (("ranks", "ranks"), ("grad_acc", ""), ("", ""))
    return Table("the same batch on other numbers of ranks", columns, tuple(rows))


def _verdict(accumulation: float) -> str:
    if accumulation < 1:
        return "too many ranks"
    return "works" if accumulation == int(accumulation) else "not a whole number"


def _advice(raw: int, samples: int, micro_batch: int, ranks: int, seq: int) -> tuple[str, ...]:
    accumulation = formulas.grad_acc(samples, micro_batch, ranks)
    if accumulation < 1:
        most, smaller = samples // micro_batch, samples // ranks
        bigger = micro_batch * ranks
        lower = f"lower --micro-batch to {smaller}; " if smaller else ""
        fewer = f"; or use {counted(most, 'rank')} and leave {ranks - most} idle" if most else ""
        return (
            f"{counted(ranks, 'rank')} are too many for {counted(samples, 'sample')}: {lower}raise "
            f"the global batch to {bigger} samples ({bigger * seq:,} tokens){fewer}",
        )
    if accumulation == int(accumulation):
        return (f"{micro_batch} x {accumulation:g} x {ranks} = {samples} samples per step",)
    steps = max(1, floor(formulas.grad_acc(raw, micro_batch, ranks)))
    return (
        f"{micro_batch} x {accumulation:.3f} x {ranks}: accumulation must be whole: take "
        f"{counted(steps, 'micro-batch')} ({micro_batch * steps * ranks} samples) or {steps + 1} "
        f"({micro_batch * (steps + 1) * ranks})",
    )


def lr(
    base_lr: float, base_batch: int | None, micro_batch: int | None, ranks: int, total_steps: float, warmup_share: float
) -> Answer:
    """Linear scaling of a learning rate that is known to be good, and its warm-up."""
    if (base_batch is None) != (micro_batch is None):
        raise InputError(
            "--base-batch and --micro-batch belong together: give both, or neither where each rank keeps it"
        )
    if base_batch is None or micro_batch is None:
        factor, how = float(ranks), "base_lr * ranks: each rank keeps the batch of base_lr"
    else:
        factor, how = micro_batch * ranks / base_batch, "base_lr * micro_batch * ranks / base_batch"
    return Answer(
        (
            Figure("scaled_lr", formulas.scaled_lr(base_lr, factor), "", f"{how} (Goyal et al., 2017)"),
            Figure(
                "warmup_steps", formulas.warmup_steps(total_steps, warmup_share), "steps", "total_steps * warmup_share"
            ),
        ),
        advice=("a starting point, not a law: the rate grows with the global batch",),
    )


def feed(ranks: int, samples: int, micro_batch: int) -> Answer:
    """Expected shares when a DistributedSampler is forgotten: with one seed, and with a shuffle per rank."""
    if micro_batch > samples:
        raise InputError(f"--micro-batch {micro_batch} is more than all --samples {samples}: lower it")
    step = formulas.independent_distinct_share_per_step(ranks, samples, micro_batch)
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
            Input("ranks", whole, "data-parallel ranks"),
        ),
        batch,
        "batch --global-tokens 4M --seq 4096 --micro-batch 2 --ranks 128",
    ),
    Kind(
        "lr",
        "learning rate and warm-up when ranks are added",
        (
            Input("base_lr", amount, "a rate that is known to be good"),
            Input("base_batch", whole, "the global batch size of that rate, in samples", ""),
            Input("micro_batch", whole, "samples per rank and step, with --base-batch", ""),
            Input("ranks", whole, "data-parallel ranks"),
            Input("total_steps", count, "steps of the whole run"),
            Input("warmup_share", share, "part of the steps", "5%"),
        ),
        lr,
        "lr --base-lr 3e-4 --ranks 8 --total-steps 20000",
    ),
    Kind(
        "feed",
        "distinct samples when ranks do not share the data out",
        (
            Input("ranks", whole, "data-parallel ranks"),
            Input("samples", whole, "in the data set"),
            Input("micro_batch", whole, "samples per rank and step"),
        ),
        feed,
        "feed --ranks 8 --samples 4096 --micro-batch 64",
    ),
)
