"""What the ranks of a stage hold and send, as one row, and the three things that must be right together.

Memory is Pss as the kernel counts it, sampled from outside while the processes run: private pages, and of every page
that several processes map their equal share. Memory that N ranks share counts once over all of them, and memory that
has been returned to the kernel does not count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharding.stages import BYTES, bytes_per_parameter, passes_per_step

WIRE_SLACK = 1.005  # small exchanges in addition to the payload: what ranks agree on, how many gradients there are
KEPT = ("parameters", "gradients", "state", "master")  # the part of the account that the formula counts
TEMPORARIES_OF_TORCH = 3  # tensors of a parameter's size, which its single-tensor AdamW makes on the way (stage 0)


@dataclass(frozen=True)
class Row:
    """One stage. Bytes per parameter on the rank that has most; sent: bytes per step and rank over links.

    unit: one layer's gradient, which is there for a moment, as autograd makes it, in addition to its place in a bucket.
    """

    stage: int
    ranks: int
    formula: float
    measured: float
    unit: float
    phases: dict[str, float]
    account: dict[str, float]
    sent: float
    sent_formula: float
    digest: str

    @property
    def ratio(self) -> float:
        """Measured memory over its formula."""
        return self.measured / self.formula

    @property
    def named(self) -> float:
        """Bytes per parameter of buffers that the formula does not count: the account's, and torch's own."""
        torchs = TEMPORARIES_OF_TORCH * self.unit if self.stage == 0 else 0.0
        return sum(size for kind, size in self.account.items() if kind not in KEPT) + torchs

    def wrong(self, slack: float, digest: str) -> list[str]:
        """What is not as it must be; `digest`: of the parameters of the first stage."""
        said = []
        allowed = slack * (self.formula + self.named + self.unit)
        if not self.formula / slack <= self.measured <= allowed:
            said.append(f"memory {self.measured:.2f} bytes per parameter, must be {self.formula:.2f} to {allowed:.2f}")
        if not self.sent_formula <= self.sent <= WIRE_SLACK * self.sent_formula:
            said.append(f"{self.sent:,.0f} bytes sent per step, must be {self.sent_formula:,.0f}")
        if self.digest != digest:
            said.append(f"parameters {self.digest[:12]}, must be {digest[:12]}")
        return said


def row_of(
    job: dict[str, Any], parameters: int, in_memory: Sequence[dict[str, Any]], sampler: Sampler, linked: Sequence[Any]
) -> Row:
    """in_memory: what the ranks say that shared memory; linked: those that had links only."""
    ranks, stage = len(in_memory), job["stage"]
    seen = [max(sampler.peak(own["pid"], own["begin"], own["end"]), *own["peaks"].values()) for own in in_memory]
    grown = [peak - own["baseline"] for peak, own in zip(seen, in_memory, strict=True)]
    worst = in_memory[grown.index(max(grown))]
    digests = {own["hash"] for own in (*in_memory, *linked)}
    passes = passes_per_step(stage, job["micro_batches"])
    return Row(
        stage=stage,
        ranks=ranks,
        formula=bytes_per_parameter(stage, ranks, job["dtype"]),
        measured=max(grown) / parameters,
        unit=4 / job["layers"],
        phases={phase: (peak - worst["baseline"]) / parameters for phase, peak in worst["peaks"].items()},
        account={kind: size / parameters for kind, size in worst["account"].items()},
        sent=max(own["sent"] for own in linked),
        sent_formula=passes * parameters * BYTES[job["dtype"]][0] * (ranks - 1) / ranks,
        digest=digests.pop() if len(digests) == 1 else "ranks or transports differ",
    )


EVERY_S = 0.02


def pss(pid: int | str = "self") -> int:
    """Bytes; 0 when the process is gone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)


class Sampler:
    """Reads some processes again and again, on a thread of its own. Use as a context."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int, int]] = []
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, pids: Sequence[int]) -> None:
        """From now on these."""
        self._thread = threading.Thread(target=self._run, args=(tuple(pids),), name="sampler")
        self._thread.start()

    def peak(self, pid: int, begin: float, end: float) -> int:
        """The largest between two times of time.monotonic(), which is one clock for all processes; 0 without one."""
        return max((size for when, whose, size in self._samples if whose == pid and begin <= when <= end), default=0)

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, pids: tuple[int, ...]) -> None:
        while not self._done.wait(EVERY_S):
            for pid in pids:
                self._samples.append((time.monotonic(), pid, pss(pid)))
