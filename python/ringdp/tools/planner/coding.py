"""What `DistributedDataParallel(compress="int8")` saves on links and costs in codes, on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from ringdp.tools.planner import formulas

NAMES = ("int8", "fp8", "sign")
_ELEMENTS = 1 << 18
_ROUNDS = 5


@dataclass(frozen=True)
class Coding:
    """share: of float32's bytes that are sent. seconds: of codes, for each element of a bucket, one thread."""

    name: str
    ranks: int
    share: float
    seconds: float


def measured(name: str, ranks: int) -> Coding:
    """Each rank encodes its gradients and the means it owns, and decodes what it owns of all, and all means."""
    import torch

    from ringdp.compress.codec import Coded
    from ringdp.compress.exchange import Allotment
    from ringdp.compress.methods import Codes

    codec, codecs = Coded(name), Codes(name).codecs(ranks)
    values, residuals = torch.randn(_ELEMENTS), torch.zeros(_ELEMENTS)
    blocks = _ELEMENTS // codec.block
    encoded = codec.encode_with_feedback(values, residuals, blocks)
    encode = _seconds(lambda: codec.encode_with_feedback(values, residuals, blocks)) / _ELEMENTS
    decode = _seconds(lambda: codec.decode(encoded)) / _ELEMENTS
    sent = Allotment(ranks, ranks, codec.block).bytes_sent(0, _ELEMENTS, codecs)
    whole = formulas.ring_bytes_per_rank(4 * _ELEMENTS, ranks)
    return Coding(name, ranks, sent / whole if ranks > 1 else 1.0, encode * (1 + 1 / ranks) + 2 * decode)


def _seconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return median(times)
