"""The values of `DistributedDataParallel(compress=...)`. Equal on all ranks; each says what it is by repr().

feedback: what the codes of a step leave out is added to the values of the next one (error feedback, arXiv 1901.09847).
"""

from __future__ import annotations

from dataclasses import dataclass

from ringdp.compress.codec import Codec, Codecs, Float8, Rounded, Sign
from ringdp.compress.codec import TopK as TopKCodec

_BLOCK = 256  # elements, as on the wire
_SIGNS = 512
_CODECS: dict[str, Codec] = {"int8": Rounded(8, _BLOCK), "fp8": Float8(_BLOCK), "sign": Sign(_SIGNS)}


@dataclass(frozen=True)
class Codes:
    """kind: "int8" and "fp8" send a quarter of float32, "sign" a thirtieth. compress="int8" means Codes("int8")."""

    kind: str
    feedback: bool = True

    def __post_init__(self) -> None:
        """ValueError names a kind that does not exist."""
        if self.kind not in _CODECS:
            raise ValueError(f"compress={self.kind!r}: must be one of {', '.join(_CODECS)}, a PowerSGD or a TopK")

    def codecs(self, ranks: int) -> Codecs:
        """Of gradients, and of means."""
        return Codecs(_CODECS[self.kind], _CODECS[self.kind])


@dataclass(frozen=True)
class TopK:
    """keep: how much of the gradients is sent, the largest of each 256 elements, at least one, as bfloat16."""

    keep: float = 0.01
    feedback: bool = True

    def __post_init__(self) -> None:
        """ValueError names a part that is not above 0 and at most 1."""
        if not 0 < self.keep <= 1:
            raise ValueError(f"TopK: keep={self.keep}, must be above 0 and at most 1")

    def codecs(self, ranks: int) -> Codecs:
        """Of means as many elements are kept as all ranks may have sent."""
        kept = max(1, round(self.keep * _BLOCK))
        return Codecs(TopKCodec(kept, _BLOCK), TopKCodec(min(kept * ranks, _BLOCK), _BLOCK))


@dataclass(frozen=True)
class PowerSGD:
    """Gradients of matrices as products of two factors of this rank (arXiv 1905.13727); others are sent whole.

    start: so many steps at the beginning send everything whole. seed: of the first factors; later ones start from those
    of the step before.
    """

    rank: int = 4
    start: int = 0
    seed: int = 0
    feedback: bool = True

    def __post_init__(self) -> None:
        """ValueError names a number that is too small."""
        for name, least in (("rank", 1), ("start", 0), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 31:
                raise ValueError(f"PowerSGD: {name}={value!r}, must be a whole number from {least} to 2147483647")


Method = Codes | TopK | PowerSGD


def method_of(compress: object) -> Method | None:
    """Of the argument. ValueError, TypeError name what it is not."""
    if compress is None or isinstance(compress, (Codes, TopK, PowerSGD)):
        return compress
    if isinstance(compress, str):
        return Codes(compress)
    raise TypeError(
        f"compress={compress!r}: must be None, {', '.join(map(repr, _CODECS))}, a ringdp.PowerSGD or a ringdp.TopK"
    )
