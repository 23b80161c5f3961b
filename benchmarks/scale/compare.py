"""Formula and simulation compared: the same plans, as csrc/collective/recorder prints them, on the same network."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scale.costs import ELEMENT, SEGMENT, Formula, Network, Topology

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


Plan = dict[str, Any]


def plans(algorithm: str, size: int, at: Topology) -> list[Plan]:
    """One plan per rank of an all_reduce of `size` bytes of float32; "ring/rotated" is the ring in rotated order."""
    from ringdp import _native

    name, _, order = algorithm.partition("/")
    first_ranks = list(range(0, at.ranks, at.local))
    core = _native.load()
    return [
        json.loads(
            core.plan_json(
                "all_reduce",
                name,
                order or "rank",
                rank,
                at.ranks,
                max(1, size // ELEMENT),
                segment_bytes=SEGMENT,
                hosts=first_ranks,
            )
        )
        for rank in range(at.ranks)
    ]


def steps(of: list[Plan]) -> int:
    """Steps of all ranks together: what a simulation has to play."""
    return sum(plan["totals"]["steps"] for plan in of)


def port_bytes(of: list[Plan], at: Topology) -> int:
    """Bytes through the busiest direction of the busiest port: what stays on a host is not counted."""
    sent, received = [0] * at.hosts, [0] * at.hosts
    for plan in of:
        here = plan["rank"] // at.local
        for channel in plan["channels"]:
            for step in channel["steps"]:
                if step["verb"] == "send" and step["peer"] // at.local != here:
                    sent[here] += step["bytes"]
                    received[step["peer"] // at.local] += step["bytes"]
    return max(sent + received)


def rounds(of: list[Plan]) -> int:
    """Communication rounds of the longest rank."""
    return max(plan["totals"]["rounds"] for plan in of)
