#!/usr/bin/env python3
"""What a rank holds and sends at every ZeRO stage, compared with formulas; and that parameters end with equal bits.

    python benchmarks/zero_memory.py                      # float32, 4 ranks
    python benchmarks/zero_memory.py --dtype bf16         # bfloat16 with a float32 master
    python benchmarks/zero_memory.py --micro-batches 4    # four averaged backward passes per step

Every stage trains the same MLP with AdamW twice: over shared memory, where memory is measured, and over TCP, where
bytes on links are counted (through shared memory nothing is sent). Memory: the growth of Pss since before the model was
built, at its peak during training, as the kernel tells it every 20 ms and at the end of every phase of a step, on the
rank that has most, in bytes per parameter. Then memory()'s own account by kind (at stage 0 without the state, which is
torch's AdamW's). `sent`: payload per step and rank.

The status is 0 only when three things are right together at every stage: memory within --slack of the formula, the
buffers that memory() names and one layer's gradient; bytes sent equal to their formula; and the hash of the parameters
that of the first stage. (With several micro-batches, all of them averaged, stages 0 and 1 average again what has added
up in .grad, where 2 and 3 add up averages: each pair has its own bits then. no_sync() would give all four the same.)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from runner.job import run_job
from runner.program import Chart, add_outputs, check_least, check_outputs, head, publish
from sharding.memory import Row, Sampler, row_of
from sharding.stages import BF16, FP32

# Freed blocks go back to the kernel, so that what is measured is what is held.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="0,1,2,3", help="of 0, 1, 2, 3, separated by commas (default: all)")
    parser.add_argument("--dtype", choices=(FP32, BF16), default=FP32)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--slack", type=float, default=1.03)
    add_outputs(parser, "rows, settings and machine as JSON", "a bar per stage")
    options = parser.parse_args(arguments)
    if not set(options.stages.split(",")) <= {"0", "1", "2", "3"}:
        parser.error(f"--stages is {options.stages!r}, must be of 0, 1, 2, 3, separated by commas")
    options.stages = [int(word) for word in options.stages.split(",")]
    check_least(parser, options, ranks=2, layers=1, width=1, steps=1, micro_batches=1, slack=1)
    check_outputs(parser, options)
    return options


def measured(job: dict[str, Any], ranks: int) -> Row:
    """One stage, both ways. RuntimeError with a rank's last words."""
    with Sampler() as sampler:
        shared = run_job("sharding.memory_rank", job, ranks, variables=MALLOC, started=sampler.start)
    linked = run_job("sharding.memory_rank", job, ranks, variables={"RINGDP_TRANSPORT": "tcp"})
    return row_of(job, job["layers"] * job["width"] ** 2, shared, sampler, linked)


def line(row: Row) -> str:
    """A line of the table."""
    phases = "".join(f"{value:>9.2f}" for value in row.phases.values())
    sent = f"{row.sent / 1e6:>10.1f}{row.sent_formula / 1e6:>10.1f}"
    return f"{row.stage:>5}{row.measured:>10.2f}{row.formula:>9.2f}{row.ratio:>7.3f}{phases}{sent}  {row.digest[:12]}"


def expected_digest(row: Row, rows: Sequence[Row], micro_batches: int) -> str:
    """That of the first stage, or of the first that adds up its micro-batches as this one does."""
    comparable = [other for other in rows if micro_batches == 1 or (other.stage >= 2) == (row.stage >= 2)]
    return comparable[0].digest


def main() -> int:
    """The exit status."""
    options = parse()
    names = ("dtype", "layers", "width", "steps", "micro_batches")
    millions = options.layers * options.width**2 / 1e6
    title = f"AdamW of {millions:.1f} M parameters in {options.dtype}, {options.ranks} ranks"
    facts = head(title)
    rows: list[Row] = []
    print("stage  measured  formula  ratio  forward backward     step   sent MB   formula  parameters")
    for stage in options.stages:
        job = {"backend": "ringdp", "stage": stage, **{name: getattr(options, name) for name in names}}
        try:
            rows.append(measured(job, options.ranks))
        except RuntimeError as problem:
            print(f"zero_memory: stage {stage}: {problem}", file=sys.stderr)
            return 1
        print(line(rows[-1]), flush=True)
    print("what memory() says, bytes per parameter:")
    for row in rows:
        print(f"{row.stage:>5}  " + ", ".join(f"{kind} {size:.2f}" for kind, size in row.account.items()))
    digests = [expected_digest(row, rows, options.micro_batches) for row in rows]
    wrong = [
        f"stage {row.stage}: {said}"
        for row, digest in zip(rows, digests, strict=True)
        for said in row.wrong(options.slack, digest)
    ]
    print("\n".join(wrong) or "memory, bytes sent and bits are right at every stage")
    options.check = False
    chart = Chart({f"ringdp stage {row.stage}": row.measured for row in rows}, "bytes per parameter")
    publish(options, title, facts, [{**asdict(row), "ratio": row.ratio} for row in rows], [], chart)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
