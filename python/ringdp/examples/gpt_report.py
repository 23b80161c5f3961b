"""What a run of train_gpt shows: its progress, where a step's time and bytes go, the proof, a picture and a table.

The comparison runs the same steps with several configurations (lanes), which take turns in a different order each
round, so that all see the same machine: the run's own; stock DDP over the run's backend, if the run uses another
wrapper; stock DDP over gloo; and no communication. All use copies of the trained model. The communication time of a
lane is its backward time minus that of the lane without communication.
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ringdp.examples.gpt import GPT, adamw, data_parallel, next_token_loss
from ringdp.text.table import print_table
from ringdp.text.terminal import in_terminal
from ringdp.text.units import counted
from ringdp.tools.observe.run_log import History


class Progress(Protocol):
    """A context manager that is shown the history after every step."""

    def __enter__(self) -> Progress: ...
    def __exit__(self, *exception: object) -> None: ...
    def show(self, history: History) -> None:
        """One more step is done."""


def progress_for(rank: int, first: int, last: int, bytes_per_step: int) -> Progress:
    """What suits this rank and its standard output; bytes_per_step: over all ranks."""
    if rank != 0:
        return Silent()
    if in_terminal():
        return Live(first, last, bytes_per_step)
    return Plain(first, last, bytes_per_step)


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def show(self, history: History) -> None:
        """Nothing."""


class Pace:
    """Speed and time left, from the wall clock since it was made."""

    def __init__(self, first: int, last: int, bytes_per_step: int) -> None:
        self._first, self._last, self._bytes = first, last, bytes_per_step
        self._start = time.perf_counter()

    def line(self, history: History) -> str:
        """E.g. 'loss 2.1043  val 2.2010  8123 tokens/s  41 s left'."""
        step = len(history.losses)
        per_step = (time.perf_counter() - self._start) / max(1, step - self._first)
        validation = f"  val {history.validation[-1][1]:.4f}" if history.validation else ""
        speed = self._bytes / per_step
        left = per_step * (self._last - step)
        return f"loss {history.losses[-1]:.4f}{validation}  {speed:,.0f} tokens/s  {left:.0f} s left"


class Plain:
    """About twenty lines over the run."""

    def __init__(self, first: int, last: int, bytes_per_step: int) -> None:
        self._last, self._every = last, max(1, -(-(last - first) // 20))
        self._pace = Pace(first, last, bytes_per_step)

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def show(self, history: History) -> None:
        """A line when it is time for one."""
        step = len(history.losses)
        if step % self._every == 0 or step == self._last:
            print(f"step {step:>{len(str(self._last))}}/{self._last}  {self._pace.line(history)}", flush=True)


class Live:
    """One line that moves, by rich."""

    def __init__(self, first: int, last: int, bytes_per_step: int) -> None:
        from rich import progress

        self._pace = Pace(first, last, bytes_per_step)
        columns: list[Any] = [
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[line]}"),
        ]
        self._bar = progress.Progress("[bold]training", *columns)
        self._task = self._bar.add_task("train", total=last, completed=first, line="")

    def __enter__(self) -> Live:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def show(self, history: History) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=len(history.losses), line=self._pace.line(history))


# zero_stage -> how often a rank sends (N-1)/N of the bytes of all gradients or parameters in a step. Stage 1 leaves
# every rank the whole mean, so it all-reduces before it gathers.
WIRE_PASSES = {0: 2, 1: 3, 2: 2, 3: 3}


@dataclass(frozen=True)
class Traffic:
    """Bytes of `steps` steps, over all ranks. gradient_bytes: S, what one rank all-reduces in one step.

    in_place: buckets lie in shared memory where there is some, so nothing is copied there.
    """

    world: int
    steps: int
    gradient_bytes: int
    wire: int
    memory: int
    in_place: bool = False
    zero_stage: int = 0

    @property
    def in_memory(self) -> bool:
        """Whether gradients went through memory that all ranks map: then there is nothing to send."""
        return self.wire == 0 and self.memory > 0

    @property
    def wire_formula(self) -> int:
        """2(N-1)/N S from each rank over links, whichever way round, 3(N-1)/N S at stages 1 and 3; 0 in memory."""
        passes = 0 if self.in_memory else WIRE_PASSES[self.zero_stage]
        return passes * (self.world - 1) * self.gradient_bytes * self.steps

    @property
    def memory_floor(self) -> int:
        """2 N S: every gradient byte read once and every mean written once."""
        return 2 * self.world * self.gradient_bytes * self.steps

    @property
    def memory_formula(self) -> int:
        """2 N S in place; (5N-2) S where gradients are copied into the arena and means out of it.

        Both copies read and write (N-1) S; the fold reads N S and writes S twice, to the arena and its owner.
        """
        if self.in_place:
            return self.memory_floor
        return (5 * self.world - 2) * self.gradient_bytes * self.steps


class Meter:
    """Adds up what the default group's backend counts between start() and stop(), if it counts at all."""

    def __init__(self) -> None:
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        self._counters = getattr(backend, "counters", None)
        self._sums = torch.zeros(2, dtype=torch.int64)

    def start(self) -> None:
        """Begin of a stretch that counts."""
        self._sums -= self._now()

    def stop(self) -> None:
        """End of that stretch."""
        self._sums += self._now()

    def total(self, steps: int, gradient_bytes: int, in_place: bool, zero_stage: int = 0) -> Traffic | None:
        """Collective. All ranks' bytes since the first start(), None where the backend has no counters."""
        if self._counters is None:
            return None
        sums = self._sums.clone()
        dist.all_reduce(sums)
        return Traffic(dist.get_world_size(), steps, gradient_bytes, int(sums[0]), int(sums[1]), in_place, zero_stage)

    def _now(self) -> torch.Tensor:
        if self._counters is None:
            return torch.zeros(2, dtype=torch.int64)
        counted = self._counters()
        memory = counted["memory_bytes_read"] + counted["memory_bytes_written"]
        return torch.tensor([counted["wire_bytes_sent"], memory])


STEPS_PER_ROUND = 2


@dataclass(frozen=True)
class Split:
    """One step's seconds by phase; communication: not hidden by backward, with the wait for slower ranks."""

    forward: float
    backward: float
    communication: float
    optimizer: float

    @property
    def step(self) -> float:
        """The whole step."""
        return self.forward + self.backward + self.communication + self.optimizer


@dataclass(frozen=True)
class Comparison:
    """Medians over the rounds, measured on rank 0. Ratios: step time divided by ours, per round.

    stock: stock DDP over our backend; None if the run uses that itself.
    """

    ours: Split
    gloo: Split
    ratio: float
    traffic: Traffic | None
    stock: Split | None = None
    stock_ratio: float | None = None


def compare(model: GPT, micro_batches: Iterator[Tensor], rounds: int, ddp: str, zero_stage: int = 0) -> Comparison:
    """Collective. `rounds` rounds (at least one) after one to warm up."""
    gloo = dist.new_group(backend="gloo")
    ours = _Lane(model, ddp, zero_stage=zero_stage)
    lanes = {"ours": ours, "gloo": _Lane(model, "stock", gloo), "alone": _Lane(model, "stock", communicate=False)}
    if ddp != "stock":
        lanes["stock"] = _Lane(model, "stock")
    meter = Meter()
    for number in range(rounds + 1):
        turn = number % len(lanes)
        for name in [*lanes][turn:] + [*lanes][:turn]:
            dist.barrier()
            metered = name == "ours" and number > 0
            if metered:
                meter.start()
            lanes[name].run_round([next(micro_batches) for _ in range(STEPS_PER_ROUND)])
            if metered:
                meter.stop()
    alone = lanes["alone"].median_phases()[1]
    gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    traffic = meter.total(rounds * STEPS_PER_ROUND, gradient_bytes, in_place=ddp == "ringdp", zero_stage=zero_stage)
    stock = lanes.get("stock")
    comparison = Comparison(
        ours=ours.split(alone),
        gloo=lanes["gloo"].split(alone),
        ratio=_ratio(lanes["gloo"], ours),
        traffic=traffic,
        stock=stock.split(alone) if stock else None,
        stock_ratio=_ratio(stock, ours) if stock else None,
    )
    # Before the group: torch's wrapper, where it is the last that keeps a group of gloo's, holds the GIL while it waits
    # for a thread that may need it.
    del lanes, ours, stock
    gc.collect()
    dist.destroy_process_group(gloo)
    return comparison


def _ratio(theirs: _Lane, ours: _Lane) -> float:
    return median(their / mine for their, mine in zip(theirs.rounds(), ours.rounds(), strict=True))


class _Lane:
    """A copy of the model behind a wrapper with its own optimizer, and the times of its rounds."""

    def __init__(
        self,
        model: GPT,
        ddp: str,
        group: dist.ProcessGroup | None = None,
        communicate: bool = True,
        zero_stage: int = 0,
    ) -> None:
        self._ddp = data_parallel(copy.deepcopy(model), ddp, group, zero_stage)
        self._optimizer = adamw(self._ddp, 1e-5, zero_stage)
        self._communicate = communicate
        self._rounds: list[tuple[float, float, float]] = []

    def run_round(self, micro_batches: list[Tensor]) -> None:
        """Runs some steps; keeps the mean seconds of forward, backward and optimizer."""
        steps = [self._one_step(windows) for windows in micro_batches]
        forward, backward, optimizer = (sum(phase) / len(steps) for phase in zip(*steps, strict=True))
        self._rounds.append((forward, backward, optimizer))

    def rounds(self) -> list[float]:
        """Seconds per step of every round but the first, which warms up."""
        return [sum(phases) for phases in self._rounds[1:]]

    def median_phases(self) -> tuple[float, float, float]:
        """Median seconds of forward, backward and optimizer."""
        forward, backward, optimizer = (median(phase) for phase in zip(*self._rounds[1:], strict=True))
        return forward, backward, optimizer

    def split(self, alone: float) -> Split:
        """The phases, with backward split into computing and communication. alone: backward without communication."""
        forward, backward, optimizer = self.median_phases()
        hidden = min(alone, backward)
        return Split(forward, hidden, backward - hidden, optimizer)

    def _one_step(self, windows: Tensor) -> tuple[float, float, float]:
        self._optimizer.zero_grad(set_to_none=True)
        start = time.perf_counter()
        with nullcontext() if self._communicate else self._ddp.no_sync():
            loss = next_token_loss(self._ddp, windows)
            middle = time.perf_counter()
            loss.backward()
        end = time.perf_counter()
        self._optimizer.step()
        return middle - start, end - middle, time.perf_counter() - end


PROOF_STEPS = 20


@dataclass(frozen=True)
class Proof:
    """Hashes after STEPS steps: one per rank, and the one process's."""

    of_ranks: list[str]
    of_one_process: str

    @property
    def equal(self) -> bool:
        """Whether every rank has the bits of one process."""
        return set(self.of_ranks) == {self.of_one_process}

    @property
    def headline(self) -> str:
        """The verdict in few words."""
        return f"equal, sha256 {self.of_one_process[:12]}" if self.equal else "DIFFERENT"

    def __str__(self) -> str:
        if self.equal:
            return f"equal (sha256 {self.of_one_process[:12]})"
        ranks = ", ".join(f"rank {rank} {digest[:12]}" for rank, digest in enumerate(self.of_ranks))
        return f"DIFFERENT (one process {self.of_one_process[:12]}; {ranks})"


def promises_rank_order(backend: str, world: int, ddp: str) -> bool:
    """Whether a difference is a defect: ringdp's wrapper promises it everywhere, stock DDP where its backend does.

    Two addends have one order only; above that gloo promises none.
    """
    return ddp == "ringdp" or "ringdp" in backend or world <= 2


PICTURE = "train_gpt.png"
PHASES = {"forward": "#4c78a8", "backward": "#9ecae9", "communication": "#e45756", "optimizer": "#bab0ac"}


def draw_picture(
    folder: Path, title: str, backend: str, history: History, comparison: Comparison | None
) -> Path | None:
    """Write the PNG into `folder` and return its path; None where matplotlib is not installed."""
    if not importlib.util.find_spec("matplotlib"):
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    figure.suptitle(title, fontsize=11)
    curve, bars = figure.subplots(1, 2, width_ratios=[3, 2])
    _draw_losses(curve, history)
    _draw_splits(bars, backend, comparison)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / PICTURE, dpi=130)
    return folder / PICTURE


def smooth(losses: list[float], keep: float = 0.9) -> list[float]:
    """An exponential moving average, corrected for its start at 0."""
    means, mean = [], 0.0
    for step, loss in enumerate(losses, 1):
        mean = keep * mean + (1 - keep) * loss
        means.append(mean / (1 - keep**step))
    return means


def _draw_losses(axes: Any, history: History) -> None:
    steps = range(1, len(history.losses) + 1)
    axes.plot(steps, history.losses, color="#9ecae9", linewidth=0.8, label="training")
    axes.plot(steps, smooth(history.losses), color="#4c78a8", linewidth=1.8, label="training, smoothed")
    at, values = zip(*history.validation, strict=True)
    axes.plot(at, values, "o", color="#e45756", markersize=5, label="validation")
    axes.annotate(
        f"{values[-1]:.3f}",
        (at[-1], values[-1]),
        xytext=(6, -12),
        textcoords="offset points",
        ha="left",
        color="#e45756",
    )
    axes.set(xlabel="step", ylabel="loss, nats per byte", title="loss", xlim=(0, 1.08 * len(history.losses)))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def _draw_splits(axes: Any, backend: str, comparison: Comparison | None) -> None:
    axes.set_title("one step, median")
    axes.spines[["top", "right"]].set_visible(False)
    if comparison is None:
        axes.text(0.5, 0.5, "not measured (--rounds 0)", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    lanes = [("gloo" if backend != "gloo" else "gloo, again", comparison.gloo)]
    lanes += [(f"{backend},\nstock DDP", comparison.stock)] if comparison.stock else []
    lanes += [(f"{backend},\nringdp's DDP" if comparison.stock else backend, comparison.ours)]
    for height, (_, split) in enumerate(lanes):
        _draw_bar(axes, height, split, labelled=height == 0)
    axes.set_yticks(range(len(lanes)), [name for name, _ in lanes])
    axes.set(xlabel="milliseconds", ylim=(-0.5, len(lanes) + 0.1))
    axes.margins(x=0.2)
    axes.legend(frameon=False, ncols=2, loc="upper center", fontsize=9)


def _draw_bar(axes: Any, height: int, split: Split, labelled: bool) -> None:
    left = 0.0
    for phase, colour in PHASES.items():
        width = 1e3 * getattr(split, phase)
        name = "communication and wait" if phase == "communication" else phase
        axes.barh(height, width, 0.5, left, color=colour, label=name if labelled else None)
        left += width
    text = f"{left:.0f} ms\n{1e3 * split.communication:.1f} ms comm."
    axes.annotate(text, (left, height), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9)


Row = tuple[str, str, str]


@dataclass(frozen=True)
class Report:
    """All results of a run. final_hashes: of the trained parameters, one per rank."""

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
            (
                "one process",
                str(self.proof),
                f"{PROOF_STEPS} steps on {counted(self.world, 'rank')} and in one process",
            ),
        ]


def _against(counted: int, formula: int, note: str, traffic: Traffic) -> tuple[str, str]:
    """Value and note of a counted number next to its formula, per step over all ranks."""
    verdict = "= formula" if counted == formula else f"formula {formula // traffic.steps:,}"
    return f"{counted // traffic.steps:,}", f"{verdict}, {note}"


def print_report(report: Report) -> None:
    """Prints the table."""
    print_table(f"{report.backend}, {counted(report.world, 'rank')}", None, report.rows())


def report_json(report: Report) -> dict[str, Any]:
    """What the run's JSON has beside RunLog.report(): the comparison, and the bits."""
    return {
        "comparison": asdict(report.comparison) if report.comparison else None,
        "final_hashes": report.final_hashes,
        "proof": asdict(report.proof),
        "equal_to_one_process": report.proof.equal,
    }
