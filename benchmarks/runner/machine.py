"""What was measured on: processor, caches, memory, kernel, compiler and how busy it was."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from contextlib import suppress
from pathlib import Path


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text().strip()
    return ""


def _field(text: str, name: str) -> str:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def caches() -> dict[str, str]:
    """Caches of the first core, by level: {"L2": "1024K shared by 0"}."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind = _read(f"{index}/type")
        if kind != "Instruction":
            level, size, cores = (_read(f"{index}/{name}") for name in ("level", "size", "shared_cpu_list"))
            found[f"L{level}"] = f"{size} shared by {cores}"
    return found


def idle_share(seconds: float = 0.5) -> float:
    """Which part of the processor time is idle just now."""

    def ticks() -> tuple[int, int]:
        values = [int(word) for word in _read("/proc/stat").splitlines()[0].split()[1:9]]
        return values[3] + values[4], sum(values)

    idle, total = ticks()
    time.sleep(seconds)
    idle_after, total_after = ticks()
    return (idle_after - idle) / max(1, total_after - total)


def _compiler() -> str:
    with suppress(OSError, subprocess.SubprocessError):
        words = [*os.environ.get("CC", "cc").split(), "--version"]
        return subprocess.run(words, capture_output=True, text=True, timeout=10).stdout.splitlines()[0]
    return "none"


def describe() -> dict[str, object]:
    """Facts for the head of a table and for JSON."""
    kib = int((_field(_read("/proc/meminfo"), "MemTotal") or "0").split()[0])
    return {
        "cpu": _field(_read("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "caches": caches(),
        "memory_gib": round(kib / (1 << 20), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "compiler": _compiler(),
        "idle": round(idle_share(), 2),
        "load": round(os.getloadavg()[0], 2),
    }


def sentence(facts: dict[str, object]) -> str:
    """One line for people."""
    levels = ", ".join(f"{level} {size}" for level, size in facts["caches"].items())
    return (
        f"{facts['cpu']}, {facts['cores']} cores ({levels}), {facts['memory_gib']} GiB, Linux {facts['kernel']}, "
        f"Python {facts['python']}, {facts['compiler']}; {100 * facts['idle']:.0f} % idle, load {facts['load']} before"
    )
