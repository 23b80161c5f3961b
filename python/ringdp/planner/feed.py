"""What a data feed shows of the data when ranks do not share it out."""

from __future__ import annotations

from ringdp.planner import recipes
from ringdp.planner.answer import Answer, Figure
from ringdp.planner.kind import Input, InputError, Kind
from ringdp.planner.units import whole


def feed(ranks: int, samples: int, batch_per_rank: int) -> Answer:
    """Expected shares when a DistributedSampler is forgotten: with one seed, and with a shuffle per rank."""
    if batch_per_rank > samples:
        raise InputError(f"--batch-per-rank {batch_per_rank} is more than all --samples {samples}: lower it")
    step = recipes.independent_distinct_share_per_step(ranks, samples, batch_per_rank)
    epoch = recipes.independent_seen_share_per_epoch(ranks)
    figures = (
        Figure("same_seed_distinct_share", recipes.same_seed_distinct_share(ranks), "share", "1/N"),
        Figure("independent_distinct_share_per_step", step, "share", "S (1 - (1 - b/S)^N) / (N b), expected"),
        Figure("independent_seen_share_per_epoch", epoch, "share", "1 - (1 - 1/N)^N, expected"),
    )
    return Answer(figures, advice=("with a DistributedSampler and set_epoch all three are 100 %",))


KINDS = (
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
