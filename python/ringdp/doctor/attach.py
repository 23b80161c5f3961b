"""In a rank of `ringdp doctor`: all probes are installed, and what they see is written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringdp.doctor.probes import collectives, dropout, errors, host, kernels, steps, wrapper
from ringdp.doctor.probes.rig import Rig, Sink


def attach(write: Sink, options: dict[str, Any]) -> Rig:
    """For the life of the process. options: `folder`, where stacks are written."""
    rig = Rig(write)
    for probe in (steps, wrapper, dropout, collectives, host, kernels):
        probe.install(rig)
    errors.install(rig, Path(options["folder"]))
    return rig
