"""What was measured of one workload on a few ranks of a machine, as a value that can be kept in a file."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

from ringdp.tools.planner import formulas
from ringdp.tools.planner.question import InputError

_ABOVE_0 = ("micro_batch", "ranks", "cores", "bandwidth", "forward", "backward", "base")
_LISTS = {tuple[int, ...]: int, tuple[float, ...]: float}


@dataclass(frozen=True)
class Calibration:
    """Seconds are medians on the slowest rank; bytes are of one rank.

    bandwidth: of each rank's link, bytes per second, or None when ranks share a host's memory. forward, backward,
    optimizer: of a step, alone. alpha: seconds of an all-reduce of nothing; seconds_per_byte: more for each byte that
    a rank sends (between hosts), or that its tensor has (shared memory); cpu_per_second: of a rank's core while it
    communicates. overhead: of a measured step beyond all this. buckets: bytes; ready: share of backward.
    parameters, gradients, state, saved (by forward for backward), batch, two_units (the largest of stage 3): counted
    on fake tensors. base: of the process after training another, small model; peak: at the calibrated one; measured.
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
    batch: int
    two_units: int
    base: int
    peak: int

    @property
    def counted(self) -> int:
        """Bytes by formula: parameters, gradients, state, a batch, and what forward keeps."""
        return int(self.held(1, 0))

    def held(self, ranks: int, stage: int) -> float:
        """Bytes by formula at a ZeRO stage: its shares, a batch, what forward keeps, and what is on its way.

        On its way are at stage 2 the two largest buckets, at stage 3 the two largest units and their gradients.
        """
        shares = formulas.stage_bytes(1, ranks, stage, self.parameters, self.gradients, self.state)
        passing = {2: sum(sorted(self.buckets)[-2:]), 3: 2 * self.two_units}
        return shares + self.saved + self.batch + passing.get(stage, 0)

    @property
    def other(self) -> int:
        """Bytes of the measured peak that base and formulas do not explain. No prediction uses them."""
        return self.peak - self.base - self.counted

    @property
    def samples_per_second(self) -> float:
        """The throughput of one rank that computes alone."""
        return self.micro_batch / (self.forward + self.backward)

    @property
    def suggested_bucket_bytes(self) -> float:
        """The best size for the measured latency and bandwidth; all gradients where bytes cost nothing."""
        per_byte = self.seconds_per_byte * moved_bytes(1, self.ranks, self.bandwidth is not None)
        return formulas.suggested_bucket_bytes(self.gradients, 1 / per_byte, self.alpha) if per_byte else self.gradients

    def save(self, path: Path) -> None:
        """Writes JSON. InputError when the file cannot be written."""
        try:
            path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        except OSError as error:
            raise InputError(f"--calibration {path}: {error.strerror}") from None


def load(path: Path) -> Calibration:
    """InputError names the file and what is wrong with it."""
    try:
        return _read(json.loads(path.read_text()))
    except OSError as error:
        raise InputError(f"--calibration {path}: {error.strerror}; make one by ringdp plan --calibrate") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"--calibration {path}: {str(error).splitlines()[0]}; measure again") from None


def _read(found: Any) -> Calibration:
    kinds = get_type_hints(Calibration)
    if not isinstance(found, dict) or set(found) != set(kinds):
        raise ValueError("is not a calibration of `ringdp plan --calibrate`")
    read = Calibration(**{name: _field(name, found[name], kind) for name, kind in kinds.items()})
    if len(read.buckets) != len(read.ready):
        raise ValueError(f"'buckets' are {len(read.buckets)}, 'ready' are {len(read.ready)}")
    return read


def _field(name: str, value: Any, kind: Any) -> Any:
    """The value as the field has it; ValueError when it cannot be."""
    if kind in _LISTS and isinstance(value, list):
        return tuple(_field(name, part, _LISTS[kind]) for part in value)
    if kind in _LISTS or not isinstance(value, kind if kind is int else kind | int) or not _possible(name, value):
        raise ValueError(f"'{name}' is {value!r}, which was never measured")
    return value


def _possible(name: str, value: Any) -> bool:
    if isinstance(value, str) or name == "workload":
        return isinstance(value, str) and name == "workload"
    if value is None:
        return True
    return not isinstance(value, bool) and math.isfinite(value) and (value > 0 if name in _ABOVE_0 else value >= 0)


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
