"""Coverage as a picture: which rank drew which sample how often, and how often all of them did."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringdp.tools.attach.records import RankRecords
from ringdp.tools.feed.draws import Epoch, Feed, feeds_of
from ringdp.tools.feed.naming import Key

_COLUMNS = 512


@dataclass(frozen=True)
class Coverage:
    """`share[rank][column]`: draws per sample of that column; a column is `samples / columns` neighbouring samples."""

    title: str
    samples: int
    share: tuple[tuple[float, ...], ...]

    @property
    def together(self) -> tuple[float, ...]:
        """Over all ranks: 1 where every sample was drawn once."""
        return tuple(sum(column) for column in zip(*self.share, strict=True))


def coverage(feed: Feed, epoch: Epoch, columns: int = _COLUMNS) -> Coverage:
    """Samples in the order of their index; without indices, in the order in which they were first drawn."""
    places, samples = _places(feed, epoch)
    columns = min(columns, samples)
    width = [samples * (column + 1) // columns - samples * column // columns for column in range(columns)]
    rows = []
    for rank in range(feed.world):
        counts = [0] * columns
        for key in epoch.draws[rank].order if rank in epoch.draws else ():
            counts[((places[key] + 1) * columns - 1) // samples] += 1
        rows.append(tuple(count / n for count, n in zip(counts, width, strict=True)))
    return Coverage(f"{feed.name}, epoch {epoch.number + 1}", samples, tuple(rows))


def _places(feed: Feed, epoch: Epoch) -> tuple[Mapping[Key, int], int]:
    indices = list(epoch.counts)
    numbered = feed.by == "index" and all(isinstance(index, int) and index >= 0 for index in indices)
    if numbered and feed.samples and feed.fact("part") == {""} and max(indices) < feed.samples:
        return {index: index for index in indices}, feed.samples
    ordered = sorted(indices) if numbered else indices
    return {key: place for place, key in enumerate(ordered)}, len(ordered)


def _ends(epochs: list[Epoch]) -> list[Epoch]:
    return epochs[:1] + epochs[1:][-1:]


def coverages(ranks: Mapping[int, RankRecords]) -> list[Coverage]:
    """Coverage of every loader that trains, or else of every loader, in its first and its latest epoch."""
    feeds = feeds_of(ranks) or feeds_of(ranks, only_training=False)
    return [coverage(feed, epoch) for feed in feeds for epoch in _ends([e for e in feed.epochs if e.drawn])]


def has_matplotlib() -> bool:
    """Without it there are no pictures."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(pictures: Sequence[Coverage], path: Path) -> None:
    """Writes a PNG. OSError when it cannot be written."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10, 3.4 * len(pictures)), layout="constrained")
    axes = figure.subplots(2 * len(pictures), 1, squeeze=False, height_ratios=[3, 1] * len(pictures))
    for number, picture in enumerate(pictures):
        above, below = axes[2 * number][0], axes[2 * number + 1][0]
        extent = (0, picture.samples, len(picture.share) - 0.5, -0.5)
        image = above.imshow(picture.share, aspect="auto", interpolation="nearest", extent=extent, vmin=0)
        above.set(title=picture.title, ylabel="rank")
        above.yaxis.set_major_locator(MaxNLocator(integer=True))  # there is no rank 0.5
        figure.colorbar(image, ax=above, label="draws per sample")
        edges = [picture.samples * column / len(picture.together) for column in range(len(picture.together) + 1)]
        below.stairs(picture.together, edges, fill=True, color="#4c78a8")
        below.axhline(1, color="#e45756", linewidth=1)
        below.set(xlabel="sample", ylabel="all ranks", xlim=(0, picture.samples), ylim=(0, None))
    figure.savefig(path, dpi=110)
