"""What the programs share: options, output files, bars that must be reached, a picture, the exit status."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from runner import machine
from runner.cell import parse_size

T = TypeVar("T")


def add_places(parser: argparse.ArgumentParser, ranks: int = 2) -> None:
    """The options --ranks, --hosts and --rate, as runner/job.py takes them."""
    parser.add_argument("--ranks", type=int, default=ranks)
    parser.add_argument("--hosts", type=int, default=1, help="namespaces; more than 1 needs root")
    parser.add_argument("--rate", type=float, default=1.0, help="Gb/s of each host's link")


def place_of(found: argparse.Namespace) -> str:
    """Where the ranks are, for a title."""
    return f"{found.hosts} hosts at {found.rate:g} Gb/s" if found.hosts > 1 else "one host"


def check_places(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Ends the program with a sentence when ranks cannot be dealt out to hosts."""
    check_least(parser, found, ranks=1, hosts=1)
    if found.ranks % found.hosts:
        parser.error(f"{found.ranks} ranks do not divide evenly over {found.hosts} hosts")


def check_least(parser: argparse.ArgumentParser, found: argparse.Namespace, **least: float) -> None:
    """Ends the program with a sentence that names the first option below its least value."""
    for name, value in least.items():
        if getattr(found, name) < value:
            parser.error(f"--{name.replace('_', '-')} is {getattr(found, name)}, must be at least {value}")


def listed(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Comma-separated values, for argparse, which names them in its refusal."""

    def parse(text: str) -> list[T]:
        return [kind(part) for part in text.split(",")]

    parse.__name__ = f"list of {kind.__name__}"
    return parse


def sizes(text: str) -> list[int]:
    """Comma-separated sizes, for argparse."""
    try:
        return [parse_size(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def names(known: tuple[str, ...], text: str) -> list[str]:
    """A comma-separated choice of `known`, or all of it."""
    chosen = list(known) if text == "all" else text.split(",")
    if unknown := [name for name in chosen if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}, all")
    return chosen


def add_outputs(parser: argparse.ArgumentParser, what: str, picture: str) -> None:
    """The options --json and --plot."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {what}")
    parser.add_argument("--plot", type=Path, metavar="PNG", help=f"draw {picture}")


def check_outputs(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Ends the program with a sentence when one of them cannot be written."""
    for name in ("json", "plot"):
        path = getattr(found, name)
        if path and not path.absolute().parent.is_dir():
            parser.error(f"--{name} {path}: there is no folder {path.parent}")
    if found.plot and not importlib.util.find_spec("matplotlib"):
        parser.error("--plot needs matplotlib (pip install -r benchmarks/requirements.txt)")


def by_round(
    reports: Sequence[dict[str, Any]], key: str, choice: Callable[[Sequence[float]], float]
) -> dict[str, list[float]]:
    """By training and round, the number of one of the ranks."""
    of_ranks = [own[key] for own in reports]
    return {name: list(map(choice, zip(*(own[name] for own in of_ranks), strict=True))) for name in of_ranks[0]}


def over(times: Sequence[float], others: Sequence[float]) -> list[float]:
    """Ratios, by round."""
    return [time / other for time, other in zip(times, others, strict=True)]


@dataclass(frozen=True)
class Bar:
    """A number that must be at least `least`."""

    what: str
    measured: float
    least: float

    @property
    def held(self) -> bool:
        """Whether it is."""
        return self.measured >= self.least

    def __str__(self) -> str:
        verdict = "held" if self.held else "NOT HELD"
        return f"{verdict}: {self.what} {self.measured:.2f}, must be at least {self.least:g}"


@dataclass(frozen=True)
class Chart:
    """A horizontal line per name, `unit` to the right."""

    values: Mapping[str, float]
    unit: str


@dataclass(frozen=True)
class Curves:
    """A line of points per name; what the axes are."""

    points: Mapping[str, Sequence[tuple[float, float]]]
    across: str
    up: str


def publish(
    options: argparse.Namespace,
    title: str,
    facts: dict[str, object],
    rows: Sequence[Mapping[str, Any]],
    bars: Sequence[Bar],
    chart: Chart | Curves,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Bars to the screen, everything into the files that were asked for. 1 when --check finds a bar not held.

    more: for the JSON.
    """
    for bar in bars:
        print(bar)
    write(options, result_of(options, title, facts, rows, bars, more))
    if options.plot:
        draw(chart, title, options.plot)
    return int(options.check and not all(bar.held for bar in bars))


def result_of(
    options: argparse.Namespace,
    title: str,
    facts: dict[str, object],
    rows: Sequence[Mapping[str, Any]],
    bars: Sequence[Bar],
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """What publish() writes as JSON."""
    return {
        "command": shlex.join(["python", *sys.argv]),
        "title": title,
        "machine": facts,
        "settings": {k: v for k, v in vars(options).items() if not isinstance(v, Path) and v is not None},
        "rows": [dict(row) for row in rows],
        "bars": [{**asdict(bar), "held": bar.held} for bar in bars],
        **more,
    }


def write(options: argparse.Namespace, result: Mapping[str, Any]) -> None:
    """The result to --json, if it was asked for; whoever reads meanwhile, or after a kill, finds all of one result."""
    if not options.json:
        return
    text = json.dumps(result, indent=1) + "\n"
    if options.json.exists() and not options.json.is_file():  # /dev/stdout
        options.json.write_text(text)
        return
    unfinished = options.json.with_name(f"{options.json.name}.new")
    unfinished.write_text(text)
    unfinished.replace(options.json)


def head(title: str) -> dict[str, object]:
    """Prints what is measured and on what; the facts of the machine."""
    facts = machine.describe()
    print(title)
    print(machine.sentence(facts), flush=True)
    return facts


@contextmanager
def picture(path: Path, lines: int = 1, columns: int = 1, **shape: Any) -> Iterator[tuple[Any, Any]]:
    """matplotlib's figure and axes, as of pyplot.subplots(); what is drawn on them is the PNG at `path` afterwards."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(lines, columns, **shape)
    yield figure, axes
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


OURS_COLOUR, THEIRS_COLOUR = "#1f4e8c", "#9aa5b1"


def draw(chart: Chart | Curves, title: str, path: Path) -> None:
    """Writes the PNG; what is ringdp's is dark."""
    if isinstance(chart, Curves):
        _draw_curves(chart, title, path)
        return
    names, values = list(chart.values)[::-1], list(chart.values.values())[::-1]
    with picture(path, figsize=(7.5, 1.0 + 0.35 * len(names))) as (_, axes):
        axes.barh(names, values, color=[OURS_COLOUR if "ringdp" in name else THEIRS_COLOUR for name in names])
        axes.set_xlabel(chart.unit)
        axes.set_title(title, loc="left", fontsize=9)


def _draw_curves(chart: Curves, title: str, path: Path) -> None:
    with picture(path, figsize=(9.0, 5.0)) as (figure, axes):
        for name, points in chart.points.items():
            axes.plot(*zip(*points, strict=True), label=name, linestyle="-" if "gloo" in name else "--", linewidth=1.3)
        axes.set_xlabel(chart.across)
        axes.set_ylabel(chart.up)
        axes.set_title(title, loc="left", fontsize=9)
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
