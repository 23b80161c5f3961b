"""The report's picture: the loss curve, and where a step's time goes over each backend."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ringdp.examples.comparison import Comparison, Split
from ringdp.observe.run_history import History

FILE = "train_gpt.png"
PHASES = {"forward": "#4c78a8", "backward": "#9ecae9", "communication": "#e45756", "optimizer": "#bab0ac"}


def draw(folder: Path, title: str, backend: str, history: History, comparison: Comparison | None) -> Path | None:
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
    figure.savefig(folder / FILE, dpi=130)
    return folder / FILE


def smooth(losses: list[float], keep: float = 0.9) -> list[float]:
    """An exponential mean, corrected for its start at nothing."""
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
