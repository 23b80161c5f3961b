"""What commands that watch a user's job share: the command after --, and the folder of its records."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ringdp.attach.assignment import Assignment
from ringdp.attach.rank_file import SUFFIX

_NOT_WATCHED = (
    "no rank has written anything: ringdp must be installed in the Python that runs the job, "
    "and TORCH_DEVICE_BACKEND_AUTOLOAD must not be 0"
)


def add_command_line(parser: argparse.ArgumentParser) -> None:
    """`-- torchrun ... train.py`, which main() has split off."""
    parser.add_argument("job", nargs="*", metavar="-- COMMAND", help="e.g. torchrun ... train.py")
    parser.set_defaults(runs_command=True)


def job_of(options: argparse.Namespace) -> list[str]:
    """The command after --. ValueError when something stands before it."""
    if options.job:
        raise ValueError(
            f"'{options.job[0]}': put -- before the command that starts your job: -- torchrun ... train.py"
        )
    return list(options.command)


@contextmanager
def assignment_in(folder: str | None, tool: str) -> Iterator[Assignment]:
    """In a folder that is kept, or in one that is gone afterwards. OSError when it cannot be made."""
    if folder is None:
        with TemporaryDirectory(prefix=f"ringdp-{tool}-") as private:
            yield Assignment(tool, Path(private))
    else:
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield Assignment(tool, Path(folder).resolve())


def no_records(assignment: Assignment, nothing: str) -> str:
    """Why no rank has written anything: nobody watched, or what is watched never happened, which `nothing` says."""
    return nothing if assignment.attached else _NOT_WATCHED


def refuse_old_records(folder: Path) -> None:
    """ValueError where an earlier job has left its records: the two would be taken for one."""
    if any(folder.glob(f"*{SUFFIX}")):
        raise ValueError(f"--records {folder} holds the records of an earlier job: name another folder, or empty it")
