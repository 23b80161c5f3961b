#!/usr/bin/env python3
"""Are the planner's predictions true? Step time and memory of N hosts on shaped links, predicted, then measured (root).

    python benchmarks/planner.py                             # 2, 4 and 8 hosts at 0.5, 1 and 2 Gb/s
    python benchmarks/planner.py --ranks 2,4 --rates 1 --model gpt --micro-batch 8

Every rank is a network namespace of this machine with a link of its own; ranks beyond the cores take turns on them. The
machine is calibrated once, on two hosts and the first of --rates. All predictions are printed, and written to --json,
before the first run that they are about. step: median on the slowest rank, with overlap. memory: of the largest rank
at its peak, without programs' code; also of what the calibration has not seen: another batch, ZeRO stages 1 to 3,
another model. --check: status 1 when a step is more than 15 % or memory more than 3 % off. What --calibration writes,
`ringdp plan predict` reads.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from predictions import (
    MEMORY_HEAD,
    STEP_HEAD,
    MemoryRow,
    Row,
    case,
    draw,
    link_bytes,
    predicted_memory,
    predicted_steps,
    with_measured,
    with_peak,
)
from ringdp.tools.planner.calibration import Calibration
from ringdp.tools.planner.local_ranks import MALLOC, MODULE, ProbeJob
from ringdp.tools.planner.measured import cores
from ringdp.tools.planner.prediction import calibrated
from ringdp.tools.planner.question import InputError
from runner import machine
from runner.job import run_job
from runner.program import add_outputs, check_least, check_outputs, listed, write

UNSEEN = "mlp/2048/0,mlp/512/1,mlp/512/2,mlp/512/3,gpt/8/0"
SIZES = (4 << 10, 256 << 10, 2 << 20, 8 << 20)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=listed(int), default=[2, 4, 8], help="numbers of hosts, one rank each")
    parser.add_argument("--rates", type=listed(float), default=[1.0, 0.5, 2.0], help="Gb/s; the first calibrates")
    parser.add_argument("--model", default="mlp", help="gpt, mlp, or module:function that returns a ringdp.Workload")
    parser.add_argument("--micro-batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=12, help="at most, in each run")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the steps of a run, at most")
    parser.add_argument("--bucket-mb", type=float, default=2.0)
    text = "whose memory is predicted too: MODEL/MICRO-BATCH/STAGE of ZeRO, separated by commas"
    parser.add_argument("--unseen", type=listed(case), default=UNSEEN, metavar="CASES", help=text)
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="write it, for `ringdp plan predict`")
    parser.add_argument("--check", action="store_true", help="status 1 when a bar is not held")
    add_outputs(parser, "predictions, and then rows, settings and machine as JSON", "bars, predicted and measured")
    options = parser.parse_args(arguments)
    check_least(parser, options, micro_batch=1, steps=2)
    if min(options.ranks) < 2 or min(options.rates) <= 0 or options.bucket_mb <= 0 or options.seconds <= 0:
        parser.error("--ranks must be at least 2 each, --rates, --bucket-mb and --seconds above 0")
    check_outputs(parser, options)
    return options


def job_of(options: argparse.Namespace, sizes: tuple[int, ...]) -> ProbeJob:
    """With sizes: for a calibration; without: steps alone."""
    return ProbeJob(
        options.model,
        options.micro_batch,
        options.steps,
        sizes,
        bucket_mb=options.bucket_mb,
        alone=bool(sizes),
        seconds=options.seconds,
    )


def calibrate(options: argparse.Namespace) -> Calibration:
    """On two hosts and the first rate only."""
    job, rate = job_of(options, SIZES), options.rates[0]
    reports = run_job(MODULE, asdict(job), 2, 2, rate, MALLOC)
    return calibrated(reports, job, cores(), link_bytes(rate))


def _reports_of(options: argparse.Namespace, row: MemoryRow) -> list[dict[str, Any]]:
    """The ranks' reports of a few steps, on the first rate."""
    job = replace(job_of(options, ()), workload=row.model, micro_batch=row.micro_batch, zero_stage=row.stage)
    return run_job(MODULE, asdict(replace(job, steps=2)), row.ranks, row.ranks, options.rates[0], MALLOC)


def result_of(
    options: argparse.Namespace,
    facts: dict[str, Any],
    found: Calibration,
    rows: Sequence[Row],
    memory: Sequence[MemoryRow],
) -> dict[str, Any]:
    """The result so far, also to --json."""
    hosts = f"{found.workload}, micro-batch {found.micro_batch}, one rank per host on {found.cores} cores"
    result = {
        "command": shlex.join(["python", *sys.argv]),
        "title": f"{hosts}, calibrated on 2 hosts at {options.rates[0]:g} Gb/s",
        "machine": facts,
        "calibration": asdict(found),
        "rows": [asdict(row) for row in rows],
        "memory_rows": [asdict(row) for row in memory],
    }
    write(options, result)
    return result


def main() -> int:
    """The exit status."""
    options = parse()
    facts = machine.describe()
    try:
        found = calibrate(options)
        if options.calibration:
            found.save(options.calibration)
        rows = predicted_steps(found, options.ranks, options.rates)
        memory = predicted_memory(found, options.unseen, options.ranks[0])
        print(result_of(options, facts, found, rows, memory)["title"])
        print(machine.sentence(facts))
        for row in rows:
            print(row.prediction)
        for row in memory:
            print(f"predicted: {row.name}: memory {row.predicted / 1e6:.1f} MB", flush=True)
        print(STEP_HEAD)
        for number, row in enumerate(rows):
            reports = run_job(MODULE, asdict(job_of(options, ())), row.ranks, row.ranks, row.gigabits, MALLOC)
            rows[number] = with_measured(row, reports)
            print(rows[number], flush=True)
        print(MEMORY_HEAD)
        for number, row in enumerate(memory):
            memory[number] = with_peak(row, _reports_of(options, row))
            print(memory[number], flush=True)
    except (InputError, RuntimeError, ValueError) as problem:
        print(f"planner: {problem}", file=sys.stderr)
        return 1
    wrong = [sentence for row in (*rows, *memory) for sentence in row.wrong]
    print("\n".join(wrong) or "every step is within 15 % and all memory within 3 % of what was predicted")
    result = result_of(options, facts, found, rows, memory)
    if options.plot:
        draw(result, options.plot)
    return int(options.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
