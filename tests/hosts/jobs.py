"""Ranks on several hosts: forked off a warm interpreter, or started by torchrun on each, as a user would.

Each rank runs `on_rank.py TASK FOLDER` and leaves FOLDER/rank-<n>.json, or its last words in a log that is shown.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from forked import Program, without_settings
from ringdp.tools.netns.far import FarNetwork
from ringdp.tools.netns.namespaces import Host, Network

PROGRAM = Path(__file__).resolve().parent / "on_rank.py"
PORT = 29500  # the store's; every network is its own, so it is free
FAR = MappingProxyType({"rtt_ms": 50.0, "loss": 0.001})  # the path of tests that hold for near hosts, too
LIMIT_S = 300.0  # of a job that hangs; other work on this machine may slow one down several times


def wait_until(condition: Callable[[], bool], why: Callable[[], str]) -> None:
    """AssertionError, and why, when it does not become true."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.01)


class RankCommand:
    """`ringdp ARGUMENTS` as every rank of a job, as launchers start it; the variables for all, or for rank `only`.

    ranks: how many of them, from rank 0 on; the rest do not come.
    """

    def __init__(
        self, job: Job, *arguments: str, ranks: int | None = None, only: int | None = None, **variables: str
    ) -> None:
        self.programs: list[Program] = []
        self.files: list[tuple[Path, Path]] = []
        for rank in range(job.world if ranks is None else ranks):
            environment = without_settings(OMP_NUM_THREADS="1", **job.place(rank))
            environment.update(variables if only in (None, rank) else {})
            self.files.append((job.folder / f"output-{rank}", job.folder / f"errors-{rank}"))
            for file in self.files[-1]:
                file.unlink(missing_ok=True)  # of an earlier command
            command = ("-m", "ringdp", *arguments)
            self.programs.append(Program(command, environment, *self.files[-1], job.host_of(rank).namespace))

    def wait_for_output(self, words: str) -> None:
        """Until rank 0 has said that."""
        output, errors = self.files[0]
        wait_until(lambda: output.exists() and words in output.read_text(), lambda: errors.read_text())

    def ended(self) -> tuple[list[int], str, list[str]]:
        """Statuses, what rank 0 has printed, and what each rank complains of; what hangs is ended."""
        try:
            statuses = [program.wait(LIMIT_S) for program in self.programs]
        finally:
            for program in self.programs:
                program.kill()
        return statuses, self.files[0][0].read_text(), [errors.read_text() for _, errors in self.files]


class Job:
    """`per_host` ranks on every host; ranks are numbered host by host."""

    def __init__(
        self,
        network: Network | FarNetwork,
        per_host: int,
        folder: Path,
        program: Path = PROGRAM,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.network = network
        self.limit_s = limit_s
        self.program = str(program)
        self.per_host = per_host
        self.world = per_host * len(network.hosts)
        self.folder = folder
        self.ranks: list[Program] = []  # those that begin() has started, by rank
        self._processes: list[Program | subprocess.Popen[bytes]] = []

    def torchrun(self, task: str, **settings: object) -> list[dict[str, Any]]:
        """Runs the task by torchrun on every host to its end; what each rank has to say."""
        for node, host in enumerate(self.network.hosts):
            command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(self.network.hosts)}"]
            command += [f"--node-rank={node}", f"--nproc-per-node={self.per_host}"]
            command += [f"--master-addr={self.network.hosts[0].address}", f"--master-port={PORT}"]
            command = host.command([*command, self.program, task, str(self.folder)])
            with self._log().open("wb") as log:
                environment = self._environment(settings)
                process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            self._processes.append(process)
        self.wait()
        return self.said()

    def run(self, task: str, **settings: object) -> list[dict[str, Any]]:
        """Runs the task on every rank to its end; what each rank has to say."""
        self.begin(task, **settings)
        self.wait()
        return self.said()

    def begin(
        self,
        task: str,
        only: int | None = None,
        others: Mapping[str, object] = MappingProxyType({}),
        **settings: object,
    ) -> None:
        """Starts every rank by itself; rank 0 serves the store. The settings are for all, or for rank `only`: then the
        rest has those of `others`.
        """
        for rank in range(self.world):
            environment = {**self._environment(settings if only in (None, rank) else others), **self.place(rank)}
            arguments, log = (self.program, task, str(self.folder)), self._log()
            self.ranks.append(Program(arguments, environment, log, log, self.host_of(rank).namespace))
            self._processes.append(self.ranks[-1])

    def host_of(self, rank: int) -> Host:
        """Where it runs."""
        return self.network.hosts[rank // self.per_host]

    def place(self, rank: int) -> dict[str, str]:
        """What a launcher tells a rank."""
        place: dict[str, object] = {"RANK": rank, "LOCAL_RANK": rank % self.per_host, "WORLD_SIZE": self.world}
        place.update(MASTER_ADDR=self.network.hosts[0].address, MASTER_PORT=PORT)
        return {name: str(value) for name, value in place.items()}

    def wait_until_running(self) -> None:
        """Until every rank of begin() has left its mark; AssertionError with its log when one ended before."""
        deadline = time.monotonic() + self.limit_s
        for rank, process in enumerate(self.ranks):
            while not (self.folder / f"running-{rank}").exists():
                assert process.poll() is None and time.monotonic() < deadline, self._logs()
                time.sleep(0.01)

    def kill(self, rank: int) -> float:
        """SIGKILL; when."""
        now = time.monotonic()
        os.kill(self.ranks[rank].pid, signal.SIGKILL)
        return now

    def wait(self, but: int = -1) -> None:
        """Until all have ended well, except rank `but`."""
        deadline = time.monotonic() + self.limit_s
        for index, process in enumerate(self._processes):
            try:
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"process {index} does not end; {self._logs()}") from None
            assert index == but or code == 0, self._logs()

    def said(self, but: int = -1) -> list[dict[str, Any]]:
        """What the ranks left, by rank, without rank `but`."""
        files = [self.folder / f"rank-{rank}.json" for rank in range(self.world) if rank != but]
        assert all(file.exists() for file in files), self._logs()
        return [json.loads(file.read_text()) for file in files]

    def close(self) -> None:
        """Ends what still runs, torchrun's workers included."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)

    def log_of(self, rank: int) -> str:
        """What a rank of begin() has printed."""
        return (self.folder / f"log-{rank}").read_text(errors="replace")

    def _environment(self, settings: Mapping[str, object]) -> dict[str, str]:
        own = {f"RINGDP_{name.upper()}": str(value) for name, value in settings.items()}
        return without_settings(OMP_NUM_THREADS="1", **own)

    def _log(self) -> Path:
        """The log of the next process."""
        return self.folder / f"log-{len(self._processes)}"

    def _logs(self) -> str:
        """The ends of all logs."""
        logs = sorted(self.folder.glob("log-*"))
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-2500:]}" for log in logs)
