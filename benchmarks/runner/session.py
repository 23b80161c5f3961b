"""A session measures all candidates on one number of ranks: its shared memory, its processes, entries and reasons."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.cell import Cell
from runner.coordinator import Coordinator, Team, TeamLost
from runner.hosts import Hosts
from runner.limits import PROBE_OPS, shared_bytes
from runner.native import MAX_RANKS, Block, compile_native, make_shared
from runner.peers import PEERS, commands, why_missing
from runner.rounds import CellRun, Entry, Length

HERE = str(Path(__file__).resolve().parent.parent)  # where the package `runner` is
STORE_PORT = 29500


@dataclass
class Wishes:
    """What to measure, as the command line says it. `peers_folder` holds one virtual environment per peer."""

    peers: list[str] = field(default_factory=lambda: ["gloo"])
    peers_folder: Path = Path(".peers")
    backends: dict[str, str] = field(default_factory=dict)  # more c10d backends: name to the module that registers it
    length: Length = field(default_factory=Length)
    hosts: Hosts | None = None


@dataclass
class Report:
    """What a session reports besides times: versions and settings by candidate, and what is left out, with reasons."""

    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    limits: list[str] = field(default_factory=list)


def refusal(name: str, cell: Cell, cores: int) -> str:
    """Why a candidate cannot run a cell; empty when it can."""
    if name in PEERS:
        return PEERS[name].refusal(cell, cores)
    if name == "shuffle" and cell.op != "all_reduce":
        return "its bytes are those of an all_reduce"
    if name == "probe" and cell.op not in PROBE_OPS:
        return f"it moves the bytes of {', '.join(PROBE_OPS)}"
    return ""


class Session:
    """`ranks` ranks: the torch team and one team per peer. Use as a context."""

    def __init__(self, ranks: int, cells: list[Cell], wishes: Wishes) -> None:
        if not 2 <= ranks <= MAX_RANKS:
            raise ValueError(f"{ranks} ranks: must be 2 to {MAX_RANKS}")
        self.ranks, self.cells, self.wishes, self.report = ranks, cells, wishes, Report()
        self.cores = len(os.sched_getaffinity(0))
        self._stack = ExitStack()

    def __enter__(self) -> Session:
        with ExitStack() as undo:
            folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="session-")))
            if self.wishes.hosts:
                undo.enter_context(self.wishes.hosts)
            job = self._job(undo, folder)
            self._coordinator = Coordinator(folder, job, self.cells)
            undo.callback(self._coordinator.close)
            self._start_torch(folder)
            for number, name in enumerate((p for p in self.wishes.peers if p in PEERS), start=1):
                self._start_peer(folder, number, name)
            self._stack = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self, progress: Callable[[int, Cell], None]) -> Iterator[tuple[Cell, list[Entry]]]:
        """Cell after cell. `progress` hears of each before it starts."""
        for number, cell in enumerate(self.cells):
            progress(number, cell)
            for team in self._coordinator.teams:
                for name in set(team.hello["candidates"]) - set(team.hello["limits"]):
                    if reason := self._refuses(name, cell):
                        self.report.left_out[f"{name}, {cell.op} {cell.dtype}"] = reason
            yield cell, self._run(number)

    def _run(self, number: int) -> list[Entry]:
        cell_run = CellRun(self._coordinator, number, self._refuses)
        cell_run.run(self.wishes.length)
        self.report.left_out |= cell_run.lost
        return cell_run.entries

    def _refuses(self, name: str, cell: Cell) -> str:
        return refusal(name, cell, self.cores)

    def _job(self, undo: ExitStack, folder: Path) -> dict[str, Any]:
        hosts = self.wishes.hosts
        memory = []
        for name, size in (
            ("session-block", ctypes.sizeof(Block)),
            ("session-limits", max(1, shared_bytes(self.cells))),
        ):
            descriptor, path = make_shared(name, size)
            undo.callback(os.close, descriptor)
            memory.append(path)
        return {
            "ranks": self.ranks,
            "library": str(compile_native(folder)),
            "block": memory[0],
            "shared": memory[1],
            "backends": [name for name in self.wishes.peers if name not in PEERS] + list(self.wishes.backends),
            "modules": list(self.wishes.backends.values()),
            "hosts": hosts.addresses if hosts else [],
            "rendezvous": f"tcp://{hosts.addresses[0]}:{STORE_PORT}" if hosts else f"file://{folder}/store",
            "port": free_port(),
        }

    def _start_torch(self, folder: Path) -> None:
        path = os.pathsep.join(p for p in (HERE, os.environ.get("PYTHONPATH", "")) if p)
        commands_ = [[sys.executable, "-m", "runner.torch_rank", str(folder), str(r)] for r in range(self.ranks)]
        variables = [{"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} for _ in commands_]
        if hosts := self.wishes.hosts:
            commands_ = [hosts.command(r * len(hosts.addresses) // self.ranks, c) for r, c in enumerate(commands_)]
            for own in variables:
                own |= {"GLOO_SOCKET_IFNAME": "eth0", "RINGDP_SOCKET_IFNAME": "eth0"}
        self._welcome(self._coordinator.add("torch", 0, self.ranks, commands_, variables))

    def _start_peer(self, folder: Path, number: int, name: str) -> None:
        home = (self.wishes.peers_folder / name).absolute()
        reason = (
            "across hosts only backends of torch.distributed take part"
            if self.wishes.hosts
            else why_missing(PEERS[name], home)
        )
        if not reason and not any(not self._refuses(name, cell) for cell in self.cells):
            reason = self._refuses(name, self.cells[0])
        if reason:
            self.report.left_out[f"{name}, {self.ranks} ranks"] = reason
            return
        lines, launch = commands(PEERS[name], home, self.ranks, self.cores, [str(folder), str(number), name])
        path = os.pathsep.join((str(home / "bin"), os.environ.get("PATH", "")))
        own = {**launch.variables, "PYTHONPATH": HERE, "PATH": path, "OMP_NUM_THREADS": "1"}
        try:
            self._welcome(self._coordinator.add(name, number, self.ranks, lines, [own] * len(lines)))
            self.report.settings[name] = launch.settings
        except TeamLost as lost:
            self.report.left_out[f"{name}, {self.ranks} ranks"] = str(lost)
            self._coordinator.dismiss(self._coordinator.teams[-1])

    def _welcome(self, team: Team) -> None:
        self.report.versions[team.name] = team.hello["version"]
        self.report.left_out |= team.hello["left_out"]
        self.report.limits += team.hello["limits"]


@contextmanager
def _listener() -> Iterator[socket.socket]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        yield found


def free_port() -> int:
    """A port of this host that no process listens on just now."""
    with _listener() as found:
        return found.getsockname()[1]
