"""The table at the end of a run, and the same as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ringdp.examples.comparison import Comparison
from ringdp.examples.proof import STEPS, Proof
from ringdp.examples.traffic import WIRE_PASSES, Traffic
from ringdp.observe.run_history import History
from ringdp.text.table import print_table
from ringdp.text.units import counted

Row = tuple[str, str, str]


@dataclass(frozen=True)
class Report:
    """Everything a run has found out. final_hashes: of the trained parameters, one per rank."""

    backend: str
    world: int
    tokens_per_step: int
    history: History
    comparison: Comparison | None
    final_hashes: list[str]
    proof: Proof

    def rows(self) -> list[Row]:
        """(what, value, how to read it)."""
        return [*self._loss_rows(), *self._speed_rows(), *self._traffic_rows(), *self._bit_rows()]

    def tokens_per_second(self) -> float:
        """Over all ranks, optimizer steps only."""
        return len(self.history.losses) * self.tokens_per_step / sum(self.history.step_seconds)

    def _loss_rows(self) -> list[Row]:
        losses, validation = self.history.losses, self.history.validation
        return [
            (
                "training loss",
                f"{losses[0]:.4f} -> {losses[-1]:.4f}",
                f"nats per byte, step 1 and {len(losses)}",
            ),
            (
                "validation loss",
                f"{validation[0][1]:.4f} -> {validation[-1][1]:.4f}",
                "text never trained on",
            ),
        ]

    def _speed_rows(self) -> list[Row]:
        rows = [
            (
                "tokens/s",
                f"{self.tokens_per_second():,.0f}",
                f"bytes of text, {counted(self.world, 'rank')}, one thread each",
            )
        ]
        if self.comparison is None:
            return [*rows, ("step over gloo", "-", "not measured (--rounds 0)")]
        ours, gloo = self.comparison.ours, self.comparison.gloo
        times = f"{self.backend} {1e3 * ours.step:.1f} ms, gloo {1e3 * gloo.step:.1f} ms"
        communication = f"{1e3 * ours.communication:.1f} ms"
        return [
            *rows,
            (
                "step, gloo / ours",
                f"{self.comparison.ratio:.3f}",
                f"{times}, in alternation; above 1 is faster than gloo",
            ),
            *self._stock_rows(),
            (
                "communication",
                communication,
                f"not hidden by backward, per step; gloo {1e3 * gloo.communication:.1f} ms",
            ),
        ]

    def _stock_rows(self) -> list[Row]:
        comparison = self.comparison
        if comparison is None or comparison.stock is None:
            return []
        times = f"stock DDP {1e3 * comparison.stock.step:.1f} ms, {1e3 * comparison.stock.communication:.1f} ms of it"
        return [
            (
                "step, stock DDP / ours",
                f"{comparison.stock_ratio:.3f}",
                f"{times} communication, over {self.backend}; above 1 is faster than stock DDP",
            )
        ]

    def _traffic_rows(self) -> list[Row]:
        traffic = self.comparison.traffic if self.comparison else None
        if traffic is None:
            why = f"{self.backend} counts no bytes" if self.comparison else "not measured (--rounds 0)"
            return [(what, "-", why) for what in ("wire bytes/step", "memory bytes/step")]
        over_links = f"{WIRE_PASSES[traffic.zero_stage]}(N-1) S over links"
        wire_note = "shared memory: nothing to send" if traffic.in_memory else over_links
        wire = ("wire bytes/step", *_against(traffic.wire, traffic.wire_formula, wire_note, traffic))
        if not traffic.in_memory or traffic.zero_stage:
            what = "of gradients and parameters in shards" if traffic.in_memory else "folds and copies beside the links"
            return [wire, ("memory bytes/step", f"{traffic.memory // traffic.steps:,}", what)]
        floor = traffic.memory_floor // traffic.steps
        note = f"(5N-2) S: copied in, folded, copied out; one pass alone is 2NS = {floor:,}"
        if traffic.in_place:
            note = "2NS: every gradient read once, every mean written once"
        return [
            wire,
            ("memory bytes/step", *_against(traffic.memory, traffic.memory_formula, note, traffic)),
        ]

    def _bit_rows(self) -> list[Row]:
        same = len(set(self.final_hashes)) == 1
        return [
            (
                "ranks",
                "same parameters" if same else "DIFFERENT PARAMETERS",
                f"sha256 {self.final_hashes[0][:12]} after the run",
            ),
            ("one process", str(self.proof), f"{STEPS} steps on {counted(self.world, 'rank')} and in one process"),
        ]


def _against(counted: int, formula: int, note: str, traffic: Traffic) -> tuple[str, str]:
    """Value and note of a counted number beside its formula, per step over all ranks."""
    verdict = "= formula" if counted == formula else f"formula {formula // traffic.steps:,}"
    return f"{counted // traffic.steps:,}", f"{verdict}, {note}"


def show(report: Report) -> None:
    """Prints the table."""
    print_table(f"{report.backend}, {counted(report.world, 'rank')}", None, report.rows())


def beside_the_log(report: Report) -> dict[str, Any]:
    """What the run's JSON has beside RunLog.report(): the comparison, and the bits."""
    return {
        "comparison": asdict(report.comparison) if report.comparison else None,
        "final_hashes": report.final_hashes,
        "proof": asdict(report.proof),
        "equal_to_one_process": report.proof.equal,
    }
