"""compress="auto:int8": gradients are compressed as long as that makes steps shorter. Rank 0 measures, and decides.

In a probe, steps that are compressed and steps that are not take turns; residuals wait for the next one that is.
Before a longer time without compression it is sent whole, once. Decisions are taken between steps, and are all that
bits depend on: they are a value (`ddp.ledger().decisions`), are kept in checkpoints, and can be given to another run.
"""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, quantiles

import torch
import torch.distributed as dist

from ringdp.compress.methods import MODES, Auto, Decision

PROBE_STEPS = 20
LOSSES = 3  # in a row, of probes
SETTLED_STEPS = 500  # after which another probe asks again
CHECK_EVERY = 100  # steps, while settled: whether their time has changed
CHANGED = 1.5  # by which factor
WORTH = 0.02  # of the time of a step
_WARM_UP = 2  # steps of a probe that do not count


class Kind(enum.Enum):
    """A step is compressed, averaged as without compression, or averaged in float32 with all residuals."""

    CODED = "coded"
    WHOLE = "whole"
    SETTLING = "settling"


@dataclass
class Schedule:
    """Which kind each step is, 0, 1, ...: a function of the decisions, each of which holds from its step on."""

    decisions: list[Decision] = field(default_factory=lambda: [(0, "probe")])

    def mode(self, step: int) -> Decision:
        """The decision that holds then."""
        return next(decision for decision in reversed(self.decisions) if decision[0] <= step)

    def kind(self, step: int) -> Kind:
        """Of a step."""
        first, mode = self.mode(step)
        if mode == "probe":
            return Kind.WHOLE if (step - first) % 2 else Kind.CODED
        if mode == "coded":
            return Kind.CODED
        return Kind.SETTLING if step == first else Kind.WHOLE

    def decides(self, step: int) -> bool:
        """Whether rank 0 says, in front of this step, how to go on."""
        first, mode = self.mode(step)
        return step > first and (step - first) % (PROBE_STEPS if mode == "probe" else CHECK_EVERY) == 0

    def append(self, step: int, mode: str) -> None:
        """From this step on."""
        if self.mode(step)[1] != mode:
            self.decisions.append((step, mode))


@dataclass
class Measured:
    """By rank 0 since its latest decision. times: seconds of each step. losses: probes in a row that did not pay.

    settled_s: of a step of the settled kind, in the probe that settled it.
    """

    times: list[tuple[Kind, float]] = field(default_factory=list)
    losses: int = 0
    settled_s: float = 0.0

    def ratio(self) -> tuple[float, float] | None:
        """How many times as long a step takes with compression, the median over neighbours; and its uncertainty.

        None where there are too few, as in a run that was loaded just before.
        """
        counted = self.times[_WARM_UP:]
        pairs = pairwise(counted)
        ratios = [a / b for (kind, a), (other, b) in pairs if kind is Kind.CODED and other is Kind.WHOLE]
        if len(ratios) < 2:
            return None
        low, _, high = quantiles(ratios, n=4)
        return median(ratios), (high - low) / 2 / len(ratios) ** 0.5

    def after_probe(self, step: int) -> tuple[str, str]:
        """The mode from this step on, and what there is to say of it."""
        if (found := self.ratio()) is None:
            return "probe", ""
        ratio, noise = found
        pays = ratio < 1 - WORTH - noise
        self.losses = 0 if pays else self.losses + 1
        if not pays and self.losses < LOSSES:
            return "probe", ""
        mode, how, kind = ("coded", "compresses", Kind.CODED) if pays else ("whole", "does not compress", Kind.WHOLE)
        self.losses, self.settled_s = 0, median(seconds for its, seconds in self.times[_WARM_UP:] if its is kind)
        return mode, f"{how} from step {step} on: a step takes {ratio:.2f} times as long with it (within {noise:.2f})"

    def while_settled(self, step: int, decision: Decision) -> tuple[str, str]:
        """The same, some steps after a decision."""
        since, mode = decision
        if not self.times:
            return mode, ""
        now_s = median(seconds for _, seconds in self.times)
        self.settled_s = self.settled_s or now_s
        factor = now_s / self.settled_s
        if max(factor, 1 / factor) > CHANGED:
            return "probe", f"asks again from step {step} on: a step takes {factor:.2f} times as long as before"
        if step - since < SETTLED_STEPS:
            return mode, ""
        return "probe", f"asks again from step {step} on"


class Judge:
    """Of one rank. Collective: next_step(). Only rank 0 measures; decisions that are given are followed."""

    def __init__(self, auto: Auto, group: dist.ProcessGroup | None) -> None:
        self._auto, self._group = auto, group
        self._decides = (group is None or group.rank() == 0) and not auto.decisions
        self.restore(())

    def restore(self, decisions: Sequence[Decision]) -> None:
        """Of a checkpoint; where others were given, those are followed."""
        known = self._auto.decisions or [(int(step), str(mode)) for step, mode in decisions]
        self.schedule = Schedule([*known] or [(0, "probe")])
        self._measured, self._last = Measured(), 0.0

    def next_step(self, step: int) -> Kind:
        """The step before this one is over: the kind of this one."""
        now = time.perf_counter()
        if self._decides and self._last:
            self._measured.times.append((self.schedule.kind(step - 1), now - self._last))
        if not self._auto.decisions and self.schedule.decides(step):
            self.schedule.append(step, self._decided(step))
        self._last = time.perf_counter()  # a decision is not part of a step
        return self.schedule.kind(step)

    def _decided(self, step: int) -> str:
        mode, why = torch.zeros(1, dtype=torch.uint8), ""
        if self._decides:
            decision = self.schedule.mode(step - 1)
            is_probe = decision[1] == "probe"
            name, why = self._measured.after_probe(step) if is_probe else self._measured.while_settled(step, decision)
            self._measured.times.clear()
            mode.fill_(MODES.index(name))
        if self._group is not None:
            dist.broadcast(mode, group_src=0, group=self._group)
        if why:
            print(f"ringdp: compress={self._auto}: {why}", file=sys.stderr, flush=True)
        return MODES[int(mode)]
