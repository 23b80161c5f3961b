"""Where a rank runs: its host, the cores it may use, and its threads.

Record place: host, cores (numbers), host_cores, threads, openmp (OMP_NUM_THREADS or '').
"""

from __future__ import annotations

import os
import socket

import torch

from ringdp.doctor.probes.rig import Rig


def install(rig: Rig) -> None:
    """Looked at once, in the second step: by then the script has set what it sets."""

    def look() -> None:
        if rig.step == 1:
            rig.write(
                {
                    "kind": "place",
                    "host": socket.gethostname(),
                    "cores": sorted(os.sched_getaffinity(0)),
                    "host_cores": os.cpu_count() or 1,
                    "threads": torch.get_num_threads(),
                    "openmp": os.environ.get("OMP_NUM_THREADS", ""),
                }
            )

    rig.before_step.append(look)
