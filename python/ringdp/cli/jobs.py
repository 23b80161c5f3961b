"""What commands that run a user's job share: the command after --, the folder of its records or traces."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from ringdp.tools.attach import job
from ringdp.tools.attach.assignment import Assignment
from ringdp.tools.attach.records import SUFFIX
from ringdp.tools.observe.traces import TraceError

_NOT_WATCHED = (
    "no rank has written anything: ringdp must be installed in the Python that runs the job, "
    "and TORCH_DEVICE_BACKEND_AUTOLOAD must not be 0"
)


def add_watching_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], *, help: str, epilog: str
) -> argparse.ArgumentParser:
    """Adds a command that watches a job: `-- torchrun ... train.py`, which main() has split off, and --records."""
    command = commands.add_parser(
        name,
        usage=f"ringdp {name} [options] -- COMMAND",
        help=help,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("job", nargs="*", metavar="-- COMMAND", help="e.g. torchrun ... train.py")
    command.add_argument("--records", metavar="FOLDER", help="keep the ranks' records there")
    command.set_defaults(run=run, runs_command=True)
    return command


def job_of(options: argparse.Namespace) -> list[str]:
    """The command after --. ValueError when something stands before it."""
    if options.job:
        raise ValueError(
            f"'{options.job[0]}': put -- before the command that starts your job: -- torchrun ... train.py"
        )
    return list(options.command)


@contextmanager
def assignment_in(folder: str | None, tool: str) -> Iterator[Assignment]:
    """An assignment in a folder that is kept, or in one that is gone afterwards. OSError when it cannot be made."""
    if folder is None:
        with TemporaryDirectory(prefix=f"ringdp-{tool}-") as private:
            yield Assignment(tool, Path(private))
    else:
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield Assignment(tool, Path(folder).resolve())


def no_records(assignment: Assignment, nothing: str) -> str:
    """Why no rank has written anything: ringdp was not loaded, or what it watches never happened (`nothing`)."""
    return nothing if assignment.attached else _NOT_WATCHED


def refuse_old_records(folder: Path) -> None:
    """ValueError where an earlier job has left its records: the two would be taken for one."""
    if any(folder.glob(f"*{SUFFIX}")):
        raise ValueError(f"--records {folder} holds the records of an earlier job: name another folder, or empty it")


_DEFAULT = "ringdp-trace"  # the first run's, here; those after it have ringdp-trace-2, ringdp-trace-3, ...


def add_traces_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], *, help: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    """Adds a command that reads the traces in FOLDER, which a job fills that may follow; with --json."""
    command = commands.add_parser(
        name,
        help=help,
        usage="%(prog)s [options] [FOLDER] [-- COMMAND ...]",
        description=f"{description}; with a command, runs it first.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "folder",
        nargs="?",
        metavar="FOLDER",
        type=Path,
        help=f"what RINGDP_TRACE named (default: {_DEFAULT}, or the latest {_DEFAULT}-N; a command fills the next one)",
    )
    command.add_argument("--json", action="store_true", help="print JSON; the command's output goes to stderr")
    command.set_defaults(run=run, runs_command=True)
    return command


def status_of_command(options: argparse.Namespace) -> int:
    """Runs what stands behind `--`, traced; 0 if nothing does. TraceError as run_traced(). Sets options.folder.

    With --json the command's output goes to stderr: stdout has one JSON object.
    """
    if options.folder is None:
        number = _latest() + bool(options.command)
        options.folder = Path(_DEFAULT if number < 2 else f"{_DEFAULT}-{number}")
    if not options.command:
        return 0
    return run_traced(options.command, options.folder, sys.stderr if options.json else None)


def _latest() -> int:
    """The number of the latest default folder that holds traces; 0 where none does."""
    names = {folder: re.fullmatch(rf"{_DEFAULT}(?:-(\d+))?", folder.name) for folder in Path().glob(f"{_DEFAULT}*")}
    return max((int(name[1] or 1) for folder, name in names.items() if name and any(folder.glob("rank_*"))), default=0)


VARIABLE = "RINGDP_TRACE"


def run_traced(command: Sequence[str], folder: Path, output: IO[Any] | None = None) -> int:
    """Runs it to its end; its exit status, as a shell has it. output: where its standard output goes, see job.run().

    TraceError: it cannot be started, the folder cannot be made, or old traces lie there.
    """
    if folder.is_dir() and any(folder.glob("rank_*")):
        raise TraceError(f"{folder} holds traces of an earlier run: name another FOLDER, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"{folder} is not a folder for traces: {error.strerror}") from None
    try:
        return job.run(command, {VARIABLE: str(folder.resolve())}, output=output).status
    except OSError as error:
        raise TraceError(f"cannot run {command[0]}: {error.strerror}") from None
