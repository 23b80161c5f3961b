"""Runs one case on one rank and says what came of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ringdp.selftest.cases import OPS, Case
from ringdp.selftest.compare import difference
from ringdp.selftest.meaning import dtype_named
from ringdp.selftest.seat import Seat

EXACT, REFUSED, WRONG = "exact", "refused", "wrong"

_COUNTS = (0, 5, 1003)
# More than a slot, a segment or a link holds; one dtype that is folded wide and one that is not will do.
_LONG = 300_001
_LONG_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Verdict:
    """EXACT, REFUSED (as it should be) or WRONG with the reason; `raised`: a call failed that should not."""

    kind: str
    why: str = ""
    raised: bool = False


def judge(seat: Seat, case: Case) -> Verdict:
    """Collective over the seat's group: every rank judges the same case."""
    return _expect_exact(seat, case) if case.meaningful else _expect_refusal(seat, case)


def _expect_exact(seat: Seat, case: Case) -> Verdict:
    dtype = dtype_named(case.dtype or "float32")
    counts = (*_COUNTS, _LONG) if case.dtype in _LONG_DTYPES and case.reduce in ("", "SUM") else _COUNTS
    wrong = ""
    for count in counts:
        try:
            # All calls are made even after a wrong result: other ranks may have seen none, and make them.
            for what, got, want in OPS[case.op].call(seat, dtype, case.reduce, count):
                wrong = wrong or _sentence(what, difference(got, want), count)
        except Exception as error:
            return Verdict(WRONG, f"{type(error).__name__}: {first_line(error)}", raised=True)
    return Verdict(WRONG, wrong) if wrong else Verdict(EXACT)


def _sentence(what: str, differs: str, count: int) -> str:
    return differs and f"{what} of {count} elements: {differs}"


def _expect_refusal(seat: Seat, case: Case) -> Verdict:
    dtype = dtype_named(case.dtype)
    try:
        for _ in OPS[case.op].call(seat, dtype, case.reduce, _COUNTS[1]):
            pass
    except Exception as error:
        if _names(str(error), dtype, case.reduce):
            return Verdict(REFUSED)
        return Verdict(WRONG, f"refused, but neither {case.reduce} nor {case.dtype} is named: {first_line(error)}")
    return Verdict(WRONG, "has no meaning, but was not refused")


def _names(message: str, dtype: torch.dtype, reduce: str) -> bool:
    return any(word.lower() in message.lower() for word in (str(dtype).removeprefix("torch."), reduce))


def first_line(error: BaseException) -> str:
    """The start of a message; torch appends its C++ stack to some."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else "no message"
