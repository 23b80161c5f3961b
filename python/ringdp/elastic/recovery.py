"""How a world of an elastic job came about on this rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from ringdp.text.units import counted, names, seconds


@dataclass
class Recovery:
    """How a world came about. Times in seconds.

    step: the step that it took up. again: leaves of it that are dealt out again, as no rank holds them: those that had
    gone to members that are gone, and those that the others had not come to. None where no rank holds any.
    applied: this rank had the mean of the step before and applied it now. cause: of the end of the world before, the
    first sentence of its error; '' without one. leaving_s: attempts that have failed since then are in it.
    """

    epoch: int
    members: tuple[int, ...]
    step: int
    cause: str = ""
    again: list[int] = field(default_factory=list)
    applied: bool = False
    leaving_s: float = 0.0
    gathering_s: float = 0.0
    joining_s: float = 0.0
    state_s: float = 0.0

    def seconds(self) -> float:
        """From the error, or the end of the step before, until the first micro-batch."""
        return self.leaving_s + self.gathering_s + self.joining_s + self.state_s

    def line(self) -> str:
        """For people."""
        took = seconds(self.seconds())
        why = f" after {self.cause!r}" if self.cause else ""
        again = f", {counted(len(self.again), 'micro-batch')} again" if self.again else ""
        return (
            f"ringdp.elastic: world {self.epoch}: {counted(len(self.members), 'rank')} "
            f"({names(self.members, 'member')}){why}, step {self.step}{again}, {took}"
        )


OUTER = "the outer parameters"


@dataclass
class LocalRecovery(Recovery):
    """Of workers that step alone (survive_local). step: of the latest meeting, from which lost workers go on.

    sources: of each worker whose rank has died, from where it came back. moved: workers that go on from the latest
    meeting on another rank. residuals_lost: elements of means of which what codes had left out is nowhere.
    """

    sources: dict[int, str] = field(default_factory=dict)
    moved: list[int] = field(default_factory=list)
    residuals_lost: int = 0

    def line(self) -> str:
        """For people."""
        by_source: dict[str, list[int]] = {}
        for worker, source in sorted(self.sources.items()):
            by_source.setdefault(source, []).append(worker)
        said = [f"{names(workers, 'worker')} from {source}" for source, workers in by_source.items()]
        said += [f"{names(self.moved, 'worker')} moved"] if self.moved else []
        said += [f"residuals of {counted(self.residuals_lost, 'element')} of means lost"] if self.residuals_lost else []
        return ", ".join([super().line(), *said])


OF_THIS_PROCESS: list[Recovery] = []
