#!/usr/bin/env python3
"""What a build of ringdp is on this machine: registers and instructions of its kernels, how two ranks communicate.

    PYTHONPATH=python:benchmarks python -m devices.facts [FACT ...]

Facts are probes (probe.py): each in a process of its own, with a deadline.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from devices.findings import NotHere
from devices.probe import Probes, main

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 25.0
RANKS = 2
# Of what a plan kernel may contain, and what would be wrong: a load that a cache may answer, a spill.
INSTRUCTIONS = {
    "loads of 16 bytes, system scope": re.compile(r"\bLDG\.E\.128\.STRONG\.SYS\b"),
    "stores of 16 bytes, system scope": re.compile(r"\bSTG\.E\.128\.STRONG\.SYS\b"),
    "global loads without a scope": re.compile(r"\bLDG\b(?!\S*STRONG)"),
    "local loads and stores": re.compile(r"\b(LDL|STL)\b"),
}


def library() -> Path:
    """libringdp_gpu.so of this build."""
    from ringdp import _native

    found = _native.load().gpu_report()["library"]
    if found is None:
        raise NotHere("the CUDA part is not built")
    return Path(found)


def versions() -> dict[str, Any]:
    """Of what the build runs with."""
    import ringdp
    import torch

    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "not asked"
    return {
        "ringdp": ringdp.__version__,
        "torch": torch.__version__,
        "CUDA of torch": torch.version.cuda or "none",
        "NCCL of torch": nccl,
        "python": sys.version.split()[0],
    }


def registers() -> dict[str, Any]:
    """Of all kernels as they are loaded."""
    from devices.core import core_or_skip

    core = core_or_skip()
    return {line.partition(":")[0]: line.partition(":")[2].strip() for line in core.kernels().splitlines()}


def copied() -> dict[str, Any]:
    """Between all devices that this process sees."""
    from devices.copies import speeds
    from devices.core import core_or_skip

    return speeds(core_or_skip())


def compiled() -> dict[str, Any]:
    """What ptxas said when it was built last: the most registers of a kernel, and spills."""
    logs = sorted((ROOT / "build").glob("cuda-*/device/cuda/*.log"), key=lambda log: log.stat().st_mtime)
    if not logs:
        raise NotHere("no log of nvcc: the library was not built here")
    text = "".join(log.read_text(errors="replace") for log in logs if log.parent == logs[-1].parent)
    return {
        "kernels": len(re.findall(r"Compiling entry function", text)),
        "most registers": max(map(int, re.findall(r"Used (\d+) registers", text)), default=0),
        "bytes spilled": sum(map(int, re.findall(r"(\d+) bytes spill stores", text))),
    }


def instructions_in(sass: str) -> dict[str, int]:
    """How many of INSTRUCTIONS the plan kernels of a listing have."""
    counts: Counter[str] = Counter(dict.fromkeys(INSTRUCTIONS, 0))
    inside = False
    for line in sass.splitlines():
        if "Function :" in line:
            inside = "plan_kernel" in line
            counts["plan kernels"] += inside
        elif inside:
            for name, pattern in INSTRUCTIONS.items():
                counts[name] += bool(pattern.search(line))
    return dict(counts)


def sass() -> dict[str, Any]:
    """Instructions of the plan kernels, as they are in the library."""
    beside_nvcc = [str(Path(nvcc).resolve().parent / "cuobjdump") for nvcc in filter(None, [shutil.which("nvcc")])]
    tool = next(filter(None, map(shutil.which, ["cuobjdump", *beside_nvcc])), None)
    if tool is None:
        raise NotHere("no cuobjdump")
    done = subprocess.run([tool, "-sass", str(library())], capture_output=True, text=True, check=True)
    return instructions_in(done.stdout)


def described(device: str = "cuda") -> dict[str, Any]:
    """How the backend of two ranks that share a device says it communicates, and what a small call costs them."""
    from runner.session import free_port

    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS)}
    command = [sys.executable, "-m", "devices.first_call", device]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    said = [rank.communicate() for rank in ranks]
    if bad := [number for number, rank in enumerate(ranks) if rank.returncode]:
        raise RuntimeError(f"rank {bad[0]} ended with status {ranks[bad[0]].returncode}:\n{said[bad[0]][1][-3000:]}")
    facts = json.loads(said[0][0].splitlines()[-1])
    if "collectives run on the host" in facts["describe"]:
        raise RuntimeError(facts["describe"])
    return facts


FACTS: Probes = {
    "versions": (versions, {}),
    "registers": (registers, {}),
    "copies": (copied, {}),
    "ptxas": (compiled, {}),
    "SASS": (sass, {}),
    "describe": (described, {}),
}


if __name__ == "__main__":
    sys.exit(main("devices.facts", FACTS, DEADLINE_S))
