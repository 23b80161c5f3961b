"""`python -m ringdp.elastic.supervisor RANKS MIN_RANKS REPLACEMENTS COMMAND ...`: the ranks of one host, which may die.

torchrun starts it in the place of the ranks. It keeps the store of the worlds, starts a process per rank and knows by
waitpid which of them end. Once a training has begun, and while at least MIN_RANKS live or are coming, it publishes the
world without those that have ended, and starts another process for each that was lost, REPLACEMENTS in all. Such a
process begins in a world of its own, and joins the others when it asks to (training.py).
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

from ringdp.elastic.hosts import LEFT, Endpoint, HostIsLost, Hosts, Watchdog
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
        self._looked_at = time.monotonic()

    def run(self) -> int:
        """Until all have ended. 0 where the last ones have ended well; 1, or 128 + a signal, otherwise."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        if self._hosts is None:
            self._worlds.begin(range(self._ranks), self._min_ranks)
        try:
            self._start_all()
            self._watch()
            if self._stopped_by is not None and self._hosts is not None:
                self._worlds.publish([], self._host)  # the others go on
            elif self._why and self._hosts is not None:
                self._hosts.end_job(self._why)
        except HostIsLost as lost:
            self._why = str(lost)
        except dist.DistError as error:
            if self._hosts is None:
                raise
            self._why = f"the store at {self._place} is gone, and the host that serves it: this host ends ({error})"
            self._hosts = None
        finally:
            if self._why:
                self.say(self._why)
            self._end_all()
            if self._hosts is not None:
                with suppress(dist.DistError):  # the store is gone by now
                    self._hosts.leave()
        if self._stopped_by is not None:
            return 128 + self._stopped_by
        return 1 if self._why or self._has_lost_all else 0

    def _start_all(self) -> None:
        world = self._worlds.current()
        own = world.on_host(self._host)
        for slot, member in enumerate(own):
            self._start(member, slot, world)
        if own or world.is_closed:
            return
        self._expect(self._ranks)  # this host has come later
        for slot in range(self._ranks):
            self._start(self._worlds.new_member(), slot, None)

    on_look: Callable[[], object] = staticmethod(lambda: None)  # called in each round

    def _stop(self, number: int, _: FrameType | None) -> None:
        self._stopped_by = number

    def _watch(self) -> None:
        while self._processes and not self._why:
            self._poll.poll(1000 * _LOOK_S)
            if self._stopped_by is not None:
                return
            self.on_look()
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
            place["GROUP_RANK"] = self._host
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
        if lost:
            left = set(world.members) - {process.member for process in ended}
            self._why = self._reason_to_end(lost, world, len(left), coming)
        if self._why or world.is_closed:
            return
        self._expect(coming)
        if any(process.in_world for process in ended):
            self._publish()
        self._replacements -= coming
        for process in lost[:coming]:
            self._start(self._worlds.new_member(), process.slot, None)
        if lost and not self._processes:
            self._has_lost_all = True
            self.say(f"no rank is left on host {self._host}, which ends; the others go on")

    def _reason_to_end(self, lost: Sequence[_Process], world: World, left: int, coming: int) -> str:
        """'' where the job goes on without these. left: members of the world. coming: that are to be started."""
        members = names((process.member for process in lost), "member")
        if world.is_closed:
            return f"{members} failed after the training: the job ends"
        if not self._worlds.is_training():
            return f"{members} failed before the training: the job ends"
        if left == 0 and any(process.popen.returncode > 0 for process in lost):
            return f"{members} failed as the last of the training, by an error of the program: the job ends"
        self._expect(coming)
        return self._too_few(left)

    def _too_few(self, left: int) -> str:
        """Of these members of the world and those that may come; '' where they are enough."""
        there = left + self._worlds.coming()
        if there >= self._min_ranks:
            return ""
        return (
            f"{counted(there, 'rank')} left and no replacement, fewer than --min-ranks {self._min_ranks}: the job ends"
        )

    def _look_at_hosts(self) -> None:
        lost = self._hosts.look()
        if lost is None:
            return
        if self._worlds.is_training():
            self._hosts.training_begins()
        for host, why in lost:
            self._lose(host, why)

    def _lose(self, host: int, why: str) -> None:
        """The world goes on without a host. why: LEFT where it has ended by itself, and has left the world."""
        world = self._worlds.current()
        self._worlds.expect(0, host)
        failed = why != LEFT
        if failed:
            self.say(why)
        if world.is_closed or not self._worlds.is_training():
            if failed:
                self._why = f"{why}, {'after' if world.is_closed else 'before'} the training: the job ends"
            return
        if world.on_host(host):
            world = self._worlds.publish([], host)
        self._why = self._too_few(len(world.members))

    def _expect(self, starting: int = 0) -> None:
        newcomers = sum(not process.in_world for process in self._processes.values())
        self._worlds.expect(starting + newcomers, self._host)

    def _publish(self) -> World:
        members = [process.member for process in self._processes.values() if process.in_world]
        return self._worlds.publish(members, self._host)

    def _answer(self, requests: Sequence[Request]) -> None:
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
        for process in self._processes.values():
            try:
                process.popen.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
            os.close(process.pidfd)
        self._processes.clear()

    def kill_all(self) -> None:
        """Any thread."""
        for process in [*self._processes.values()]:
            process.popen.kill()

    @staticmethod
    def say(text: str) -> None:
        """On stderr."""
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
    hosts: Hosts | None = None
    try:
        store, serves = endpoint.store(options.join_timeout)
        hosts = Hosts(
            store, serves=serves, ranks=options.ranks, timeout_s=options.host_timeout, number=options.node_rank
        )
        told = {name: getattr(options, name) for name in ("id", "hosts", "min_ranks", "host_timeout")}
        hosts.agree(json.dumps(told))
        worlds = Worlds(store)
        if serves:
            ranks_of = hosts.gather(least, options.join_timeout, Supervisor.say)
            places = [host for host in sorted(ranks_of) for _ in range(ranks_of[host])]
            worlds.begin(range(len(places)), options.min_ranks, places, most * max(ranks_of.values()))
        else:
            worlds.wait_for_first(hosts.beat, options.join_timeout)
        living = [number for number in hosts.living() if number != hosts.number]
        if hosts.number not in worlds.current().hosts and len(living) >= most:
            raise HostIsLost(f"{counted(len(living), 'host')} there, and --nnodes allows {most}")
    except (ValueError, HostIsLost, TimeoutError, dist.DistError) as error:
        Supervisor.say(str(error))
        if hosts is not None:
            with suppress(dist.DistError):
                hosts.give_up(str(error))
        return 1
    supervisor = supervise(worlds, str(endpoint), hosts)
    watchdog = Watchdog(hosts, supervisor.kill_all, endpoint)
    supervisor.on_look = watchdog.alive
    if not serves:
        watchdog.start()
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
