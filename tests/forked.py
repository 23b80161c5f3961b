"""Programs in processes forked off the warm interpreter that ranks come from: torch need not be imported again.

    done = run_forked("-m", "ringdp", "info", env=os.environ)   # or "-c", code, ... or a script's path, ...

Its result is subprocess.run's. What happens while torch or ringdp is imported has happened before the program's
environment was there, so a test of that starts an interpreter of its own. What the program starts is not forked.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import NoReturn

import torch
from ranks import spawner

ROOT = Path(__file__).resolve().parents[1]
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_REC, MS_SLAVE, MNT_DETACH = 0x4000, 0x80000, 2


def without_settings(**variables: str) -> dict[str, str]:
    """This process's environment without ringdp's settings, and with these variables."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("RINGDP_")}, **variables}


class Program:
    """A program that runs, in a session of its own; what it prints goes to the ends of these files.

    host: the network namespace it runs in, as of `ip netns exec`. It is used as a subprocess.Popen is.
    """

    def __init__(
        self, arguments: Sequence[str], env: Mapping[str, str], stdout: Path, stderr: Path, host: str = ""
    ) -> None:
        self.args = list(arguments)
        given = (tuple(arguments), dict(env), os.getcwd(), [str(stdout), str(stderr)], host)
        self._process = spawner.Process(target=_program, args=given)
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its status; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its status when it has ended; TimeoutExpired when it has not by then."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired(self.args, timeout or 0)
        return self._process.exitcode

    def kill(self) -> None:
        """Ends it and what it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()


def run_forked(*arguments: str, env: Mapping[str, str], timeout_s: float = 120.0) -> CompletedProcess[str]:
    """Its end, with all that it printed. TimeoutExpired when it has none, and then it is killed."""
    with tempfile.TemporaryDirectory(prefix="program-") as folder:
        files = [Path(folder, name) for name in ("stdout", "stderr")]
        program = Program(arguments, env, *files)
        with suppress(TimeoutExpired):
            program.wait(timeout_s)
        status = program.poll()
        if status is None:
            program.kill()
        printed, errors = (file.read_text(errors="replace") if file.exists() else "" for file in files)
        if status is None:
            raise TimeoutExpired([*arguments], timeout_s, printed.encode(), errors.encode())
        return CompletedProcess([*arguments], status, printed, errors)


def _program(arguments: tuple[str, ...], env: dict[str, str], folder: str, files: list[str], host: str) -> None:
    os.setsid()
    for number, file in enumerate(files, start=1):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    if host:
        _enter(host)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    if "OMP_NUM_THREADS" in env:
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))  # read from there at the import
    _forget_the_server()
    end_interpreter(_status_of(arguments))


def end_interpreter(status: int) -> NoReturn:
    """What an interpreter does at its end, in a process that was forked off another."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _enter(host: str) -> None:
    """As ip-netns(8): the network namespace, and a /sys that shows its interfaces."""
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(status: int) -> None:
        if status != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), host)

    with open(f"/run/netns/{host}") as namespace:
        checked(libc.setns(namespace.fileno(), CLONE_NEWNET))
    checked(libc.unshare(CLONE_NEWNS))
    checked(libc.mount(b"", b"/", b"none", ctypes.c_ulong(MS_SLAVE | MS_REC), None))
    checked(libc.umount2(b"/sys", MNT_DETACH))
    checked(libc.mount(host.encode(), b"/sys", b"sysfs", ctypes.c_ulong(0), None))


def _forget_the_server() -> None:
    """The program may start a server of its own, by any method: ours has another environment."""
    server = forkserver._forkserver
    os.close(server._forkserver_alive_fd)
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None
    multiprocessing.set_start_method(None, force=True)


def _status_of(arguments: tuple[str, ...]) -> int:
    """Runs it as the interpreter would; its exit status."""
    try:
        _run(arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _run(arguments: tuple[str, ...]) -> None:
    kind, *rest = arguments
    handed_on = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    # Without the helpers of tests, which a user's interpreter would not find either.
    ours = (ROOT, ROOT / "benchmarks", ROOT / "tests")
    own = [p for p in sys.path if Path(p).resolve() not in ours and ours[-1] not in Path(p).resolve().parents]
    first = {"-c": "", "-m": os.getcwd()}.get(kind, str(Path(kind).resolve().parent))
    sys.path[:] = [first, *handed_on, *own]
    if kind == "-c":
        code, *sys.argv[1:] = rest
        sys.argv[0] = "-c"
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        runpy.run_path(kind, run_name="__main__")
