"""The peers that are not inside torch: how each is started, with which settings, and what it cannot do.

Every peer lives in a virtual environment of its own below one folder (benchmarks/peers.py makes them): their launchers
and libraries have the same names and would overwrite each other.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from runner.cell import SUMS, Cell

MPI_MODULE = "runner.mpi_rank"
PROBE = "import mpi4py; mpi4py.rc.initialize = False; import mpi4py.MPI"  # starts no MPI, which would leave files
OP_MODULE = "deepspeed_shm_comm"  # the name under which DeepSpeed compiles it


@dataclass(frozen=True)
class Launch:
    """How ranks are started: words before `python -m module`, if any, and variables."""

    words: list[str]
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> str:
        """What a reader needs to repeat it."""
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        return " ".join([*variables, *self.words]) or "defaults"


def _openmpi(ranks: int, cores: int) -> Launch:
    words = ["mpiexec", "--allow-run-as-root", "-n", str(ranks)]
    if ranks <= cores:
        return Launch([*words, "--bind-to", "core"])
    yields = {"OMPI_MCA_mpi_yield_when_idle": "1"}
    return Launch([*words, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"], yields)


def _mpich(ranks: int, cores: int) -> Launch:
    words = ["mpiexec", "-n", str(ranks)]
    if ranks <= cores:
        return Launch(words)
    return Launch(words, {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1"})


def _intelmpi(ranks: int, cores: int) -> Launch:
    variables = {"I_MPI_FABRICS": "shm", "I_MPI_HYDRA_BOOTSTRAP": "fork"}
    if ranks > cores:
        variables |= {"I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "3"}
    return Launch(["mpiexec", "-n", str(ranks)], variables)


def _mpi_refusal(cell: Cell, cores: int) -> str:
    return "MPI has no bfloat16 to sum" if cell.dtype == "bfloat16" and cell.op in SUMS else ""


def _deepspeed_refusal(cell: Cell, cores: int) -> str:
    if cell.ranks > cores:
        return f"its ranks poll without pause: {cell.ranks} on {cores} cores do not get anywhere"
    return "" if cell.op == "all_reduce" else "the op is an all_reduce only"


@dataclass(frozen=True)
class Peer:
    """One peer. `launch` is None where every rank is started by itself."""

    name: str
    module: str
    refusal: Callable[[Cell, int], str]  # why a cell cannot run on that many cores; empty: it can
    launch: Callable[[int, int], Launch] | None = None


PEERS = {
    peer.name: peer
    for peer in (
        Peer("openmpi", MPI_MODULE, _mpi_refusal, _openmpi),
        Peer("mpich", MPI_MODULE, _mpi_refusal, _mpich),
        Peer("intelmpi", MPI_MODULE, _mpi_refusal, _intelmpi),
        Peer("deepspeed", "runner.deepspeed_rank", _deepspeed_refusal),
    )
}


def compiled_op(home: Path) -> Path:
    """Where peers.py leaves DeepSpeed's op: compiling it at the start of a session would take a minute."""
    return home / "compiled" / OP_MODULE / f"{OP_MODULE}.so"


def why_missing(peer: Peer, home: Path) -> str:
    """Why the peer cannot be started from its environment; empty when it can."""
    if not (home / "bin/python").exists():
        return f"not installed in {home} (python benchmarks/peers.py {peer.name})"
    if peer.launch is None:
        op = compiled_op(home)
        return "" if op.exists() else f"{op} is not compiled (python benchmarks/peers.py {peer.name})"
    words = [home / "bin/python", "-c", PROBE]
    probe = subprocess.run(words, capture_output=True, text=True, timeout=120)
    if probe.returncode:
        return f"import mpi4py.MPI fails in {home}: {(probe.stderr.strip().splitlines() or ['no words'])[-1]}"
    return "" if (home / "bin/mpiexec").exists() else f"{home} has no mpiexec"


def commands(peer: Peer, home: Path, ranks: int, cores: int, arguments: list[str]) -> tuple[list[list[str]], Launch]:
    """The processes to start for `ranks` ranks; a rank that is started by itself gets its number as last argument."""
    python = [str(home / "bin/python"), "-m", peer.module, *arguments]
    if peer.launch is None:
        return [[*python, str(rank)] for rank in range(ranks)], Launch([])
    launch = peer.launch(ranks, cores)
    return [[str(home / "bin" / launch.words[0]), *launch.words[1:], *python]], launch
