"""`ringdp ring`: runs a small ring all-reduce with the real plan, executor and links, and prints it round by round."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ringdp import _native


def add_command(commands: Any) -> None:
    """Adds `ring` to argparse's sub-commands."""
    command = commands.add_parser("ring", help="watch a ring all-reduce run, round by round")
    command.add_argument("--ranks", type=_positive, default=4, metavar="N", help="ranks (default 4, at most 64)")
    command.add_argument("--elements", type=_positive, metavar="E", help="elements per rank (default: one per rank)")
    command.add_argument("--order", choices=("rotated", "rank"), default="rotated", help="textbook, or rank 0..N-1")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def inputs(ranks: int, elements: int) -> list[list[float]]:
    """Element c of rank r is (r + 1) * 10 + c, so a sum shows which ranks are in it."""
    return [[(r + 1) * 10.0 + c for c in range(elements)] for r in range(ranks)]


def walk(ranks: int, elements: int, order: str) -> dict[str, Any]:
    """What the ring did: inputs, events by round, results, and bytes and rounds counted on each rank."""
    given = inputs(ranks, elements)
    return {"ranks": ranks, "order": order, "inputs": given, **_native.load().ring_walkthrough(given, order)}


def _numbers(values: list[float]) -> str:
    return " ".join(f"{v:g}" for v in values)


def render(report: dict[str, Any]) -> str:
    """The run as text: one block per round, one line per rank that received something."""
    ranks, elements = report["ranks"], len(report["inputs"][0])
    lines = [f"ring all-reduce of {elements} float32 on {ranks} ranks, order {report['order']}"]
    lines += [f"  rank {r} brings   {_numbers(row)}" for r, row in enumerate(report["inputs"])]
    current = None
    for event in report["events"]:
        if event["round"] != current:
            current = event["round"]
            lines.append(f"round {current + 1}")
        where = f"[{event['begin']}:{event['begin'] + len(event['values'])}]"
        lines.append(f"  rank {event['rank']} holds {event['kind']:<11} {where:<8} {_numbers(event['values'])}")
    lines += [f"  rank {r} ends with {_numbers(row)}" for r, row in enumerate(report["results"])]
    size = 4 * elements
    lines.append(f"rounds counted   {max(report['rounds'])}" + (" = 2(N-1)" if report["order"] == "rotated" else ""))
    lines.append(f"bytes sent       {' '.join(map(str, report['bytes_sent']))} (a tensor has {size})")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> int:
    """Prints the run."""
    report = walk(options.ranks, options.elements or options.ranks, options.order)
    print(json.dumps(report) if options.json else render(report))
    return 0
