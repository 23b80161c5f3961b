"""The worked example of `ringdp ring` in figures, as the real ring runs it."""

from __future__ import annotations

from typing import Any

from ringdp.planner.answer import Answer, Figure, Table
from ringdp.planner.kind import Input, InputError, Kind
from ringdp.planner.units import whole
from ringdp.playback.executor import execute
from ringdp.playback.play import inputs

_MOST = 64


def ring(ranks: int) -> Answer:
    """What every rank holds after round 1, owns after the reduce-scatter, and ends with; rounds and bytes counted."""
    if ranks > _MOST:
        raise InputError(f"--ranks {ranks}: the example is played with at most {_MOST}; ringdp plan comm takes more")
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
        "ring",
        "the worked example of a ring, as the real ring runs it",
        (Input("ranks", whole, "at most 64", "4"),),
        ring,
        "ring --ranks 4",
    ),
)
