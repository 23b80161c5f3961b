"""One rank process of a self-test: for each transport it joins, judges every case, reports and leaves."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

import ringdp
from ringdp.selftest.calls import RankContext
from ringdp.selftest.cases import OPS, Case
from ringdp.selftest.oracle import difference, dtype_named

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


def judge(context: RankContext, case: Case) -> Verdict:
    """Collective over the seat's group: every rank judges the same case."""
    return _expect_exact(context, case) if case.meaningful else _expect_refusal(context, case)


def _expect_exact(context: RankContext, case: Case) -> Verdict:
    dtype = dtype_named(case.dtype or "float32")
    counts = (*_COUNTS, _LONG) if case.dtype in _LONG_DTYPES and case.reduce in ("", "SUM") else _COUNTS
    wrong = ""
    for count in counts:
        try:
            # All calls are made even after a wrong result: other ranks may have seen none, and make them.
            for what, got, want in OPS[case.op].call(context, dtype, case.reduce, count):
                wrong = wrong or _sentence(what, difference(got, want), count)
        except Exception as error:
            return Verdict(WRONG, f"{type(error).__name__}: {first_line(error)}", raised=True)
    return Verdict(WRONG, wrong) if wrong else Verdict(EXACT)


def _sentence(what: str, differs: str, count: int) -> str:
    return differs and f"{what} of {count} elements: {differs}"


def _expect_refusal(context: RankContext, case: Case) -> Verdict:
    dtype = dtype_named(case.dtype)
    try:
        for _ in OPS[case.op].call(context, dtype, case.reduce, _COUNTS[1]):
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


@dataclass(frozen=True)
class Assignment:
    """The arguments of every rank. `folder` holds the rendezvous files; times in seconds."""

    size: int
    transports: tuple[str, ...]
    cases: tuple[Case, ...]
    folder: str
    timeout_s: float
    backend: str = "ringdp"


# What a rank sends: (transport, number of the case, verdict), or (transport, None, why it stopped), or None: done.
Report = tuple[str, int | None, Verdict | str] | None


def main(pipe: Connection, rank: int, assignment: Assignment) -> None:
    """Runs to the end; the supervisor sees a crash by the closed pipe."""
    torch.set_num_threads(1)
    # Newer releases of torch rename the flat calls and warn of the names that all of them have.
    warnings.simplefilter("ignore", FutureWarning)
    ringdp.register()
    for transport in assignment.transports:
        try:
            _over(transport, pipe, rank, assignment)
        except BrokenPipeError:
            os._exit(1)  # the supervisor is gone
        except Exception as error:
            pipe.send((transport, None, first_line(error)))
    pipe.send(None)


def _over(transport: str, pipe: Connection, rank: int, assignment: Assignment) -> None:
    options: dict[str, Any] = {"pg_options": {"transport": transport}} if assignment.backend == "ringdp" else {}
    dist.init_process_group(
        assignment.backend,
        store=dist.FileStore(os.path.join(assignment.folder, transport), assignment.size),
        rank=rank,
        world_size=assignment.size,
        timeout=timedelta(seconds=assignment.timeout_s),
        **options,
    )
    try:
        _judge_all(transport, pipe, RankContext(rank, assignment.size), assignment.cases)
    finally:
        dist.destroy_process_group()


def _judge_all(transport: str, pipe: Connection, context: RankContext, cases: Sequence[Case]) -> None:
    for number, case in enumerate(cases):
        verdict = judge(context, case)
        pipe.send((transport, number, verdict))
        if verdict.raised:
            dist.barrier()  # raises when that failure was the group's end
