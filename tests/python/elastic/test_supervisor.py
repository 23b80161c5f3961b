"""The supervisor of `ringdp run --min-ranks`: worlds follow the processes that live; none outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from ringdp.elastic.host_memory import HostMemory
from ringdp.elastic.hosts import Hosts
from ringdp.elastic.supervisor import Supervisor, _how
from ringdp.elastic.worlds import Request, World, Worlds

LIMIT_S = 30.0
HOST_TIMEOUT_S = 1.0
# Writes what it was told, then does what the file of its member says.
RANK = """
import os, sys, time
folder, member = sys.argv[1], os.environ["RINGDP_MEMBER"].partition("@")[0]
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
with open(f"{folder}/said-{member}", "w") as file:
    file.write(" ".join([str(os.getpid()), *(os.environ[name] for name in names)]))
os.rename(f"{folder}/said-{member}", f"{folder}/rank-{member}")
while not os.path.exists(f"{folder}/end-{member}"):
    time.sleep(0.01)
with open(f"{folder}/end-{member}") as file:
    sys.exit(int(file.read() or 0))
"""


class Job:
    """A supervisor in a thread, whose ranks end with the status that the test gives them. first: another host's."""

    def __init__(self, folder, ranks, min_ranks, replacements, hosts=0, first=None):
        self.folder = folder
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
        self._stores = [server] if first is None else [first._stores[0]]
        self.worlds = self._worlds()
        command = [sys.executable, "-S", "-E", "-c", RANK, str(folder)]
        given = (ranks, min_ranks, replacements, command, self._worlds(), "127.0.0.1:1")
        self.hosts = None
        if hosts:
            self.hosts = Hosts(self._store(), serves=first is None, ranks=ranks, timeout_s=HOST_TIMEOUT_S)
        self.supervisor = Supervisor(*given, self.hosts)
        self.status = None
        self._thread = threading.Thread(target=self._run)
        if not hosts:
            self._thread.start()

    def start(self):
        self._thread.start()
        return self

    def _store(self):
        port = self._stores[0].port
        self._stores.append(dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=20)))
        return self._stores[-1]

    def _worlds(self):
        return Worlds(self._store())

    def _run(self):
        self.status = self.supervisor.run()

    def trains(self, patience_s=30.0):
        """All members have begun to."""
        for member in range(self.supervisor._ranks):
            self.told(member)
        self.worlds.begin_training(patience_s)
        return self

    def told(self, member):
        """Pid, RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE of a member, once it has begun."""
        file = self.folder / f"rank-{member}"
        wait_for(file.exists)
        return [int(number) for number in file.read_text().split()]

    def end(self, member, status=0):
        self.told(member)
        (self.folder / f".end-{member}").write_text(str(status))
        (self.folder / f".end-{member}").rename(self.folder / f"end-{member}")

    def kill(self, member):
        os.kill(self.told(member)[0], signal.SIGKILL)

    def becomes(self, *members):
        """Waits for the world of these members; its epoch."""
        wait_for(lambda: self.worlds.current().members == members)
        return self.worlds.current().epoch

    def ends(self):
        """With this status."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        return self.status


def wait_for(condition):
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def job(tmp_path, monkeypatch):
    """job(ranks, min_ranks, replacements)."""
    monkeypatch.setattr("ringdp.elastic.supervisor.signal.signal", lambda number, handler: None)  # of the main thread
    monkeypatch.setattr(Hosts, "_watch_store", lambda hosts: None)  # it would end this process
    jobs = []

    def make(*arguments, **of_hosts):
        jobs.append(Job(tmp_path, *arguments, **of_hosts))
        return jobs[-1]

    yield make
    for made in jobs:
        made.supervisor._stop(signal.SIGTERM, None)
    for made in jobs:
        made.ends()


def test_a_job_that_nothing_disturbs(job):
    made = job(3, 2, 0)
    assert [made.told(member)[1:] for member in range(3)] == [[rank, 3, rank, 3] for rank in range(3)]
    assert made.worlds.current() == World(0, (0, 1, 2))
    assert made.worlds.terms() == {"ranks": 3, "min_ranks": 2}
    for member in range(3):
        made.end(member)
    assert made.ends() == 0


def test_memory_of_the_host_is_there_until_the_job_ends(job):
    made = job(2, 1, 0).trains()
    path = made.worlds.memory()
    memory = HostMemory(path)
    memory.write(0, 1, 0, [1.5])
    made.kill(0)
    made.becomes(1)
    assert HostMemory(path).read(0, 1) == [1.5]
    made.end(1)
    assert made.ends() == 0
    with pytest.raises(OSError):
        HostMemory(path)
    memory.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGRTMIN, signal.SIGRTMIN + 6])
def test_a_rank_may_be_killed_by_any_signal(number):
    """Also by one that has no name."""
    process = subprocess.Popen([sys.executable, "-S", "-E", "-c", "import time; time.sleep(60)"])
    process.send_signal(number)
    names = {signal.SIGKILL: "SIGKILL", signal.SIGRTMIN: "SIGRTMIN"}
    assert _how(process.wait()) == f"was killed by {names.get(number, f'signal {number}')}"


@pytest.mark.parametrize("how", ["killed", "failed", "ended well"])
def test_the_world_goes_on_without_a_rank_that_has_ended(job, capfd, how):
    made = job(3, 2, 0).trains()
    made.kill(1) if how == "killed" else made.end(1, status=7 * (how == "failed"))
    assert made.becomes(0, 2) == 1
    said = {"killed": "was killed by SIGKILL", "failed": "has ended with status 7", "ended well": ""}[how]
    assert said in capfd.readouterr().err
    made.end(0), made.end(2)
    assert made.ends() == 0


def test_a_lost_rank_is_replaced_and_joins_when_it_asks(job):
    made = job(2, 2, 1).trains()
    made.kill(1)
    made.becomes(0)
    assert made.told(2)[1:] == [0, 1, 1, 2]  # a world of its own, at the lost one's place
    assert made.worlds.coming() == 1
    assert made.worlds.current().members == (0,)
    made.worlds.ask(Request("join", 2))
    made.becomes(0, 2)
    made.end(0), made.end(2)
    assert made.ends() == 0


def test_who_joins_at_once_makes_one_world(job, monkeypatch):
    made = job(3, 1, 2).trains()
    made.kill(1), made.kill(2)
    epoch = made.becomes(0)
    made.told(3), made.told(4)
    answer, requests = made.supervisor._answer, []

    def with_both(asked):
        requests.extend(asked)
        answer(requests if len(requests) == 2 else [])

    monkeypatch.setattr(made.supervisor, "_answer", with_both)
    made.worlds.ask(Request("join", 3)), made.worlds.ask(Request("join", 4))
    assert made.becomes(0, 3, 4) == epoch + 1
    wait_for(lambda: made.worlds.coming() == 0)
    for member in (0, 3, 4):
        made.end(member)
    assert made.ends() == 0


def test_too_few_ranks_end_the_job(job, capfd):
    made = job(3, 2, 1).trains()
    made.kill(0), made.kill(1)
    pid = made.told(3)[0] if (made.folder / "rank-3").exists() else None
    made.kill(2)
    assert made.ends() == 1
    assert "fewer than --min-ranks 2: the job ends" in capfd.readouterr().err
    assert pid is None or not is_running(pid)


def test_a_rank_that_is_stopped_is_waited_for_and_then_killed(job, capfd):
    made = job(3, 1, 0).trains(patience_s=1e6)
    for member in (1, 2):
        os.kill(made.told(member)[0], signal.SIGSTOP)
    wait_for(lambda: made.supervisor._processes[2].stopped_s > 0)
    os.kill(made.told(2)[0], signal.SIGCONT)
    wait_for(lambda: made.supervisor._processes[2].stopped_s == 0)
    made.worlds.begin_training(0.5)
    made.becomes(0, 2)
    said = capfd.readouterr().err
    assert "is stopped: it is waited for, 1e+06 s" in said and "was stopped for 0.5 s: it is killed" in said
    made.end(0), made.end(2)
    assert made.ends() == 0


def test_a_member_that_does_not_answer_is_killed_when_others_say_so(job, capfd):
    made = job(2, 1, 0).trains()
    for _ in range(3):  # of three members
        made.worlds.ask(Request("replace", 1, "has not answered for 5 s"))
    made.becomes(0)
    assert capfd.readouterr().err.count("member 1 has not answered for 5 s: it is killed") == 1
    made.end(0)
    assert made.ends() == 0


def test_when_the_training_is_over_nobody_joins_and_failures_count(job, capfd):
    made = job(3, 1, 2).trains()
    made.kill(1)
    pid = made.told(3)[0]
    world = made.becomes(0, 2) and made.worlds.current()
    closed = made.worlds.follow(world, closed=True)
    wait_for(lambda: not is_running(pid))
    made.worlds.ask(Request("join", 3))
    made.worlds.ask(Request("replace", 2))
    made.end(0)
    wait_for(lambda: not is_running(made.told(0)[0]))
    assert made.worlds.current() == closed and is_running(made.told(2)[0])
    made.end(2, status=3)
    assert made.ends() == 1
    assert "member 2 failed after the training" in capfd.readouterr().err


def test_a_replacement_that_ends_well_is_not_waited_for(job):
    made = job(2, 2, 5).trains()
    made.kill(1)
    made.becomes(0)
    wait_for(lambda: made.worlds.coming() == 1)
    made.end(2)
    wait_for(lambda: made.worlds.coming() == 0)  # so that member 0 does not wait for ever
    made.end(0, status=1)
    assert made.ends() == 1


@pytest.mark.parametrize("status", [0, 3])
def test_before_the_training_a_death_ends_the_job(job, capfd, status):
    made = job(3, 1, 5)
    made.told(0), made.told(2)
    made.end(1, status)
    if status:
        assert made.ends() == 1
        assert "member 1 failed before the training: the job ends" in capfd.readouterr().err
    else:
        assert made.becomes(0, 2) == 1


def test_an_error_of_the_program_on_all_ranks_ends_the_job(job, capfd):
    made = job(2, 1, 5).trains()
    made.end(0, status=1)
    made.becomes(1)
    made.end(1, status=1)
    assert made.ends() == 1
    assert "member 1 failed as the last of the training, by an error of the program" in capfd.readouterr().err


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ranks_die_with_their_supervisor(tmp_path):
    command = [sys.executable, "-m", "ringdp.elastic.supervisor", "2", "1", "0"]
    command += [sys.executable, "-S", "-E", "-c", RANK, str(tmp_path)]
    for number in (signal.SIGKILL, signal.SIGTERM):
        supervisor = subprocess.Popen(command)
        files = [tmp_path / f"rank-{member}" for member in range(2)]
        wait_for(lambda files=files: all(file.exists() for file in files))
        pids = [int(file.read_text().split()[0]) for file in files]
        supervisor.send_signal(number)
        assert supervisor.wait(LIMIT_S) == (-9 if number == signal.SIGKILL else 143)
        wait_for(lambda pids=pids: not any(map(is_running, pids)))
        for file in files:
            file.unlink()


def test_a_member_that_has_given_up_is_not_waited_for(job):
    """The world goes on without it, before its process has ended; then it is replaced."""
    made = job(3, 1, 1).trains()
    made.worlds.ask(Request("leave", 1))
    made.becomes(0, 2)
    made.end(1, status=1)
    made.told(3)
    for member in (0, 2, 3):
        made.end(member)
    assert made.ends() == 0


def two_hosts(job, min_ranks=1, replacements=0, trains=True):
    """Two ranks on each, which train."""
    first = job(2, min_ranks, replacements, hosts=2)
    second = job(2, min_ranks, replacements, hosts=2, first=first)
    first.worlds.begin(range(4), min_ranks, [0, 0, 1, 1])
    first.start(), second.start()
    for member in range(4):
        first.told(member)
    if trains:
        first.worlds.begin_training(30.0)
    return first, second


def test_supervisors_of_several_hosts_start_and_replace_their_own_ranks(job):
    first, second = two_hosts(job, replacements=1)
    assert [first.told(member)[1:] for member in range(4)] == [[0, 4, 0, 2], [1, 4, 1, 2], [2, 4, 0, 2], [3, 4, 1, 2]]
    first.kill(2)
    first.becomes(0, 1, 3)
    assert first.told(4)[1:] == [0, 1, 0, 2]
    first.worlds.ask(Request("join", 4), host=1)
    first.becomes(0, 1, 3, 4)
    assert first.worlds.current().hosts == (0, 0, 1, 1)
    first.worlds.ask(Request("replace", 1, "hangs"), host=0)
    first.becomes(0, 3, 4)
    first.told(5)
    first.worlds.follow(first.worlds.current(), closed=True)
    for member in (0, 3, 4):
        first.end(member)
    assert (first.ends(), second.ends()) == (0, 0)


def test_a_host_that_is_stopped_by_its_user_leaves_the_world(job, capfd):
    first, second = two_hosts(job)
    second.supervisor._stop(signal.SIGTERM, None)
    first.becomes(0, 1)
    assert second.ends() == 128 + signal.SIGTERM
    first.end(0), first.end(1)
    assert first.ends() == 0
    assert "nothing was heard" not in capfd.readouterr().err


def test_a_host_that_comes_later_joins(job):
    first, second = two_hosts(job)
    third = job(2, 1, 0, hosts=2, first=first).start()
    assert third.told(4)[1:] == [0, 1, 0, 2]
    assert first.worlds.coming() == 2
    for member in (4, 5):
        third.worlds.ask(Request("join", member), host=2)
    first.becomes(0, 1, 2, 3, 4, 5)
    wait_for(lambda: first.worlds.coming() == 0)  # whoever joins is in both for a moment
    for member in range(6):
        first.end(member)
    assert {made.ends() for made in (first, second, third)} == {0}


def silence(monkeypatch, host):
    """As if it were cut off, and did not notice."""
    monkeypatch.setattr(host.hosts, "attend", lambda: None)
    monkeypatch.setattr(host.hosts, "look", lambda: None)


def test_the_world_goes_on_without_a_lost_host_whose_ranks_end_when_it_hears_of_it(job, capfd, monkeypatch):
    first, second = two_hosts(job)
    silence(monkeypatch, second)
    first.becomes(0, 1)
    assert "nothing was heard of host 1" in capfd.readouterr().err
    monkeypatch.undo()
    assert second.ends() == 1
    assert "the others have gone on without this host: nothing was heard of host 1" in capfd.readouterr().err
    first.end(0), first.end(1)
    assert first.ends() == 0


def test_a_lost_host_that_leaves_too_few_ends_the_job_everywhere(job, capfd, monkeypatch):
    first, second = two_hosts(job, min_ranks=3)
    silence(monkeypatch, second)
    assert first.ends() == 1
    said = capfd.readouterr().err
    assert "nothing was heard of host 1" in said and "2 ranks left and no replacement, fewer than --min-ranks 3" in said
    monkeypatch.undo()
    assert second.ends() == 1


def test_a_host_whose_ranks_are_all_lost_ends_and_the_others_go_on(job, capfd):
    first, second = two_hosts(job)
    first.kill(2), first.kill(3)
    first.becomes(0, 1)
    assert second.ends() == 1
    first.end(0), first.end(1)
    assert first.ends() == 0
    assert "no rank is left on host 1, which ends; the others go on" in capfd.readouterr().err


@pytest.mark.parametrize("trains", [False, True])
def test_the_host_that_serves_the_store_takes_the_job_with_it(job, capfd, trains):
    first, second = two_hosts(job, trains=trains)
    first.supervisor._stop(signal.SIGINT, None)
    assert (first.ends(), second.ends()) == (128 + signal.SIGINT, 1)
    assert "host 0 (" in (said := capfd.readouterr().err) and "was stopped by SIGINT, and the job ends with it" in said


def test_a_host_that_is_stopped_before_the_training_ends_the_job(job, capfd):
    first, second = two_hosts(job, trains=False)
    second.supervisor._stop(signal.SIGTERM, None)
    assert (first.ends(), second.ends()) == (1, 128 + signal.SIGTERM)
    assert "host 1 (" in (said := capfd.readouterr().err) and "was stopped by SIGTERM, and the job ends with it" in said


def test_a_lost_host_that_writes_once_more_is_taken_out_again(job, monkeypatch):
    first, second = two_hosts(job)
    silence(monkeypatch, second)
    epoch = first.becomes(0, 1)
    first.worlds.publish([2, 3], host=1)
    first.worlds.expect(2, host=1)
    assert first.becomes(0, 1) > epoch
    wait_for(lambda: first.worlds.coming() == 0)
    monkeypatch.undo()
    monkeypatch.setattr("ringdp.elastic.supervisor.signal.signal", lambda number, handler: None)
    assert second.ends() == 1
    first.end(0), first.end(1)
    assert first.ends() == 0


def test_a_failure_after_the_training_is_told_by_all_hosts(job, capfd):
    """Also by the one that has ended and waits for the others."""
    first, second = two_hosts(job)
    first.worlds.follow(first.worlds.current(), closed=True)
    first.end(0), first.end(1)
    wait_for(lambda: not first.supervisor._processes)
    first.end(2), first.end(3, status=4)
    assert (first.ends(), second.ends()) == (1, 1)
    assert capfd.readouterr().err.count("member 3 failed after the training: the job ends") == 2


def test_a_host_that_was_lost_in_the_training_costs_no_status_after_it(job, monkeypatch):
    first, second = two_hosts(job)
    silence(monkeypatch, second)
    monkeypatch.setattr(first.hosts, "look", lambda: None)  # another host has taken it out of the world
    first.worlds.publish([], host=1)
    first.worlds.follow(first.worlds.current(), closed=True)
    first.hosts._store.set("state/1", "nothing was heard of host 1")
    monkeypatch.undo()
    time.sleep(HOST_TIMEOUT_S)
    first.end(0), first.end(1)
    assert (first.ends(), second.ends()) == (0, 1)


def test_last_ranks_of_two_hosts_that_fail_by_an_error_of_the_program_end_the_job(job, capfd):
    first, second = two_hosts(job, replacements=4)
    for member in range(4):
        first.end(member, status=5)
    assert (first.ends(), second.ends()) == (1, 1)
    assert "failed as the last of the training, by an error of the program" in capfd.readouterr().err
