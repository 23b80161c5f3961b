"""What `micro_batches=M` costs by number of ranks: micro-batches (leaves) per rank, sums that are sent, copies held.

One copy is as large as all gradients of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringdp import _native
from ringdp.tools.planner import formulas
from ringdp.tools.planner.question import Answer, Figure, Input, InputError, Kind, Table
from ringdp.tools.planner.traffic import RATE
from ringdp.tools.planner.units import WIRE_BYTES, bandwidth, count, whole, wholes, wire

_MOST = 4096
_FP32 = WIRE_BYTES["fp32"]
_COLUMNS = (
    ("ranks", "ranks"), ("leaves per rank", ""), ("sums sent, mean", ""), ("sums sent, most", ""),
    ("copies held", ""), ("bytes sent per rank", "bytes"), ("of an all-reduce", ""), ("seconds", "s"),
)  # fmt: skip

_SHARDED = (("ranks", "ranks"), ("copies held", ""), ("bytes sent per rank", "bytes"), ("seconds", "s"))


def copies_held(micro_batches: int, leaves: Sequence[int]) -> int:
    """The most sums that a rank holds at a time while it runs these leaves, with the one that is being added."""
    roots = _native.load().leaf_roots
    return max((len(roots(micro_batches, leaves[:done])) + 1 for done in range(len(leaves))), default=0)


def copies_in_rounds(micro_batches: int, ranks: int) -> float:
    """The same with shard_leaves=True and leaves dealt out in turn: this leaf's gradients, and shards of the sums."""
    roots = _native.load().leaf_roots
    ends = range(0, micro_batches + ranks, ranks)
    return 1 + max(len(roots(micro_batches, list(range(min(end, micro_batches))))) for end in ends) / ranks


def elastic(
    micro_batches: int, ranks: tuple[int, ...], params: float | None, wire: str, bandwidth: float | None
) -> Answer:
    """One row per number of ranks, for the leaves that `ringdp.elastic.Leaves(...).mine()` deals out.

    And one with shard_leaves=True, from ZeRO stage 2 on, where the means stay in shards.
    """
    if micro_batches > _MOST or max(ranks) > _MOST:
        raise InputError(f"elastic answers for up to {_MOST} micro-batches and ranks")
    native = _native.load()
    size = formulas.gradient_bytes(params, WIRE_BYTES[wire]) if params is not None else None
    rows, held, sent = [], {}, {}
    for n in ranks:
        leaves = native.allot_leaves(native.even_shares(micro_batches, n))
        roots = [native.leaf_roots(micro_batches, mine) for mine in leaves]
        held[n] = max(copies_held(micro_batches, mine) for mine in leaves)
        # A sum of several leaves is sent in float32, whatever the gradients' type.
        widths = [sum(_FP32 if end - begin > 1 else WIRE_BYTES[wire] for begin, end in own) for own in roots]
        sent[n] = sum(widths) / n / WIRE_BYTES[wire]
        one_way = (n - 1) / n
        total = None if size is None else (sent[n] + 1) * one_way * size
        share = f"{min(map(len, leaves))}-{max(map(len, leaves))}" if micro_batches % n else str(micro_batches // n)
        rows.append(
            (n, share, sum(map(len, roots)) / n, max(map(len, roots)), held[n], total, (sent[n] + 1) / 2,
             _seconds(total, bandwidth))
        )  # fmt: skip
    figures = tuple(
        Figure(f"copies_held_{n}", held[n], "", "most sums at a time, with the one that is added") for n in ranks
    )
    figures += tuple(
        Figure(f"all_reduce_ratio_{n}", (sent[n] + 1) / 2, "", "(sums sent + 1) / 2 of a plain all-reduce")
        for n in ranks
    )
    figures += tuple(
        Figure(f"copies_held_sharded_{n}", copies_in_rounds(micro_batches, n), "", "with shard_leaves=True")
        for n in ranks
    )
    tables = (
        Table("by number of ranks", _COLUMNS, tuple(rows)),
        Table(
            "with shard_leaves=True, from ZeRO stage 2 on", _SHARDED, _sharded(micro_batches, ranks, size, bandwidth)
        ),
    )
    return Answer(figures, tables, _advice(micro_batches, ranks), _warnings(held))


def _sharded(
    micro_batches: int, ranks: Sequence[int], size: float | None, bandwidth: float | None
) -> tuple[tuple[Any, ...], ...]:
    """Every leaf is sent in the gradients' type, and the means stay in shards."""
    sent = [None if size is None else micro_batches / n * (n - 1) / n * size for n in ranks]
    return tuple(
        (n, copies_in_rounds(micro_batches, n), total, _seconds(total, bandwidth))
        for n, total in zip(ranks, sent, strict=True)
    )


def _seconds(sent: float | None, bandwidth: float | None) -> float | None:
    return None if sent is None or bandwidth is None else formulas.transfer_seconds(sent, bandwidth)


def _advice(micro_batches: int, ranks: Sequence[int]) -> tuple[str, ...]:
    most = max(ranks)
    said = [f"with M = {most} or {2 * most} (the most ranks, or twice that) full strength holds one copy, or two"]
    idle = [n for n in ranks if n > micro_batches]
    if idle:
        said.append(f"from {min(idle)} ranks on some have no micro-batch: use a larger M")
    said.append(
        "seconds are exposed if nothing overlaps; a rank sends its sums while it computes its last micro-batch, if it "
        "has those of the step before, and receives the means at the step's end; with shard_leaves nothing overlaps"
    )
    return tuple(said)


def _warnings(held: dict[int, int]) -> tuple[str, ...]:
    most = max(held.values())
    said = f"up to {most} copies of the gradients are held on a rank, in float32: see shard_leaves=True"
    return (said,) if most > 2 else ()


KINDS = (
    Kind(
        "elastic",
        "what the same bits at every number of ranks cost (micro_batches=M)",
        (
            Input("micro_batches", whole, "of a step, whatever the number of ranks"),
            Input("ranks", wholes, "numbers of ranks, as 1-8 or 1,2,4", "1-8"),
            Input("params", count, "parameters, as 7B; for bytes", ""),
            Input("wire", wire, "type of gradients: " + ", ".join(WIRE_BYTES), "fp32"),
            Input("bandwidth", bandwidth, RATE + "; for seconds", ""),
        ),
        elastic,
        "elastic --micro-batches 24 --ranks 1-8 --params 1B",
    ),
)
