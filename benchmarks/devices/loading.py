#!/usr/bin/env python3
"""Seconds until all kernels of ringdp are loaded: as they were built, and compiled by the driver from their PTX, as
where the device is newer than the build.

    PYTHONPATH=python:benchmarks python -m devices.loading [PROBE ...]
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from devices.core import Core, CoreError, core_or_skip
from devices.findings import NotHere
from devices.probe import Probes, main

LIMIT_S, DEADLINE_S = 40.0, 50.0
FROM_PTX = {"CUDA_FORCE_PTX_JIT": "1", "CUDA_CACHE_DISABLE": "1"}  # the driver's own variables


def seconds(core: Core, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Of rd_gpu_kernels, which loads them all. It cannot be ended, so it is left at the limit."""
    said: list[str] = []

    def load() -> None:
        try:
            core.kernels()
        except CoreError as error:
            said.append(str(error))

    thread = threading.Thread(target=load, daemon=True)
    begin = time.monotonic()
    thread.start()
    thread.join(limit_s)
    took = time.monotonic() - begin
    if said:
        raise NotHere(f"kernels are not loaded: {said[0]}")
    return {"seconds": round(took, 2)} if not thread.is_alive() else {"seconds": f"more than {limit_s:g}"}


def loaded() -> dict[str, Any]:
    """On this machine's device."""
    return seconds(core_or_skip())


PROBES: Probes = {"kernels as built": (loaded, {}), "kernels from PTX": (loaded, FROM_PTX)}


if __name__ == "__main__":
    sys.exit(main("devices.loading", PROBES, DEADLINE_S))
