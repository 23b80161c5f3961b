"""Gradients kept as shards: this rank's part of every mean, .grad gone, sums over passes, what was used."""

from __future__ import annotations

import pytest
import torch
from ranks import BACKENDS, HERE, on_ranks
from rig import _C, backward, folded, gradients, reducer_of, same_bits

SHAPES = [[40, 30], [7], [3000], [1, 5]]
LENGTHS = [1200, 7, 3000, 5]


def own_part(reducer, means: list[torch.Tensor]) -> list[bool]:
    """Whether each piece that this rank owns has the bits of its part of the mean."""
    layout = _C.ShardLayout(LENGTHS, reducer.layout(), HERE.size)
    shards = reducer.shards()
    return [
        same_bits(shards[bucket][offset : offset + length], means[p].flatten()[begin : begin + length])
        for p, begin, length, bucket, offset in layout.pieces(HERE.rank)
    ]


def passes(backend: str, dtype: torch.dtype, limit: int, count: int) -> tuple[list[bool], bool, bool]:
    """On a rank: `count` passes without dropping; pieces right, .grad gone, everything used."""
    parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES]
    reducer = reducer_of(parameters, backend, bucket_limits=[limit], shard_block=_C.shard_block())
    sums = [torch.zeros(shape, dtype=dtype) for shape in SHAPES]
    for step in range(count):
        by_rank = [gradients(rank, SHAPES, dtype, step) for rank in range(HERE.size)]
        backward(reducer, parameters, by_rank[HERE.rank])
        means = [folded(of_all, HERE.size) for of_all in zip(*by_rank, strict=True)]
        sums = means if step == 0 else [s + m for s, m in zip(sums, means, strict=True)]
    return own_part(reducer, sums), all(p.grad is None for p in parameters), all(reducer.used())


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("limit", [0, 6000, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_shards_are_parts_of_the_mean(trio, backend, dtype, limit, count):
    said = trio.run(passes, backend, dtype, limit, count)
    assert all(all(right) and gone and used for right, gone, used in said)
    assert sum(len(right) for right, _, _ in said) >= len(SHAPES)


@on_ranks(3, (True, [False] * 4))
def test_dropped_shards_are_gone() -> tuple[bool, list[bool]]:
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    reducer = reducer_of(parameters, shard_block=_C.shard_block())
    backward(reducer, parameters, gradients(HERE.rank, SHAPES))
    reducer.drop_shards()
    return all(s is None for s in reducer.shards()), reducer.used()


@on_ranks(3, (True, [True] * 4))
def test_zeroed_shards_stay_and_are_used() -> tuple[bool, list[bool]]:
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    reducer = reducer_of(parameters, shard_block=_C.shard_block())
    backward(reducer, parameters, gradients(HERE.rank, SHAPES))
    reducer.zero_shards()
    return all(s is not None and not s.any() for s in reducer.shards()), reducer.used()


@pytest.mark.parametrize("with_sinks", [False, True])
@on_ranks(3)
def test_parts_may_be_taken_in_place_of_shards(with_sinks: bool) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    reducer = reducer_of(parameters, bucket_limits=[6000], shard_block=_C.shard_block())
    layout = _C.ShardLayout(LENGTHS, reducer.layout(), HERE.size)
    passes, came = [], []
    scratch = [torch.zeros(layout.shard(bucket)) for bucket in range(len(layout.buckets))]

    def sinks() -> list:
        passes.append(1)
        if not with_sinks:
            return [None] * len(scratch)
        settings = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": True}
        steps = _C.sgd_steps(scratch, [], [True] * len(scratch), lr=1.0, **settings, fastest=False)
        return [_C.step_sink([(0, steps, bucket)]) for bucket in range(len(scratch))]

    def on_shard(bucket: int, part: torch.Tensor) -> None:
        came.append(bucket)
        assert not with_sinks or torch.equal(scratch[bucket], part)  # 0 + 1.0 * part

    reducer.set_on_shard(sinks, on_shard)
    backward(reducer, parameters, gradients(HERE.rank, SHAPES))
    none = all(s is None for s in reducer.shards())
    reducer.keep_shards()
    backward(reducer, parameters, gradients(HERE.rank, SHAPES))
    assert len(passes) == 1 and came == sorted(came) and len(came) > 1
    assert none and all(s is not None for s in reducer.shards())


@on_ranks(3, [True, True, True, False])
def test_what_no_rank_uses_stays_absent() -> list[bool]:
    """Parameter 1 is used by rank 1 only, parameter 3 by none."""
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    reducer = reducer_of(parameters, shard_block=_C.shard_block(), find_unused=True)
    given = gradients(HERE.rank, SHAPES)
    backward(reducer, parameters, [given[0], given[1] if HERE.rank == 1 else None, given[2], None])
    return reducer.used()


def widened() -> list[bool]:
    """On a rank: bfloat16 gradients, averaged and kept in float32."""
    parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16)) for shape in SHAPES]
    reducer = reducer_of(parameters, shard_block=_C.shard_block())
    reducer.set_gradient_dtype(torch.float32)
    by_rank = [gradients(rank, SHAPES, torch.bfloat16) for rank in range(HERE.size)]
    backward(reducer, parameters, by_rank[HERE.rank])
    return own_part(reducer, [folded([g.float() for g in g3], HERE.size) for g3 in zip(*by_rank, strict=True)])


def test_a_wider_type_keeps_the_mean_unrounded(trio):
    assert all(all(right) for right in trio.run(widened))


def test_sparse_gradients_have_no_shards(trio):
    outcomes = trio.attempt(sparse_reducer)
    assert all("sparse gradients have no shards" in outcome.error for outcome in outcomes)


def sparse_reducer() -> None:
    reducer_of([torch.nn.Parameter(torch.zeros(4, 4))], sparse=[True], shard_block=_C.shard_block())
