"""The life of one rank process of a self-test: for each transport join, judge every case, report, leave."""

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
from ringdp.selftest.cases import Case
from ringdp.selftest.seat import Seat
from ringdp.selftest.verdict import Verdict, first_line, judge


@dataclass(frozen=True)
class Assignment:
    """What every rank is told. `folder` holds the rendezvous files; times in seconds."""

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
        _judge_all(transport, pipe, Seat(rank, assignment.size), assignment.cases)
    finally:
        dist.destroy_process_group()


def _judge_all(transport: str, pipe: Connection, seat: Seat, cases: Sequence[Case]) -> None:
    for number, case in enumerate(cases):
        verdict = judge(seat, case)
        pipe.send((transport, number, verdict))
        if verdict.raised:
            dist.barrier()  # raises when that failure was the group's end
