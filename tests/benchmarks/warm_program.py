"""Runs a program of benchmarks/ whose ranks are forked off its own process: warm_program.py's main(PROGRAM, ...).

It starts them as `python -m module`; they have imported torch already. What it starts otherwise is started as ever.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import traceback
from typing import Any

import torch


class ForkedPopen(subprocess.Popen[bytes]):
    """subprocess.Popen, but for `python -m`."""

    def __init__(self, command: list[str], start_new_session: bool = False, **settings: Any) -> None:
        self._detached = start_new_session
        super().__init__(command, start_new_session=start_new_session, **settings)

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        if args[:2] != [sys.executable, "-m"]:
            return super()._execute_child(args, *rest)
        environment, (stdin, _, _, stdout, _, stderr) = rest[5], rest[9:15]
        self.pid = os.fork()
        if self.pid:
            self._child_created = True
            self._close_pipe_fds(*rest[9:15])
            return None
        if self._detached:
            os.setsid()
        for number, descriptor in enumerate((stdin, stdout, stderr)):
            if descriptor != -1:
                os.dup2(descriptor, number)
        status = 1
        try:
            become(args[2:], environment)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:  # without what the program itself does at its end
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def become(arguments: list[str], environment: dict[str, str] | None) -> None:
    """In a fresh process: the module is run as the interpreter would."""
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    sys.path[1:1] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def main() -> None:
    """sys.argv: the program's path and its arguments."""
    subprocess.Popen = ForkedPopen  # type: ignore[misc]
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
