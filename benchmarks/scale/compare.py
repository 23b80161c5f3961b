"""Formula beside simulation: the same plans, the same network, how far they are apart."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from scale.costs import Formula, Topology
from scale.network import Network
from scale.recorded import plans, steps

HERE = str(Path(__file__).resolve().parent.parent)
MOST_STEPS = 60_000  # above this a simulation takes minutes
LIMIT_S = 300


@dataclass(frozen=True)
class Comparison:
    """Seconds by both; deviation = formula / simulation - 1."""

    algorithm: str
    hosts: int
    local: int
    size: int
    formula: float
    simulation: float

    @property
    def deviation(self) -> float:
        """How much longer the formula says it takes, as a share."""
        return self.formula / self.simulation - 1


def simulator(folder: Path) -> tuple[str, str]:
    """An interpreter that has SimGrid: this one, or that of folder/simgrid; else why there is none."""
    own = folder / "simgrid/bin/python"
    python = sys.executable if importlib.util.find_spec("simgrid") else str(own)
    if not Path(python).exists():
        return "", f"no simgrid here or in {folder / 'simgrid'} (python benchmarks/peers.py simgrid)"
    done = _run(python, "-c", "from scale.simulate import load_simgrid; load_simgrid()")
    return (
        (python, "") if done.returncode == 0 else ("", f"import simgrid fails in {python}: {_last_line(done.stderr)}")
    )


def _run(python: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": HERE}
    return subprocess.run([python, *words], capture_output=True, text=True, timeout=LIMIT_S, env=environment)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no words"])[-1]


def simulated(python: str, recorded: list[dict], local: int, network: Network) -> float:
    """Seconds that SimGrid says these plans take; RuntimeError with its words when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job.json")
        job.write_text(json.dumps({"plans": recorded, "local": local, "network": asdict(network)}))
        done = _run(python, "-m", "scale.simulate", str(job))
    if done.returncode:
        raise RuntimeError(f"simulation: {_last_line(done.stderr)}")
    return float(done.stdout.split()[-1])


def compare(python: str, algorithm: str, cost: Formula, size: int, at: Topology, network: Network) -> Comparison | str:
    """Both times, or why this is not simulated."""
    recorded = plans(algorithm, size, at)
    if steps(recorded) > MOST_STEPS:
        return f"{steps(recorded)} steps are more than {MOST_STEPS}"
    seconds = simulated(python, recorded, at.local, network)
    return Comparison(algorithm, at.hosts, at.local, size, cost(size, at, network), seconds)
