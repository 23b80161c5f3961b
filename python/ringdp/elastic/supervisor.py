"""`python -m ringdp.elastic.supervisor RANKS MIN_RANKS REPLACEMENTS COMMAND ...`: the ranks of one host, which may die.

torchrun starts it in the place of the ranks. It keeps the store of the worlds, starts a process per rank and knows by
waitpid which of them end. Once a training has begun, and while at least MIN_RANKS live or are coming, it publishes the
world without those that have ended, and starts another process for each that it has lost, REPLACEMENTS in all. Such a
process begins in a world of its own, and joins the others when it asks to (world_loop.py).
With several hosts there is one on each (hosts.py); one that comes later starts processes that join.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

import torch.distributed as dist

from ringdp.elastic.hosts import LEFT, Endpoint, HostIsLost, Hosts
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

    command: how a rank is started. place: "<host>:<port>" of the store of `worlds`. hosts: where there are others; the
    first world has begun then.
    """

    def __init__(
        self,
        ranks: int,
        min_ranks: int,
        replacements: int,
        command: Sequence[str],
        worlds: Worlds,
        place: str,
        hosts: Hosts | None = None,
    ) -> None:
        self._ranks, self._min_ranks, self._replacements = ranks, min_ranks, replacements
        self._command, self._worlds, self._place = list(command), worlds, place
        self._hosts, self._host = hosts, 0 if hosts is None else hosts.number
        self._processes: dict[int, _Process] = {}
        self._stopped_by: int | None = None
        self._why = ""  # the job ends
        self._has_lost_all = False  # its ranks, and others go on
        self._poll = select.poll()
        self._memory = -1  # a file without a name, which outlives the ranks
        self._looked_at = time.monotonic()

    def run(self) -> int:
        """Until all have ended. 0 where the last ones have ended well; 1, or 128 + a signal, otherwise."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        if self._hosts is None:
            self._worlds.begin(range(self._ranks), self._min_ranks)
            self._run()
        else:
            self._run_with_others(self._hosts)
        if self._stopped_by is not None:
            return 128 + self._stopped_by
        return 1 if self._why or self._has_lost_all else 0

    def _run(self) -> None:
        try:
            self._start_all()
            self._watch()
            if self._hosts is not None:
                self._tell_others(self._hosts)  # before ranks take their time to end
        finally:
            self._end_all()

    def _run_with_others(self, hosts: Hosts) -> None:
        hosts.end = self.kill_all
        try:
            try:
                self._run()
            except HostIsLost as lost:
                self._say_why(str(lost))
            for host, why in hosts.leave(lambda: self._stopped_by is not None):
                if host == self._host or self._worlds.current().on_host(host):
                    self._say_why(why)
        except dist.DistError as error:
            what = str(error).partition("\n")[0]
            self._say_why(f"the store at {self._place} is gone, and the host that serves it: this host ends ({what})")
        finally:
            hosts.close()

    def _tell_others(self, hosts: Hosts) -> None:
        """How this host has ended, if they have to know."""
        if self._stopped_by is not None and (hosts.serves or not self._worlds.is_training()):
            hosts.end_job(f"was stopped by {signal.Signals(self._stopped_by).name}, and the job ends with it")
        elif self._stopped_by is not None:
            self._worlds.publish([], self._host)  # they go on
        elif self._why:
            hosts.end_job(self._why)

    def _say_why(self, why: str) -> None:
        """Once."""
        if not self._why:
            self._why = why
            self.say(why)

    def _start_all(self) -> None:
        self._memory = os.memfd_create("ringdp-kept")
        self._worlds.lend_memory(f"/proc/{os.getpid()}/fd/{self._memory}", self._host)
        world = self._worlds.current()
        own = world.on_host(self._host)
        for slot, member in enumerate(own):
            self._start(member, slot, world)
        if own or world.is_closed:
            return
        self._expect(self._ranks)  # this host has come later
        for slot in range(self._ranks):
            self._start(self._worlds.new_member(), slot, None)

    def _stop(self, number: int, _: FrameType | None) -> None:
        self._stopped_by = number

    def _watch(self) -> None:
        while self._processes and not self._why:
            self._poll.poll(1000 * _LOOK_S)
            if self._stopped_by is not None:
                return
            if self._hosts is not None:
                self._look_at_hosts()
            ended = [process for process in self._processes.values() if process.popen.poll() is not None]
            if ended:
                self._bury(ended)
            self._answer(self._worlds.requests(self._host))
            if (passed := time.monotonic() - self._looked_at) > _LOOK_AT_PROCESSES_S:
                self._looked_at += passed
                self._look_at_processes(passed)

    def _start(self, member: int, slot: int, world: World | None) -> None:
        """Without a world it begins as the only rank of a group with a store of its own."""
        environment = dict(os.environ)
        place = {"RANK": 0, "WORLD_SIZE": 1}
        if world is not None:
            place = {"RANK": world.members.index(member), "WORLD_SIZE": len(world.members)}
        place |= {f"ROLE_{name}": value for name, value in place.items()}
        place |= {"LOCAL_RANK": slot, "LOCAL_WORLD_SIZE": self._ranks, VARIABLE: f"{member}@{self._place}"}
        if world is None:
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0, "TORCHELASTIC_USE_AGENT_STORE": False}
        elif self._hosts is not None:
            host, _, port = self._place.rpartition(":")
            place |= {"MASTER_ADDR": host, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
        if self._hosts is not None:
            hosts = 1 if world is None else len(set(world.hosts))
            place |= {"GROUP_RANK": self._host, "GROUP_WORLD_SIZE": hosts}
        environment.update({name: str(value) for name, value in place.items()})
        popen = subprocess.Popen(self._command, env=environment, preexec_fn=_child_of(os.getpid()))
        pidfd = os.pidfd_open(popen.pid)
        self._poll.register(pidfd, select.POLLIN)
        self._processes[member] = _Process(member, slot, popen, pidfd, world is not None)

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
            self.say(f"member {process.member} (pid {process.popen.pid}) {_how(process.popen.returncode)}")
        coming = min(len(lost), self._replacements)
        if lost and (why := self._why_failed(lost, world)):
            self._say_why(why)
        if self._why or world.is_closed:
            return
        self._expect(coming)
        if any(process.in_world for process in ended):
            world = self._publish()
        if lost and not world.members and any(process.popen.returncode > 0 for process in lost):
            cause = "as the last of the training, by an error of the program"
            self._say_why(f"{_members(lost)} failed {cause}: the job ends")
        elif lost:
            self._check_enough()
        if self._why:
            return
        self._replacements -= coming
        for process in lost[:coming]:
            self._start(self._worlds.new_member(), process.slot, None)
        if lost and not self._processes:
            self._has_lost_all = True
            self.say(f"no rank is left on host {self._host}, which ends; the others go on")

    def _why_failed(self, lost: Sequence[_Process], world: World) -> str:
        """'' where deaths are survived."""
        if world.is_closed:
            return f"{_members(lost)} failed after the training: the job ends"
        return "" if self._worlds.is_training() else f"{_members(lost)} failed before the training: the job ends"

    def _check_enough(self) -> None:
        """The job ends where members and those that may come are too few."""
        world = None
        while world != (world := self._worlds.current()):  # who joins is in one of both for a moment
            there = len(world.members) + self._worlds.coming()
        if there < self._min_ranks and not world.is_closed:
            left = f"{counted(there, 'rank')} left and no replacement"
            self._say_why(f"{left}, fewer than --min-ranks {self._min_ranks}: the job ends")

    def _look_at_hosts(self) -> None:
        lost = self._hosts.look()
        if lost is None:
            return
        is_training, world = self._worlds.is_training(), self._worlds.current()
        if world.is_closed:
            self._hosts.training_ends()
        elif is_training:
            self._hosts.training_begins()
        for host, why in lost:
            if why != LEFT:
                self.say(why)
            if world.on_host(host) and (world.is_closed or not is_training):
                when = "after" if world.is_closed else "before"
                if why != LEFT or not world.is_closed:
                    self._say_why(f"host {host} was lost {when} the training: the job ends")
        if not self._why and not world.is_closed:
            self._forget(self._hosts.gone(), world)

    def _forget(self, hosts: Sequence[int], world: World) -> None:
        """The world goes on without these; again and again, as a host may write before it learns that it is gone."""
        for host in hosts:
            self._worlds.expect(0, host)
            if world.on_host(host):
                world = self._worlds.publish([], host)
                self._check_enough()

    def _expect(self, starting: int = 0) -> None:
        newcomers = sum(not process.in_world for process in self._processes.values())
        self._worlds.expect(starting + newcomers, self._host)

    def _publish(self) -> World:
        members = [process.member for process in self._processes.values() if process.in_world]
        return self._worlds.publish(members, self._host)

    def _answer(self, requests: Sequence[Request]) -> None:
        """Who leaves and who joins makes one world."""
        changed = []
        for request in requests:
            process = self._processes.get(request.member)
            if process is None or self._worlds.current().is_closed:
                continue  # it has ended, or may end as it likes
            if request.what == "replace":
                self._kill(process, f"member {request.member} {request.why}: it is killed")
            elif request.what == "leave" or not process.in_world:
                process.in_world = request.what == "join"
                changed.append(process)
        if changed:
            members = self._publish().members
            for process in changed:
                process.in_world &= process.member in members  # not if the world was closed meanwhile
            if any(process.in_world for process in changed):
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
                    self.say(f"{name} is stopped: it is waited for, {patience:g} s")
                process.stopped_s += min(passed, _MOST_PASSED_S)  # not while this process was stopped, too
                if process.stopped_s > patience:
                    self._kill(process, f"{name} was stopped for {patience:g} s: it is killed")

    def _kill(self, process: _Process, why: str = "") -> None:
        if not process.is_killed:
            process.is_killed = True
            process.popen.kill()
            if why:
                self.say(why)

    def _end_all(self) -> None:
        for process in self._processes.values():
            process.popen.send_signal(signal.SIGTERM)
        until = time.monotonic() + _GRACE_S
        while any(process.popen.poll() is None for process in self._processes.values()):
            if time.monotonic() > until:
                self.kill_all()
            if self._hosts is not None:
                with suppress(HostIsLost, dist.DistError):
                    self._hosts.attend()
            time.sleep(_LOOK_S)
        for process in self._processes.values():
            os.close(process.pidfd)
        self._processes.clear()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def kill_all(self) -> None:
        """Any thread."""
        for process in [*self._processes.values()]:
            process.popen.kill()

    @staticmethod
    def say(text: str) -> None:
        """On stderr."""
        print(f"ringdp run: {text}", file=sys.stderr, flush=True)


def _members(processes: Sequence[_Process]) -> str:
    return names((process.member for process in processes), "member")


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False  # it has ended


def _how(status: int) -> str:
    if status >= 0:
        return f"has ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # one of those for real time, of which only the first and the last have names
        return f"was killed by signal {-status}"


def _child_of(parent: int) -> Callable[[], None]:
    """Before exec in a child: only its parent signals it, and it is killed when that dies."""
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork

    def arrange() -> None:
        os.setpgid(0, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return arrange


def parser() -> argparse.ArgumentParser:
    """What `ringdp run` writes."""
    made = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", allow_abbrev=False)
    made.add_argument("ranks", type=int, help="that this host starts")
    made.add_argument("min_ranks", type=int, help="with which the job goes on")
    made.add_argument("replacements", type=int, help="for ranks of this host that are lost")
    made.add_argument("command", nargs=argparse.REMAINDER, help="that starts a rank")
    made.add_argument("--hosts", type=int, nargs=2, default=[1, 1], metavar=("LEAST", "MOST"))
    made.add_argument("--endpoint", help="<host>:<port> of the store, with several hosts")
    made.add_argument("--node-rank", type=int, help="the number of this host; otherwise in the order of coming")
    made.add_argument("--id", default="", help="of the job")
    made.add_argument("--host-timeout", type=float, default=5.0, help="seconds after which a silent host is lost")
    made.add_argument("--join-timeout", type=float, default=600.0, help="seconds to wait for the first hosts")
    return made


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    options = parser().parse_args(arguments)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # torchrun started it in a session of its own
    if options.ranks > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does for several ranks
    supervise = functools.partial(Supervisor, options.ranks, options.min_ranks, options.replacements, options.command)
    if options.hosts[1] > 1:
        return _supervise_with_others(options, supervise)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    return supervise(Worlds(store), f"127.0.0.1:{store.port}").run()


def _supervise_with_others(options: argparse.Namespace, supervise: Callable[..., Supervisor]) -> int:
    host, _, port = options.endpoint.rpartition(":")
    endpoint, (least, most) = Endpoint(host, int(port)), options.hosts
    os.environ["TORCHELASTIC_RUN_ID"] = options.id  # not that of the torchrun of this host
    told = {name: getattr(options, name) for name in ("id", "hosts", "min_ranks", "host_timeout")}
    hosts: Hosts | None = None
    try:
        store, serves = endpoint.store(options.join_timeout)
        of_host = {"ranks": options.ranks, "timeout_s": options.host_timeout, "number": options.node_rank}
        hosts = Hosts(store, serves=serves, told=json.dumps(told), **of_host)
        worlds = Worlds(store)
        if serves:
            ranks_of = hosts.gather(least, most, options.join_timeout, Supervisor.say)
            places = [host for host in sorted(ranks_of) for _ in range(ranks_of[host])]
            worlds.begin(range(len(places)), options.min_ranks, places)
        else:
            worlds.wait_for_first(hosts.attend, options.join_timeout)
        if hosts.number not in worlds.current().hosts:
            hosts.find_room(most)
    except (ValueError, HostIsLost, TimeoutError, dist.DistError) as error:
        why = str(error).partition("\n")[0]
        Supervisor.say(why)
        if hosts is not None:
            with suppress(dist.DistError):
                if hosts.serves:
                    hosts.end_job(why)
                hosts.leave()
            hosts.close()
        return 1
    return supervise(worlds, str(endpoint), hosts).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
