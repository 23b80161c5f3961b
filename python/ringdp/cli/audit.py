"""`ringdp audit -- torchrun ... train.py`: which samples each rank of a job draws, and what is wrong with that."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from ringdp.cli.arguments import positive
from ringdp.cli.jobs import add_watching_command, assignment_in, job_of, no_records, refuse_old_records
from ringdp.text.units import counted
from ringdp.tools.attach import job
from ringdp.tools.attach.assignment import Assignment
from ringdp.tools.attach.finding import problems
from ringdp.tools.attach.records import RankRecords, Reader

_EPOCHS = 3
_NOTHING = (
    "no rank has iterated a DataLoader or a DistributedSampler, so there is nothing to audit: batches that a script "
    "makes in other ways are not seen"
)
_EXAMPLE = """example:
  ringdp audit --fail --png feed.png -- torchrun --nproc-per-node 8 train.py

Every DataLoader and DistributedSampler of every rank is written down; the script stays as it is. Loaders
between whose draws no backward pass comes (validation) are not judged; samples without indices (streams,
in_order=False) are told apart by their bytes. With micro_batches=M the leaves of every step are judged, too:
each is run once, by one rank, with the same seed, on the samples that a ringdp.elastic.Leaves gives it.
Without a command, the records in --records are judged: those of several hosts can be brought together in
one folder.
status: the job's (128 + n where signal n ended it); 1 with --fail where there is a problem; 2 where the
audit could not be made."""


def add_command(commands: Any) -> None:
    """Adds `audit` to argparse's sub-commands."""
    command = add_watching_command(
        commands, "audit", run, help="find duplicate, missing and stale samples in a job's data feed", epilog=_EXAMPLE
    )
    command.add_argument("--fail", action="store_true", help="end the job at the first problem; status 1")
    command.add_argument("--steps", type=positive(int), metavar="N", help="end the job after N batches of each rank")
    command.add_argument("--epochs", type=positive(int), metavar="N", help=f"how many to note ({_EPOCHS})")
    command.add_argument("--png", metavar="FILE", help="draw which rank drew which sample")
    command.add_argument("--json", action="store_true", help="print one JSON object; the job's output goes to stderr")


def run(options: argparse.Namespace) -> int:
    """See the status in the command's help."""
    try:
        command = job_of(options)
        _check(options, command)
        with assignment_in(options.records, "audit") as assignment:
            return _audit(options, command, assignment)
    except (ValueError, OSError, ImportError) as error:
        print(f"ringdp audit: {error}", file=sys.stderr)
        return 2


def _check(options: argparse.Namespace, command: list[str]) -> None:
    from ringdp.tools.feed.picture import has_matplotlib

    if not command and options.records is None:
        raise ValueError("no command: ringdp audit -- torchrun --nproc-per-node 8 train.py")
    if not command and not Path(options.records).is_dir():
        raise ValueError(f"--records {options.records}: no such folder, and no command to make records with")
    for name in ("steps", "epochs"):
        if not command and getattr(options, name):
            raise ValueError(f"--{name} is for a job that is run: leave it out, or put -- COMMAND behind")
    if options.png and not has_matplotlib():
        raise ValueError("--png needs matplotlib: pip install matplotlib")
    if options.png and not Path(options.png).resolve().parent.is_dir():
        raise ValueError(f"--png {options.png}: its folder does not exist")


def _audit(options: argparse.Namespace, command: list[str], assignment: Assignment) -> int:
    from ringdp.tools.feed.judge import judge, show

    reader = Reader(assignment.folder)
    ended = job.Ended(0)
    if command:
        refuse_old_records(assignment.folder)
        assignment.write_options({"epochs": options.epochs or _EPOCHS})
        watch = _Watch(reader, options.fail, options.steps)
        try:
            ended = job.run(command, assignment.environment, watch.tick, sys.stderr if options.json else None)
        except KeyboardInterrupt:
            if not reader.read():
                raise
            ended = job.Ended(128 + signal.SIGINT)  # what was seen until then is shown
    ranks = reader.read()
    if not ranks:
        raise ValueError(no_records(assignment, _NOTHING))
    try:
        report = judge(ranks)
        if options.png:
            _draw(ranks, Path(options.png))
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        if command:
            raise  # ringdp has written these records itself
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"--records {options.records} holds no records of `ringdp audit` ({what})") from error
    if options.json:
        print(json.dumps({**report.as_dict(), "status": ended.status, "stopped": ended.stopped}))
    else:
        if ended.stopped:
            print(f"ringdp audit ended the job: {ended.stopped}")
        show(report)
    if options.fail and problems(report.findings):
        return 1
    return 0 if ended.stopped else ended.status


def _draw(ranks: dict[int, RankRecords], path: Path) -> None:
    from ringdp.tools.feed.picture import coverages, draw

    pictures = coverages(ranks)
    if not pictures:
        print(f"ringdp audit: no {path}: no rank has drawn a sample", file=sys.stderr)
        return
    draw(pictures, path)


class _Watch:
    """Looks at the records of a job that runs, whenever there are half as many again."""

    def __init__(self, reader: Reader, fail: bool, steps: int | None) -> None:
        self._reader = reader
        self._fail = fail
        self._steps = steps
        self._next = 1

    def tick(self) -> str:
        """Why to end the job now; '' for no reason."""
        ranks = self._reader.read() if self._fail or self._steps else {}
        lines = sum(records.lines for records in ranks.values())
        if self._fail and lines >= self._next and ranks:
            self._next = lines + lines // 2
            from ringdp.tools.feed.judge import judge

            if found := problems(judge(ranks).findings):
                return f"{found[0].check} was found"
        if self._steps and ranks and self._all_drew(ranks):
            return f"every rank has drawn {counted(self._steps, 'batch')}"
        return ""

    def _all_drew(self, ranks: dict[int, RankRecords]) -> bool:
        world = next(iter(ranks.values())).header["world"]
        return len(ranks) == world and all(len(r.of("batch")) >= (self._steps or 0) for r in ranks.values())
