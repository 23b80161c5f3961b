"""What the checks examine: the ranks' records, the user's baseline, and how the job ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ringdp.tools.attach.records import RankRecords, world_of

WARM_UP = 5  # steps whose times are not typical: buffers are allocated, buckets rebuilt, kernels chosen


@dataclass(frozen=True)
class Baseline:
    """The learning rate that is known to be good, and the batch size it is known for."""

    lr: float
    batch: int


@dataclass(frozen=True)
class Stand:
    """Where a rank was: the line of its script, and the call of torch or ringdp in which it waited, or ''.

    A process that is stopped does not say its line: `stopped`.
    """

    line: str
    call: str = ""
    stopped: bool = False


@dataclass(frozen=True)
class Evidence:
    """`stopped`: why the doctor ended the job, or '' when it ended by itself.

    `died`: the rank that ended first and how, as the launcher said it: "exit code 3", "signal 9". Of a job that hung,
    by rank: `stacks`, where it stood, and `idle`, for how many seconds it had written nothing.
    """

    ranks: Mapping[int, RankRecords]
    baseline: Baseline | None = None
    stopped: str = ""
    status: int = 0
    stacks: Mapping[int, Stand] = field(default_factory=dict)
    idle: Mapping[int, float] = field(default_factory=dict)
    died: tuple[int, str] | None = None

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return world_of(self.ranks)

    @property
    def steps(self) -> int:
        """The number of steps of the rank that made the fewest."""
        return min((len(records.of("step")) for records in self.ranks.values()), default=0)

    @property
    def complete(self) -> bool:
        """Whether there are several ranks, and all have made steps."""
        return 1 < self.world == len(self.ranks) and all(records.of("step") for records in self.ranks.values())

    def by_step(self, kind: str) -> dict[int, dict[int, dict[str, Any]]]:
        """Records of a kind by step and rank; only steps of which all ranks have a record."""
        rows: dict[int, dict[int, dict[str, Any]]] = {}
        for rank, records in self.ranks.items():
            for row in records.of(kind):
                rows.setdefault(row["step"], {})[rank] = row
        return {step: row for step, row in sorted(rows.items()) if len(row) == self.world}

    def warm(self, kind: str) -> dict[int, dict[int, dict[str, Any]]]:
        """by_step() without the first steps."""
        return {step: row for step, row in self.by_step(kind).items() if step >= WARM_UP}

    def model(self) -> dict[str, Any]:
        """Rank 0's wrapper; empty where there is none."""
        records = self.ranks.get(0)
        return records.of("model")[0] if records and records.of("model") else {}

    def step_seconds(self) -> float:
        """The median of all warm steps of all ranks; 0 without any."""
        times = [row["seconds"] for rows in self.warm("step").values() for row in rows.values()]
        return median(times) if times else 0.0

    def waits(self) -> dict[int, dict[int, float]]:
        """Seconds of exposed communication by warm step and rank: gradients, buffers, and the script's own calls.

        A wrapper's figures of a step come with the next one: where there is a wrapper, the last step is left out.
        """
        steps = self.warm("step")
        exposed = self.by_step("ddp")
        found = {}
        for step, rows in steps.items():
            hidden_not = exposed.get(step, {})
            if exposed and not hidden_not:
                continue
            found[step] = {
                rank: row["called"]
                + row["buffers"]
                + (max(0.0, hidden_not[rank]["communication"] - hidden_not[rank]["overlap"]) if hidden_not else 0.0)
                for rank, row in rows.items()
            }
        return found
