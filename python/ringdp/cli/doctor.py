"""`ringdp doctor -- torchrun ... train.py`: a short run of a job, and what is wrong with it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ringdp.cli.arguments import positive
from ringdp.cli.jobs import add_watching_command, assignment_in, job_of, no_records, refuse_old_records

_NOTHING = "no rank has drawn from a DataLoader, called a collective or stepped an optimizer: nothing to examine"
_EXAMPLE = """example:
  ringdp doctor --base-lr 0.1 --base-batch 256 -- torchrun --nproc-per-node 8 train.py

The script stays as it is; it is stopped after --steps optimizer steps, so let it write no checkpoints you
need. Looked at: errors and hangs, the order of collectives, layers that run on some ranks only, replicas
that drift apart, gradients that nothing averages, the data feed, equal work, dropout masks, kernels that
do not repeat their bits, the learning rate, overlap, stragglers and links, threads and cores, ranks of a
host that share no memory. Works over any backend, with torch's wrapper, ringdp's or none.
status: 0 where nothing was found, 1 where something was, 2 where the job could not be examined."""


def add_command(commands: Any) -> None:
    """Adds `doctor` to argparse's sub-commands."""
    command = add_watching_command(
        commands, "doctor", run, help="run a job for some steps and say what is wrong with it", epilog=_EXAMPLE
    )
    command.add_argument("--steps", type=positive(int), default=30, metavar="N", help="optimizer steps (default 30)")
    command.add_argument("--base-lr", type=positive(float), metavar="LR", help="a rate that is known to be good")
    command.add_argument("--base-batch", type=positive(int), metavar="B", help="the global batch size of that rate")
    command.add_argument(
        "--timeout", type=positive(float), default=60.0, metavar="S", help="a standstill of so long is a hang (60)"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """See the status in the command's help."""
    try:
        command = job_of(options)
        if not command:
            raise ValueError("no command: ringdp doctor -- torchrun --nproc-per-node 8 train.py")
        if (options.base_lr is None) != (options.base_batch is None):
            raise ValueError("--base-lr and --base-batch belong together: give both")
        with assignment_in(options.records, "doctor") as assignment:
            return _examine(options, command, assignment)
    except (ValueError, OSError, ImportError) as error:
        print(f"ringdp doctor: {error}", file=sys.stderr)
        return 2


def _examine(options: argparse.Namespace, command: list[str], assignment: Any) -> int:
    from ringdp.tools.doctor.evidence import Baseline
    from ringdp.tools.doctor.judge import diagnose, show
    from ringdp.tools.doctor.run import OUTPUT, examine, last_lines

    refuse_old_records(assignment.folder)
    baseline = None if options.base_lr is None else Baseline(options.base_lr, options.base_batch)
    evidence = examine(command, assignment, options.steps, options.timeout, baseline)
    if evidence.status and not evidence.stopped:
        output = (assignment.folder / OUTPUT).read_text(errors="replace")
        print("\n".join(last_lines(output)), file=sys.stderr)
    if not evidence.ranks:
        ended = f"ended with status {evidence.status}" if not evidence.stopped else evidence.stopped
        raise ValueError(f"{no_records(assignment, _NOTHING)} (the job: {ended})")
    diagnosis = diagnose(evidence)
    if options.json:
        print(json.dumps({**diagnosis.as_dict(), "status": evidence.status, "stopped": evidence.stopped}))
    else:
        show(diagnosis)
    return 1 if diagnosis.findings else 0
