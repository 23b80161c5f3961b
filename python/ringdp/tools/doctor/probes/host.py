"""Where a rank runs: its host, the cores it may use, its threads, and how its backend reaches the other ranks.

Record place: host, cores (numbers), host_cores, threads, paths (peer, why: "tcp: network namespaces differ"; none
where the default group's backend does not say).
"""

from __future__ import annotations

import os
import re
import socket
from typing import Any

import torch
import torch.distributed as dist

from ringdp.tools.doctor.probes.context import ProbeContext

_PEER = re.compile(r"^rank (\d+) \(.*?\): (.*)$", re.MULTILINE)


def install(context: ProbeContext) -> None:
    """Read once, in the second step, when the script has made its settings."""

    def look() -> None:
        if context.step == 1:
            context.write(
                {
                    "kind": "place",
                    "host": socket.gethostname(),
                    "cores": sorted(os.sched_getaffinity(0)),
                    "host_cores": os.cpu_count() or 1,
                    "threads": torch.get_num_threads(),
                    "paths": _paths(),
                }
            )

    context.before_step.append(look)


def _paths() -> list[dict[str, Any]]:
    if not (dist.is_available() and dist.is_initialized()):
        return []
    backends = [dist.group.WORLD._get_backend(device) for device in dist.group.WORLD._device_types]
    described = next((backend.describe() for backend in backends if hasattr(backend, "describe")), "")
    return [{"peer": int(peer), "why": why} for peer, why in _PEER.findall(described)]
