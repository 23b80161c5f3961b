"""What was measured of one workload on a few ranks of a machine, as a value that can be kept in a file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ringdp.planner import formulas
from ringdp.planner.kind import InputError


@dataclass(frozen=True)
class Calibration:
    """Seconds are medians on the slowest rank; bytes are of one rank.

    bandwidth: of each rank's link, bytes per second, or None when ranks share a host's memory. forward, backward,
    optimizer: of a step, alone. alpha: seconds of an all-reduce of nothing; seconds_per_byte: more for each byte that
    a rank sends (between hosts), or that its tensor has (shared memory); cpu_per_second: of a rank's core while it
    communicates. overhead: of a measured step beyond all this. buckets: bytes; ready: share of backward. base: of the
    process without model. saved: by forward for backward, as counted on fake tensors. peak: of the process, measured.
    """

    workload: str
    micro_batch: int
    ranks: int
    cores: int
    bandwidth: float | None
    forward: float
    backward: float
    optimizer: float
    alpha: float
    seconds_per_byte: float
    cpu_per_second: float
    step: float
    overhead: float
    buckets: tuple[int, ...]
    ready: tuple[float, ...]
    parameters: int
    gradients: int
    state: int
    saved: int
    base: int
    peak: int

    @property
    def counted(self) -> int:
        """Bytes by formula: parameters, gradients, state, and what forward keeps."""
        return self.parameters + self.gradients + self.state + self.saved

    @property
    def other(self) -> int:
        """Bytes at the peak that are neither counted nor were there before: code loaded late, buffers of links."""
        return self.peak - self.base - self.counted

    @property
    def samples_per_second(self) -> float:
        """Of one rank, computing alone."""
        return self.micro_batch / (self.forward + self.backward)

    def save(self, path: Path) -> None:
        """As JSON. InputError when the file cannot be written."""
        try:
            path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        except OSError as error:
            raise InputError(f"--calibration {path}: {error.strerror}") from None


def load(path: Path) -> Calibration:
    """InputError names the file and what is wrong with it."""
    try:
        found = json.loads(path.read_text())
        names = {field.name for field in fields(Calibration)}
        if not isinstance(found, dict) or set(found) != names:
            raise InputError(f"--calibration {path}: is none of `ringdp plan --calibrate`: measure again")
        return Calibration(**{**found, "buckets": tuple(found["buckets"]), "ready": tuple(found["ready"])})
    except OSError as error:
        raise InputError(f"--calibration {path}: {error.strerror}; make one by ringdp plan --calibrate") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"--calibration {path}: {str(error).splitlines()[0]}") from None


def moved_bytes(size: float, ranks: int, between_hosts: bool) -> float:
    """Bytes that `seconds_per_byte` counts for a tensor of `size`."""
    return formulas.ring_bytes_per_rank(size, ranks) if between_hosts else size


def line_of(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(alpha, slope) through (bytes, seconds): the smallest size's time, and the slope to the largest.

    alpha is what the smallest takes beyond its own bytes; both at least 0.
    """
    (small, quick), (large, slow) = min(points), max(points)
    slope = max(0.0, (slow - quick) / (large - small)) if large > small else 0.0
    return max(0.0, quick - slope * small), slope


def slowest(reports: Sequence[dict[str, Any]], name: str) -> float:
    """The largest of all ranks' medians."""
    return max(statistics.median(report[name]) for report in reports)
