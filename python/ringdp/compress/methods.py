"""The values of `DistributedDataParallel(compress=...)`. Equal on all ranks; each says what it is by repr().

feedback: what the codes of a step leave out is added to the values of the next one (error feedback, arXiv 1901.09847).
"""

from __future__ import annotations

from dataclasses import dataclass

from ringdp.compress.codec import BLOCK, Codecs, Coded
from ringdp.compress.codec import TopK as TopKCodec
from ringdp.text.arguments import check_flag, check_number, check_whole_number

KINDS = ("int8", "fp8", "sign")
MODES = ("probe", "coded", "whole")
_ALLOWED = (
    f"{', '.join(map(repr, KINDS))}, such a name after 'auto:', a ringdp.PowerSGD, a ringdp.TopK or a "
    "ringdp.compress.Auto"
)


@dataclass(frozen=True)
class Codes:
    """kind: "int8" and "fp8" send a quarter of float32, "sign" a thirtieth. compress="int8" means Codes("int8")."""

    kind: str
    feedback: bool = True

    def __post_init__(self) -> None:
        """ValueError names a kind that does not exist."""
        if self.kind not in KINDS:
            raise ValueError(f"compress={self.kind!r}: must be {_ALLOWED}")
        check_flag(f"{type(self).__name__}: feedback", self.feedback)

    def codecs(self, ranks: int) -> Codecs:
        """Of gradients, and of means."""
        return Codecs(Coded(self.kind), Coded(self.kind))


@dataclass(frozen=True)
class TopK:
    """keep: how much of the gradients is sent, the largest of each 256 elements, at least one, as bfloat16."""

    keep: float = 0.01
    feedback: bool = True

    def __post_init__(self) -> None:
        """ValueError names a part that is not above 0 and at most 1."""
        check_number("TopK: keep", self.keep, lambda part: 0 < part <= 1, "a number above 0 and at most 1")
        check_flag(f"{type(self).__name__}: feedback", self.feedback)

    def codecs(self, ranks: int) -> Codecs:
        """Of means as many elements are kept as all ranks may have sent."""
        kept = max(1, round(self.keep * BLOCK))
        return Codecs(TopKCodec(kept), TopKCodec(min(kept * ranks, BLOCK)))


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
        """ValueError names a value that is no whole number, or is out of bounds."""
        for name, least in (("rank", 1), ("start", 0), ("seed", 0)):
            check_whole_number(f"PowerSGD: {name}", getattr(self, name), least, most=(1 << 31) - 1)
        check_flag(f"{type(self).__name__}: feedback", self.feedback)


Fixed = Codes | TopK | PowerSGD
Decision = tuple[int, str]  # a step, and what holds from it on: "probe", "coded" or "whole"
_AUTO = "auto:"


@dataclass(frozen=True)
class Auto:
    """Compresses by `method` as long as that makes steps shorter; compress="auto:int8" means Auto(Codes("int8")).

    decisions: of another run, from its ledger, which are followed, so that bits are the same; empty: rank 0 measures.
    """

    method: Fixed
    decisions: tuple[Decision, ...] = ()

    def __post_init__(self) -> None:
        """TypeError, ValueError name what is wrong."""
        if not isinstance(self.method, (Codes, TopK, PowerSGD)):
            raise TypeError(f"Auto: method={self.method!r}, must be a Codes, a TopK or a PowerSGD")
        if not _are_decisions(self.decisions):
            raise ValueError(
                f"Auto: decisions={self.decisions!r}: must be pairs of a step, growing from 0 on, and one of "
                f"{', '.join(MODES)}"
            )
        object.__setattr__(self, "decisions", tuple((step, mode) for step, mode in self.decisions))

    def __repr__(self) -> str:
        followed = f", decisions={self.decisions!r}" if self.decisions else ""
        return f"Auto({self.method!r}{followed})"


Method = Fixed | Auto


def _are_decisions(found: object) -> bool:
    """Also in lists, as JSON has them."""
    if not isinstance(found, (tuple, list)) or any(not isinstance(d, (tuple, list)) or len(d) != 2 for d in found):
        return False
    steps, modes = [step for step, _ in found], [mode for _, mode in found]
    if any(not isinstance(step, int) or isinstance(step, bool) for step in steps) or any(
        mode not in MODES for mode in modes
    ):
        return False
    return not steps or (steps[0] == 0 and steps == sorted(set(steps)))


def fixed(method: Method) -> Fixed:
    """What compresses."""
    return method.method if isinstance(method, Auto) else method


def method_of(compress: object) -> Method | None:
    """Of the argument. ValueError, TypeError name what it is not."""
    if compress is None or isinstance(compress, (Codes, TopK, PowerSGD, Auto)):
        return compress
    if isinstance(compress, str):
        return Auto(Codes(compress.removeprefix(_AUTO))) if compress.startswith(_AUTO) else Codes(compress)
    raise TypeError(f"compress={compress!r}: must be None, {_ALLOWED}")
