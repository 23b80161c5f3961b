"""Arithmetic of recipes: batch, learning rate, buckets, what a data feed shows. One expression per function."""

from __future__ import annotations

from ringdp.planner.formulas import transfer_seconds


def grad_acc(samples: float, micro_batch: float, dp: float) -> float:
    """Micro-batches per rank and step: from samples = micro_batch * grad_acc * dp."""
    return samples / (micro_batch * dp)


def scaled_lr(base_lr: float, ranks: float) -> float:
    """Linear scaling of the learning rate with the global batch (Goyal et al., 2017)."""
    return base_lr * ranks


def warmup_steps(steps: float, share: float) -> float:
    """Steps in which the learning rate rises from zero."""
    return steps * share


def transfer_to_launch_ratio(bucket_bytes: float, bandwidth: float, launch_seconds: float) -> float:
    """How many launches a bucket's transfer is worth."""
    return transfer_seconds(bucket_bytes, bandwidth) / launch_seconds


def suggested_bucket_bytes(size: float, bandwidth: float, launch_seconds: float) -> float:
    """Bucket size that costs least: launches, size / bucket of them, against the last bucket, which nothing hides.

    The minimum of size / b * launch + b / bandwidth over b; never more than all gradients.
    """
    return min(size, (size * bandwidth * launch_seconds) ** 0.5)


def same_seed_distinct_share(ranks: float) -> float:
    """Share of a step's samples that are distinct when every rank draws the same ones."""
    return 1 / ranks


def independent_distinct_share_per_step(ranks: float, samples: float, batch_per_rank: float) -> float:
    """Expected share of a step's samples that are distinct when every rank shuffles on its own."""
    return samples * (1 - (1 - batch_per_rank / samples) ** ranks) / (ranks * batch_per_rank)


def independent_seen_share_per_epoch(ranks: float) -> float:
    """Expected share of the data that anybody sees in an epoch when every rank takes 1/N of a shuffle of its own."""
    return 1 - (1 - 1 / ranks) ** ranks
