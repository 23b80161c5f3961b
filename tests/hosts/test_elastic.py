"""Elastic training on several hosts, as a user starts it: hosts are lost, cut off, stopped and added."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import churn
import pytest
import ringdp
from elastic_on_host import ALONE, undisturbed_alone
from forked import without_settings
from jobs import FAR
from ringdp.tools.netns.far import FarNetwork, why_not_far
from ringdp.tools.netns.namespaces import Network, why_impossible

PROGRAM = Path(__file__).resolve().with_name("elastic_on_host.py")
LIMIT_S = 240.0
HOST_TIMEOUT_S = 4.0  # on a busy machine
LEAF_MS = 5.0


class Job:
    """Started by `ringdp run` on each host, with these further arguments. Hosts are those of the network here, while
    the job numbers them in the order in which they come.
    """

    def __init__(
        self,
        network: Network | FarNetwork,
        folder: Path,
        per_host: int = 1,
        stage: int = 0,
        steps: int = 40,
        arguments: str = "",
    ) -> None:
        self.network, self.folder, self.steps = network, folder, steps
        self._per_host, self._stage, self._arguments = per_host, stage, arguments
        self.launchers: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *hosts: int) -> Job:
        """`ringdp run` on each of these."""
        for number in hosts:
            host = self.network.hosts[number]
            command = [sys.executable, "-m", "ringdp", "run", f"--nproc-per-node={self._per_host}", "--min-ranks=1"]
            command += [f"--host-timeout={HOST_TIMEOUT_S}", "--rdzv-backend=c10d", *self._arguments.split()]
            command += [f"--rdzv-endpoint={self.network.hosts[0].address}:29400", str(PROGRAM), str(self.folder)]
            command += [str(number), str(self._stage), str(self.steps), str(LEAF_MS)]
            with self.log_of(number).open("wb") as log:
                self.launchers[number] = subprocess.Popen(
                    host.command(command),
                    env=without_settings(OMP_NUM_THREADS="1"),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        return self

    def log_of(self, host: int) -> Path:
        return self.folder / f"log-{host}"

    def said(self, host: int) -> str:
        return self.log_of(host).read_text(errors="replace")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < until, self.logs()
            time.sleep(0.02)

    def logs(self) -> str:
        return "\n".join(f"== host {host}\n{self.said(host)[-2500:]}" for host in self.launchers)

    def steps_of(self, *hosts: int) -> list[tuple[int, float, int]]:
        """Step, when it was applied, and by how many ranks, as each rank of these hosts says."""
        files = [file for host in hosts for file in self.folder.glob(f"steps-{host}-*")]
        lines = [line for file in files for line in file.read_text().splitlines(keepends=True)]
        return [tuple(json.loads(line)) for line in lines if line.endswith("\n")]

    def reaches(self, step: int) -> Job:
        """Waits until a rank has applied it."""
        self.wait_for(lambda: any(found >= step for found, *_ in self.steps_of(*self.launchers)))
        return self

    def lose(self, host: int) -> None:
        """All its processes die, and nobody is told."""
        for pid in subprocess.run(
            ["ip", "netns", "pids", self.network.hosts[host].namespace], check=True, capture_output=True, text=True
        ).stdout.split():
            os.kill(int(pid), signal.SIGKILL)

    def ends(self, *hosts: int) -> list[int]:
        """The statuses of these, once they have ended."""
        self.wait_for(lambda: all(self.launchers[host].poll() is not None for host in hosts))
        return [self.launchers[host].returncode for host in hosts]

    def results(self, *hosts: int) -> list[str]:
        """Hashes of what the ranks of these hosts have trained."""
        return [file.read_text() for host in hosts for file in self.folder.glob(f"result-{host}-*")]

    def ends_well(self, *hosts: int, ranks: int) -> None:
        """These hosts end with the bits of one process."""
        assert self.ends(*hosts) == [0] * len(hosts), self.logs()
        assert self.results(*hosts) == [churn.undisturbed(self.steps, "float32")] * ranks, self.logs()

    def standstill_s(self, *hosts: int) -> float:
        """The longest time in which these hosts have not applied a step."""
        times = sorted(when for _, when, _ in self.steps_of(*hosts))
        return max(later - earlier for earlier, later in pairwise(times))

    def close(self) -> None:
        for launcher in self.launchers.values():
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)
                launcher.wait(10)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """job(hosts, far=False, **arguments of Job); far: the hosts are far apart."""
    if reason := why_impossible():
        pytest.skip(reason)
    with ExitStack() as stack:

        def make(hosts: int, far: bool = False, **arguments: object) -> Job:
            if far and (reason := why_not_far()):
                pytest.skip(reason)
            made = Job(stack.enter_context(FarNetwork(hosts, **FAR) if far else Network(hosts)), tmp_path, **arguments)
            stack.callback(made.close)
            return made

        yield make


def test_one_of_two_hosts_is_lost(job):
    """The job goes on with the shards that the other one keeps."""
    made = job(2, stage=2, arguments="--nnodes 2", steps=20).start(0, 1).reaches(5)
    made.lose(1)
    made.ends_well(0, ranks=1)
    assert re.search(rf"nothing was heard of host \d \(\S+\) for {HOST_TIMEOUT_S:g} s", made.said(0))
    assert re.search(r"ringdp.elastic: world \d: 1 rank \(\S+ \d\) after", made.said(0)), made.said(0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "far", "stage"),
    [*((how, False, stage) for how in ("dies", "vanishes") for stage in range(4)), ("vanishes", True, 2)],
)
def test_one_of_four_hosts_is_lost(job, how, far, stage):
    """Two ranks on each: neighbours die at once, and their shards are on another host."""
    made = job(4, far, per_host=2, stage=stage, arguments="--nnodes 4").start(0, 1, 2, 3).reaches(5)
    made.lose(2) if how == "dies" else made.network.cut(made.network.hosts[2], off=True)
    made.ends_well(0, 1, 3, ranks=6)
    print(f"stage {stage}, a host {how}: {made.standstill_s(0, 1, 3):.2f} s without a step")
    if how == "vanishes":
        assert made.ends(2) == [1]
        assert "this host ends" in made.said(2)  # the store does not answer, or is unreachable by then
        assert not made.results(2)


@pytest.mark.long
@pytest.mark.parametrize("how", ["dies", "vanishes"])
def test_a_host_is_lost_whose_workers_step_alone(job, how):
    """Copies of them are on another host."""
    made = job(3, stage=ALONE, arguments="--nnodes 3", steps=60).start(0, 1, 2).reaches(10)
    made.lose(2) if how == "dies" else made.network.cut(made.network.hosts[2], off=True)
    assert made.ends(0, 1) == [0, 0], made.logs()
    assert made.results(0, 1) == [undisturbed_alone(60)] * 2, made.logs()
    said = made.said(0) + made.said(1)
    assert re.search(r"workers [\d, and]+ from a copy of host \d on host \d", said), said


@pytest.mark.long
def test_two_hosts_with_a_shard_and_its_copy_are_lost(job):
    """A named error, and the last checkpoint loads."""
    made = job(4, per_host=2, stage=1, arguments="--nnodes 4").start(0, 1, 2, 3).reaches(15)
    for host in (1, 2, 3):
        made.lose(host)
    assert made.ends(0) == [1]
    assert re.search(
        r"the shard of ranks? [\d, and]+ is lost: no rank is left that has it. Load a checkpoint", made.said(0)
    )
    assert ringdp.checkpoint.read(made.folder / "saved").extras[0] in (9, 19)


@pytest.mark.long
@pytest.mark.parametrize("heals_after_s", [0.5, None])
def test_a_partition(job, heals_after_s):
    """Five hosts keep the store, three do not: they end and say why. A short one costs nothing."""
    made = job(8, arguments="--nnodes 8", steps=60).start(*range(8)).reaches(5)
    cut = made.network.hosts[5:]
    made.network.split(cut, off=True)
    if heals_after_s is not None:
        time.sleep(heals_after_s)
        made.network.split(cut, off=False)
        made.ends_well(*range(8), ranks=8)
        return
    assert made.ends(5, 6, 7) == [1, 1, 1]
    made.network.split(cut, off=False)
    made.ends_well(*range(5), ranks=5)
    for host in (5, 6, 7):
        assert "this host ends" in made.said(host)
    last_of_eight = max(step for step, _, ranks in made.steps_of(*range(5)) if ranks == 8)
    first_of_five = min(step for step, _, ranks in made.steps_of(*range(5)) if ranks == 5)
    assert first_of_five in (last_of_eight, last_of_eight + 1)  # that one where the vote had passed for some
    assert max(step for step, *_ in made.steps_of(5, 6, 7)) <= last_of_eight + 1


@pytest.mark.long
def test_the_host_that_serves_the_store_is_lost(job):
    made = job(3, arguments="--nnodes 3").start(0, 1, 2).reaches(5)
    made.lose(0)
    assert made.ends(1, 2) == [1, 1]
    for host in (1, 2):
        assert "and the host that serves it: this host ends" in made.said(host)


@pytest.mark.long
def test_hosts_that_come_and_go(job):
    """A third host comes later, a fourth is one too many, and one is stopped by its user."""
    made = job(4, arguments="--nnodes 2:3 --rdzv-id x", steps=500).start(0, 1).reaches(5)
    made.start(2)
    made.wait_for(lambda: any(ranks == 3 for _, _, ranks in made.steps_of(0)))
    made.start(3)
    assert made.ends(3) == [1]
    assert "3 hosts there, and --nnodes allows 3" in made.said(3)
    made.launchers[1].send_signal(signal.SIGTERM)
    assert made.ends(1) != [0]
    made.ends_well(0, 2, ranks=2)
    assert "nothing was heard" not in made.said(0)


@pytest.mark.long
def test_hosts_that_were_told_otherwise(job):
    made = job(2, arguments="--nnodes 2").start(0)
    made._arguments = "--nnodes 3"
    made.start(1)
    assert made.ends(1) == [1]
    assert "make them alike" in made.said(1)
    made._arguments = "--nnodes 2"
    made.start(1).ends_well(0, 1, ranks=2)
