"""What `ringdp doctor` observes in a rank: one subject per file, each a function install(ProbeContext)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringdp.tools.doctor.probes import collectives, errors, host, replicas, reproducibility, steps, wrapper
from ringdp.tools.doctor.probes.context import ProbeContext, Sink


def attach(write: Sink, options: dict[str, Any]) -> ProbeContext:
    """Installs all probes for the life of the process. options: `folder`, where stacks are written; `steps`."""
    context = ProbeContext(write)
    replicas.install(context, options["steps"])  # first: the probe of steps ends what it looks at
    for probe in (steps, wrapper, reproducibility, collectives, host):
        probe.install(context)
    errors.install(context, Path(options["folder"]))
    return context
