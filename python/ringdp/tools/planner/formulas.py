"""The planner's arithmetic, one expression per function, so that it can be read aloud, tested and translated.

Every function is a single `return` of + - * / **, min, max, ceil, log2, comparisons, conditional expressions and calls
of one another; pages run the same text as JavaScript. Bytes are SI bytes, times are seconds, bandwidth is bytes per
second of one rank's link in each direction, `ranks` is N, `params` the number of parameters (P), `wire_bytes` the bytes
of a gradient element on the wire.
"""

from __future__ import annotations

from math import ceil, log2

# --- communication -------------------------------------------------------------------------------------------------


def gradient_bytes(params: float, wire_bytes: float) -> float:
    """Bytes of one whole gradient on the wire, |g|."""
    return params * wire_bytes


def reduce_scatter_bytes_per_rank(size: float, ranks: float) -> float:
    """Bytes that a rank sends in a reduce-scatter of `size` bytes: all but its own slice, (N-1)/N."""
    return size * (ranks - 1) / ranks


def all_gather_bytes_per_rank(size: float, ranks: float) -> float:
    """Bytes that a rank sends round the ring in an all-gather of `size` bytes in all: (N-1)/N."""
    return size * (ranks - 1) / ranks


def ring_bytes_per_rank(size: float, ranks: float) -> float:
    """Bytes that a rank sends in a ring all-reduce: a reduce-scatter and an all-gather (Patarasuk and Yuan, 2009)."""
    return reduce_scatter_bytes_per_rank(size, ranks) + all_gather_bytes_per_rank(size, ranks)


def ring_limit_bytes(size: float) -> float:
    """What a rank sends in a ring all-reduce however many ranks there are."""
    return 2 * size


def ring_rounds(ranks: float) -> float:
    """Rounds of a ring all-reduce: N-1 of sums and N-1 of results."""
    return 2 * (ranks - 1)


def server_bytes_one_way(size: float, ranks: float) -> float:
    """Bytes that a parameter server receives; as many leave it again."""
    return size * (ranks - 1)


def server_bytes(size: float, ranks: float) -> float:
    """Bytes through a parameter server, both directions."""
    return 2 * server_bytes_one_way(size, ranks)


def tree_bytes_per_rank(size: float, ranks: float) -> float:
    """Bytes of a rank that takes part in every level of a binary tree, up and down: 2 |g| log2 N."""
    return 2 * size * log2(ranks)


def transfer_seconds(size: float, bandwidth: float) -> float:
    """Seconds that `size` bytes take on a link that carries `bandwidth`."""
    return size / bandwidth


def ring_seconds(size: float, ranks: float, bandwidth: float, latency: float) -> float:
    """Seconds of a ring all-reduce in the alpha-beta model: 2(N-1) rounds of `latency` and the bytes of one rank."""
    return ring_rounds(ranks) * latency + transfer_seconds(ring_bytes_per_rank(size, ranks), bandwidth)


def comm_seconds(params: float, ranks: float, wire_bytes: float, bandwidth: float) -> float:
    """Seconds of the gradients' ring all-reduce, bandwidth only."""
    return ring_seconds(gradient_bytes(params, wire_bytes), ranks, bandwidth, 0)


# --- compute and the step ------------------------------------------------------------------------------------------


def flops_per_step(params: float, tokens: float) -> float:
    """Floating-point operations of forward (2) and backward (4) per parameter and token (Kaplan et al., 2020)."""
    return 6 * params * tokens


def cluster_flops_per_second(ranks: float, peak_tflops: float, mfu: float) -> float:
    """What all ranks do in a second: peak times the share of it that models reach (MFU)."""
    return ranks * peak_tflops * 1e12 * mfu


def compute_seconds(params: float, tokens: float, ranks: float, peak_tflops: float, mfu: float) -> float:
    """Seconds of forward and backward of a global batch of `tokens`."""
    return flops_per_step(params, tokens) / cluster_flops_per_second(ranks, peak_tflops, mfu)


def backward_share() -> float:
    """Share of compute that the backward pass is: 4 of 6 operations. Only there gradients become ready."""
    return 2 / 3


def exposed_seconds(compute: float, comm: float, hiding_share: float) -> float:
    """Communication that the `hiding_share` of compute does not hide."""
    return max(0, comm - hiding_share * compute)


def step_seconds_overlap(compute: float, comm: float) -> float:
    """Seconds of a step when all of compute hides communication: the longer of the two, not their sum."""
    return compute + exposed_seconds(compute, comm, 1)


def step_seconds_backward_overlap(compute: float, comm: float) -> float:
    """Seconds of a step when only the backward pass hides communication."""
    return compute + exposed_seconds(compute, comm, backward_share())


def step_seconds_no_overlap(compute: float, comm: float) -> float:
    """Seconds of a step whose communication begins when compute has ended."""
    return compute + comm


def wait_share(compute: float, step: float) -> float:
    """Share of a step in which a rank waits for communication."""
    return (step - compute) / step


def tokens_per_second(tokens: float, step: float) -> float:
    """Throughput of the whole cluster."""
    return tokens / step


def tokens_per_rank(global_tokens: float, ranks: float) -> float:
    """Tokens that each rank has of a global batch."""
    return global_tokens / ranks


def whole_sequences(global_tokens: float, ranks: float, seq: float) -> bool:
    """Whether every rank has a whole number of sequences, at least one."""
    return tokens_per_rank(global_tokens, ranks) / seq == ceil(tokens_per_rank(global_tokens, ranks) / seq)


def efficiency(compute: float, step: float) -> float:
    """Scaling efficiency: throughput per rank over that of a rank alone."""
    return compute / step


# --- the scaling wall ----------------------------------------------------------------------------------------------


def wall_ranks(
    global_tokens: float, wire_bytes: float, bandwidth: float, peak_tflops: float, mfu: float, hiding_share: float
) -> float:
    """Ranks at which communication equals the compute that hides it, at a fixed global batch; params cancel.

    hiding_share * 6 P T / (N F) = 2 (N-1)/N P w / B, with F operations per second of one rank;
    break_even_tokens_per_rank() is its second term.
    """
    return 1 + global_tokens / break_even_tokens_per_rank(wire_bytes, bandwidth, peak_tflops, mfu, hiding_share)


def wall_ranks_whole_step(
    global_tokens: float, wire_bytes: float, bandwidth: float, peak_tflops: float, mfu: float
) -> float:
    """The wall when forward and backward hide communication."""
    return wall_ranks(global_tokens, wire_bytes, bandwidth, peak_tflops, mfu, 1)


def wall_ranks_backward_only(
    global_tokens: float, wire_bytes: float, bandwidth: float, peak_tflops: float, mfu: float
) -> float:
    """The wall when only the backward pass hides communication."""
    return wall_ranks(global_tokens, wire_bytes, bandwidth, peak_tflops, mfu, backward_share())


def break_even_tokens_per_rank(
    wire_bytes: float, bandwidth: float, peak_tflops: float, mfu: float, hiding_share: float
) -> float:
    """Tokens per rank and step below which communication shows, for many ranks: the limit 2|g| of the ring."""
    return wire_bytes * cluster_flops_per_second(1, peak_tflops, mfu) / (3 * hiding_share * bandwidth)


# --- memory --------------------------------------------------------------------------------------------------------


def whole_bytes_per_parameter(stage: float, weight_bytes: float, grad_bytes: float, state_bytes: float) -> float:
    """Bytes per parameter that every rank keeps whole. Stage 1 divides state, 2 gradients too, 3 weights too (ZeRO)."""
    return (state_bytes if stage < 1 else 0) + (grad_bytes if stage < 2 else 0) + (weight_bytes if stage < 3 else 0)


def sharded_bytes_per_parameter(stage: float, weight_bytes: float, grad_bytes: float, state_bytes: float) -> float:
    """Bytes per parameter of which a rank keeps 1/N."""
    return (state_bytes if stage >= 1 else 0) + (grad_bytes if stage >= 2 else 0) + (weight_bytes if stage >= 3 else 0)


def stage_bytes(
    params: float, ranks: float, stage: float, weight_bytes: float, grad_bytes: float, state_bytes: float
) -> float:
    """Bytes per rank of weights, gradients and optimizer state (with master weights) at a ZeRO stage.

    Rajbhandari et al., 2020: with 2, 2 and 12 bytes 16P, 4P + 12P/N, 2P + 14P/N and 16P/N at stages 0 to 3.
    """
    return params * (
        whole_bytes_per_parameter(stage, weight_bytes, grad_bytes, state_bytes)
        + sharded_bytes_per_parameter(stage, weight_bytes, grad_bytes, state_bytes) / ranks
    )


def stage_limit_bytes(params: float, stage: float, weight_bytes: float, grad_bytes: float, state_bytes: float) -> float:
    """What is left per rank at a ZeRO stage however many ranks there are."""
    return params * whole_bytes_per_parameter(stage, weight_bytes, grad_bytes, state_bytes)


def stage_saved_bytes(params: float, ranks: float, sharded_bytes: float) -> float:
    """Bytes per rank that dividing `sharded_bytes` per parameter among the ranks frees."""
    return params * sharded_bytes * (ranks - 1) / ranks


def min_ranks(whole: float, sharded: float, device_bytes: float) -> float | None:
    """Fewest ranks on which whole + sharded/N fits into a device; None when no number of ranks does."""
    return (
        1
        if whole + sharded <= device_bytes
        else ceil(sharded / (device_bytes - whole))
        if sharded > 0 and whole < device_bytes
        else None
    )


def stage3_transient_bytes(largest_unit: float, next_unit: float, weight_bytes: float, grad_bytes: float) -> float:
    """What stage 3 adds to its shards: two units gathered (in use, prefetched), gradients of the one in use."""
    return (largest_unit + next_unit) * weight_bytes + largest_unit * grad_bytes


def layer_activation_bytes(micro_batch: float, seq: float, hidden: float, heads: float, element_bytes: float) -> float:
    """Saved for backward by one transformer layer with dropout: s b h (16 e + 2) + a s^2 b (2 e + 1).

    Korthikanti et al., 2022; with 2-byte elements s b h (34 + 5 a s / h).
    """
    return seq * micro_batch * hidden * (16 * element_bytes + 2) + heads * seq**2 * micro_batch * (
        2 * element_bytes + 1
    )


def layer_activation_bytes_without_scores(micro_batch: float, seq: float, hidden: float, element_bytes: float) -> float:
    """The same when attention scores are computed again (flash attention, selective recomputation)."""
    return seq * micro_batch * hidden * (16 * element_bytes + 2)


def layer_input_bytes(micro_batch: float, seq: float, hidden: float, element_bytes: float) -> float:
    """The input of a layer: all that full recomputation keeps of it."""
    return seq * micro_batch * hidden * element_bytes


# --- volume in elements --------------------------------------------------------------------------------------------


def gather_elements(params: float, stage: float, micro_batches: float) -> float:
    """Elements of parameters gathered in a step, times (N-1)/N: stage 3 twice per micro-batch, stages 1 and 2 once."""
    return 2 * micro_batches * params if stage >= 3 else params if stage >= 1 else 0


def reduce_elements(params: float, stage: float, micro_batches: float) -> float:
    """Elements of gradients reduced in a step, times (N-1)/N: an all-reduce counts twice (stage 0).

    Stages 0 and 1 accumulate whole gradients and reduce them once; stages 2 and 3 keep shards only, so they
    reduce-scatter every micro-batch.
    """
    return 2 * params if stage < 1 else params if stage < 2 else micro_batches * params


def volume_elements(params: float, stage: float, micro_batches: float) -> float:
    """Elements that a rank sends in a step of `micro_batches`, times (N-1)/N."""
    return reduce_elements(params, stage, micro_batches) + gather_elements(params, stage, micro_batches)


def grad_acc(samples: float, micro_batch: float, dp: float) -> float:
    """Micro-batches per rank and step: from samples = micro_batch * grad_acc * dp."""
    return samples / (micro_batch * dp)


def scaled_lr(base_lr: float, factor: float) -> float:
    """Linear scaling of the learning rate with a global batch `factor` times as large (Goyal et al., 2017)."""
    return base_lr * factor


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
    """Expected share of the data that is drawn in an epoch when every rank takes 1/N of a shuffle of its own."""
    return 1 - (1 - 1 / ranks) ** ranks
