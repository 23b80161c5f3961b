"""What `ringdp.DiLoCo` sends: bytes by codec, the rates that a link must have, and the H that hides the way."""

from __future__ import annotations

import math

from ringdp.tools.planner import formulas
from ringdp.tools.planner.question import Answer, Figure, Input, InputError, Kind, Table
from ringdp.tools.planner.traffic import RATE
from ringdp.tools.planner.units import WIRE_BYTES, bandwidth, count, seconds, whole

_MOST = 4096
_COLUMNS = (
    ("compress", ""), ("bytes per step", "bytes"), ("of DDP's", ""), ("mean per second", "bytes"),
    ("peak per second", "bytes"), ("on the way", "s"), ("least delay", "steps"), ("least H", "steps"),
)  # fmt: skip


def local(
    params: float,
    workers: int,
    every: int,
    ranks: int | None,
    fragments: int,
    delay: int | None,
    bandwidth: float | None,
    step_seconds: float | None,
) -> Answer:
    """One row per codec, of the rank that sends most. Times count bytes only."""
    from ringdp.compress.codec import NAMES, codecs_of
    from ringdp.compress.exchange import Allotment
    from ringdp.local.options import Options

    ranks = workers if ranks is None else ranks
    if workers > _MOST:
        raise InputError(f"local answers for up to {_MOST} workers")
    try:
        Options(workers, every, fragments=fragments, delay=delay or 0).check(ranks)
    except ValueError as error:
        raise InputError(str(error).removeprefix("DiLoCo: ")) from None
    elements = math.ceil(params / fragments)
    ddp = formulas.ring_bytes_per_rank(formulas.gradient_bytes(params, WIRE_BYTES["fp32"]), ranks)
    rows = []
    for name in NAMES:
        codecs = codecs_of(name, workers)
        allotment = Allotment(workers, ranks, codecs.block)
        fragment = max(allotment.bytes_sent(rank, elements, codecs) for rank in range(ranks))
        per_step = fragments * fragment / every
        way = None if bandwidth is None else formulas.transfer_seconds(fragment, bandwidth)
        steps = None if way is None or step_seconds is None else math.ceil(way / step_seconds)
        mean = None if step_seconds is None else per_step / step_seconds
        peak = None if step_seconds is None or delay is None else fragment / (delay * step_seconds)
        rows.append(
            (name or "none", per_step, per_step / ddp if ranks > 1 else None, mean, peak, way, steps,
             None if steps is None else max(steps + 1, math.ceil(fragments * way / step_seconds)))
        )  # fmt: skip
    figures = tuple(Figure(f"bytes_per_step_{row[0]}", row[1], "bytes", "of a round / H") for row in rows)
    return Answer(figures, (Table(f"{workers} workers on {ranks} ranks", _COLUMNS, tuple(rows)),), _advice(rows, delay))


def _advice(rows: list[tuple], delay: int | None) -> tuple[str, ...]:
    said = ["with codes, several workers per rank send by worker: as many ranks as workers send least"]
    hidden = [row[0] for row in rows if row[6] is not None and delay is not None and row[6] <= delay]
    if delay is None:
        said.append("without delay= ranks wait while a fragment is on its way")
    elif rows[0][6] is not None:
        said.append(f"delay={delay} hides the way with compress {', '.join(hidden) or 'of none of these'}")
    return tuple(said)


KINDS = (
    Kind(
        "local",
        "what workers that step alone send (ringdp.DiLoCo): bytes, rates, and the H that hides them",
        (
            Input("params", count, "parameters, as 1B"),
            Input("workers", whole, "in all, W"),
            Input("every", whole, "steps alone, H"),
            Input("ranks", whole, "that play them; as many by default", ""),
            Input("fragments", whole, "parts that meet one after the other", "1"),
            Input("delay", whole, "steps that a fragment is on its way", ""),
            Input("bandwidth", bandwidth, RATE + "; for times", ""),
            Input("step_seconds", seconds, "of an inner step, as 500ms; for rates and the least H", ""),
        ),
        local,
        "local --params 1B --workers 8 --every 100 --bandwidth 100Mb/s --step-seconds 1s",
    ),
)
