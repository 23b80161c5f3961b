"""What `ringdp.DiLoCo` sends: bytes by codec, the rates that a link needs, and the delay and H that hide the way."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ringdp.tools.planner import formulas
from ringdp.tools.planner.question import Answer, Figure, Input, InputError, Kind, Table
from ringdp.tools.planner.traffic import RATE
from ringdp.tools.planner.units import WIRE_BYTES, bandwidth, count, seconds, whole

_MOST = 4096
_COLUMNS = (
    ("compress", ""), ("bytes per step", "bytes"), ("of DDP's", ""), ("mean per second", "bytes"),
    ("peak per second", "bytes"), ("on the way", "s"), ("least delay", "steps"), ("least H", "steps"),
    ("step, of one alone", ""),
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """A fragment's, in seconds: contributions to the owners of parts, then their means to all."""

    contributions: float
    means: float

    def least_delay(self, step: float) -> int:
        """Steps, of so many seconds, that hide it: the first half has one step more than the other in an odd delay."""
        first, second = (math.ceil(half / step) for half in (self.contributions, self.means))
        return max(2 * first - 1, 2 * second)

    def exposed(self, delay: int, step: float) -> float:
        """Seconds for which ranks wait: what does not fit into the steps of each half."""
        first, second = -(-delay // 2), delay // 2
        return max(0.0, self.contributions - first * step) + max(0.0, self.means - second * step)


def local(
    params: float,
    workers: int,
    every: int,
    ranks: int | None,
    fragments: int,
    delay: int | None,
    bandwidth: float | None,
    rtt: float | None,
    step_seconds: float | None,
) -> Answer:
    """One row per codec, of the rank that sends most. Times count bytes, and half a round trip for each half."""
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
        of_ranks = [allotment.bytes_by_half(rank, elements, codecs) for rank in range(ranks)]
        fragment = max(map(sum, of_ranks))
        per_step = fragments * fragment / every
        way = None
        if bandwidth is not None:
            trip = (rtt or 0.0) / 2 if ranks > 1 else 0.0
            way = Way(*(trip + formulas.transfer_seconds(max(half), bandwidth) for half in zip(*of_ranks, strict=True)))
        busy = None if bandwidth is None else fragments * formulas.transfer_seconds(fragment, bandwidth)
        least_delay = least_every = ratio = None
        if way is not None and busy is not None and step_seconds is not None:
            least_delay = way.least_delay(step_seconds)
            least_every = max(least_delay + 1, math.ceil(busy / step_seconds))
            ratio = 1 + fragments * way.exposed(delay or 0, step_seconds) / (every * step_seconds)
        rows.append(
            (name or "none", per_step, per_step / ddp if ranks > 1 else None,
             None if step_seconds is None else per_step / step_seconds,
             None if step_seconds is None or not delay else fragment / (delay * step_seconds),
             None if way is None else way.contributions + way.means, least_delay, least_every, ratio)
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
        "what workers that step alone send (ringdp.DiLoCo): bytes, rates, and the delay and H that hide them",
        (
            Input("params", count, "parameters, as 1B"),
            Input("workers", whole, "in all, W"),
            Input("every", whole, "steps alone, H"),
            Input("ranks", whole, "that play them; as many by default", ""),
            Input("fragments", whole, "parts that meet one after the other", "1"),
            Input("delay", whole, "steps that a fragment is on its way", ""),
            Input("bandwidth", bandwidth, RATE + "; for times", ""),
            Input("rtt", seconds, "a round trip between hosts, as 50ms; for times", ""),
            Input("step_seconds", seconds, "of an inner step, as 500ms; for rates and the least H", ""),
        ),
        local,
        "local --params 1B --workers 8 --every 100 --bandwidth 100Mb/s --rtt 50ms --step-seconds 1s",
    ),
)
