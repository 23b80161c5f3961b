"""`python -m ringdp.elastic.supervisor RANKS MIN_RANKS REPLACEMENTS COMMAND ...`: the ranks of one host, which may die.

torchrun starts it in the place of the ranks. It keeps the store of the worlds, starts a process per rank and knows by
waitpid which of them end. Once a training has begun, and while at least MIN_RANKS live or are coming, it publishes the
world without those that have ended, and starts another process for each that was lost, REPLACEMENTS in all. Such a
process begins in a world of its own, and joins the others when it asks to (training.py).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

import torch.distributed as dist

from ringdp.elastic.member import VARIABLE
from ringdp.elastic.worlds import Request, World, Worlds
from ringdp.text.units import counted, names

_LOOK_S = 0.02  # between two looks for requests
_LOOK_AT_PROCESSES_S = 0.2
_MOST_PASSED_S = 1.0  # between two of these looks
_GRACE_S = 30.0  # between SIGTERM and SIGKILL
_PR_SET_PDEATHSIG = 1


@dataclass
class _Process:
    """member: its number. slot: its local rank. pidfd: readable once it has ended. stopped_s: since it was stopped."""

    member: int
    slot: int
    popen: subprocess.Popen[bytes]
    pidfd: int
    in_world: bool
    is_killed: bool = False  # by the supervisor
    stopped_s: float = 0.0


class Supervisor:
    """Of the ranks of one job on one host.

    command: how a rank is started. place: "<host>:<port>" of the store of `worlds`.
    """

    def __init__(
        self, ranks: int, min_ranks: int, replacements: int, command: Sequence[str], worlds: Worlds, place: str
    ) -> None:
        self._ranks, self._min_ranks, self._replacements = ranks, min_ranks, replacements
        self._command, self._worlds, self._place = list(command), worlds, place
        self._processes: dict[int, _Process] = {}
        self._next_member = ranks
        self._answered = 0
        self._stopped_by: int | None = None
        self._why = ""  # the job ends
        self._poll = select.poll()
        self._looked_at = time.monotonic()

    def run(self) -> int:
        """Until all have ended. 0 where the last ones have ended well; 1, or 128 + a signal, otherwise."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._worlds.begin(range(self._ranks), self._min_ranks)
        try:
            for member in range(self._ranks):
                self._start(member, slot=member, in_world=True)
            self._watch()
            if self._why:
                self._say(self._why)
        finally:
            self._end_all()
        if self._stopped_by is not None:
            return 128 + self._stopped_by
        return 1 if self._why else 0

    def _stop(self, number: int, _: FrameType | None) -> None:
        self._stopped_by = number

    def _watch(self) -> None:
        while self._processes and not self._why:
            self._poll.poll(1000 * _LOOK_S)
            if self._stopped_by is not None:
                return
            ended = [process for process in self._processes.values() if process.popen.poll() is not None]
            if ended:
                self._bury(ended)
            self._answer(self._worlds.requests()[self._answered :])
            if (passed := time.monotonic() - self._looked_at) > _LOOK_AT_PROCESSES_S:
                self._looked_at += passed
                self._look_at_processes(passed)

    def _start(self, member: int, slot: int, *, in_world: bool) -> None:
        """A newcomer begins as the only rank of a group with a store of its own."""
        environment = dict(os.environ)
        place = {"RANK": member, "WORLD_SIZE": self._ranks} if in_world else {"RANK": 0, "WORLD_SIZE": 1}
        place |= {f"ROLE_{name}": value for name, value in place.items()}
        place |= {"LOCAL_RANK": slot, "LOCAL_WORLD_SIZE": self._ranks, VARIABLE: f"{member}@{self._place}"}
        if not in_world:
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0, "TORCHELASTIC_USE_AGENT_STORE": False}
        environment.update({name: str(value) for name, value in place.items()})
        popen = subprocess.Popen(self._command, env=environment, preexec_fn=_child_of(os.getpid()))
        pidfd = os.pidfd_open(popen.pid)
        self._poll.register(pidfd, select.POLLIN)
        self._processes[member] = _Process(member, slot, popen, pidfd, in_world)

    def _bury(self, ended: Sequence[_Process]) -> None:
        """The world goes on without these, and others are started for those that were lost."""
        for process in ended:
            self._poll.unregister(process.pidfd)
            os.close(process.pidfd)
            del self._processes[process.member]
        world = self._worlds.current()
        lost = [process for process in ended if process.popen.returncode != 0]
        if world.is_closed:  # others are not needed any more
            lost = [process for process in lost if process.member in world.members]
        for process in lost:
            self._say(f"member {process.member} (pid {process.popen.pid}) {_how(process.popen.returncode)}")
        coming = min(len(lost), self._replacements)
        if lost:
            self._why = self._reason_to_end(lost, world, coming)
        if self._why or world.is_closed:
            return
        self._expect(coming)
        if any(process.in_world for process in ended):
            self._publish()
        self._replacements -= coming
        for process in lost[:coming]:
            self._start(self._next_member, process.slot, in_world=False)
            self._next_member += 1

    def _reason_to_end(self, lost: Sequence[_Process], world: World, coming: int) -> str:
        """'' where the job goes on without these."""
        members = names((process.member for process in lost), "member")
        left = sum(process.in_world for process in self._processes.values())
        if world.is_closed:
            return f"{members} failed after the training: the job ends"
        if not self._worlds.is_training():
            return f"{members} failed before the training: the job ends"
        if left == 0 and any(process.popen.returncode > 0 for process in lost):
            return f"{members} failed as the last of the training, by an error of the program: the job ends"
        if len(self._processes) + coming < self._min_ranks:
            there = counted(len(self._processes), "rank")
            return f"{there} left and no replacement, fewer than --min-ranks {self._min_ranks}: the job ends"
        return ""

    def _expect(self, starting: int = 0) -> None:
        self._worlds.expect(starting + sum(not process.in_world for process in self._processes.values()))

    def _publish(self) -> World:
        return self._worlds.publish([process.member for process in self._processes.values() if process.in_world])

    def _answer(self, requests: Sequence[Request]) -> None:
        self._answered += len(requests)
        for request in requests:
            process = self._processes.get(request.member)
            if process is None or self._worlds.current().is_closed:
                continue  # it has ended, or may end as it likes
            if request.what == "replace":
                self._kill(process, f"member {request.member} {request.why}: it is killed")
            elif request.what == "leave":
                process.in_world = False
                self._publish()
            elif not process.in_world:
                process.in_world = True
                process.in_world = process.member in self._publish().members
                self._expect()

    def _look_at_processes(self, passed: float) -> None:
        """Kills ranks that are stopped, by a signal or a debugger, for too long; and those that can join no more."""
        is_closed = self._worlds.current().is_closed
        for process in self._processes.values():
            if is_closed and not process.in_world:
                self._kill(process)
            elif is_closed or not self._worlds.is_training() or not _is_stopped(process.popen.pid):
                process.stopped_s = 0.0
            else:
                patience, name = self._worlds.patience(), f"member {process.member} (pid {process.popen.pid})"
                if process.stopped_s == 0.0:
                    self._say(f"{name} is stopped: it is waited for, {patience:g} s")
                process.stopped_s += min(passed, _MOST_PASSED_S)  # not while this process was stopped, too
                if process.stopped_s > patience:
                    self._kill(process, f"{name} was stopped for {patience:g} s: it is killed")

    def _kill(self, process: _Process, why: str = "") -> None:
        if not process.is_killed:
            process.is_killed = True
            process.popen.kill()
            if why:
                self._say(why)

    def _end_all(self) -> None:
        for process in self._processes.values():
            process.popen.send_signal(signal.SIGTERM)
        until = time.monotonic() + _GRACE_S
        for process in self._processes.values():
            try:
                process.popen.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
            os.close(process.pidfd)
        self._processes.clear()

    @staticmethod
    def _say(text: str) -> None:
        print(f"ringdp run: {text}", file=sys.stderr, flush=True)


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False  # it has ended


def _how(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"has ended with status {status}"


def _child_of(parent: int) -> Callable[[], None]:
    """Before exec in a child: only its parent signals it, and it is killed when that dies."""
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork

    def arrange() -> None:
        os.setpgid(0, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return arrange


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    ranks, min_ranks, replacements = map(int, arguments[:3])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    if ranks > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does for several ranks
    place = f"127.0.0.1:{store.port}"
    return Supervisor(ranks, min_ranks, replacements, arguments[3:], Worlds(store), place).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
