"""`ringdp plan KIND`: batch, memory, communication and step time before a run. Without a kind, an overview."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringdp.tools.planner import catalog, display
from ringdp.tools.planner.catalog import KINDS
from ringdp.tools.planner.question import Answer, InputError, Kind

_DEFAULT = "overview"
_MEASURED = ("calibrate", "check", "find-micro-batch")  # also as options: ringdp plan --calibrate


def _help(prog: str) -> argparse.HelpFormatter:
    """Room for the longest option, so that each takes one line."""
    return argparse.HelpFormatter(prog, max_help_position=27, width=100)


def add_command(commands: Any) -> None:
    """Adds `plan` to argparse's sub-commands."""
    command = commands.add_parser(
        "plan",
        help="batch, memory, communication and step time before a run",
        usage="ringdp plan [KIND] [--input VALUE ...] [--file plan.toml] [--json]",
        epilog="example: ringdp plan fit --params 70B --device-gb h100",
        formatter_class=_help,
        allow_abbrev=False,
    )
    _add_common(command)
    for name in _MEASURED:
        text = KINDS[name].help
        command.add_argument(f"--{name}", dest="measured", action="store_const", const=name, help=text)
    for name, option in {e.name: e.option for kind in (_DEFAULT, *_MEASURED) for e in KINDS[kind].inputs}.items():
        command.add_argument(option, dest=f"before.{name}", metavar="VALUE", help=argparse.SUPPRESS)
    kinds = command.add_subparsers(title="kinds", dest="kind", metavar="KIND", prog="ringdp plan")
    for kind in KINDS.values():
        _add_kind(kinds, kind)
    command.set_defaults(run=run)


def _add_common(command: argparse.ArgumentParser) -> None:
    text = "inputs from TOML or JSON, a table per kind"
    command.add_argument("--file", type=Path, default=argparse.SUPPRESS, help=text)
    command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


def _add_kind(kinds: Any, kind: Kind) -> None:
    command = kinds.add_parser(
        kind.name,
        help=kind.help,
        description=kind.help,
        usage=f"ringdp plan {kind.name} [options]",
        epilog=f"example: ringdp plan {kind.example}",
        formatter_class=_help,
        allow_abbrev=False,
    )
    _add_common(command)
    for entry in kind.inputs:
        default = f" (default {entry.default})" if entry.default else " (required)" if entry.default is None else ""
        text = (entry.help + default).replace("%", "%%")
        command.add_argument(entry.option, dest=f"input.{entry.name}", metavar="VALUE", help=text)


def _given(options: argparse.Namespace, prefix: str) -> dict[str, str]:
    found = {name.removeprefix(prefix): text for name, text in vars(options).items() if name.startswith(prefix)}
    return {name: text for name, text in found.items() if text is not None}


def questions(options: argparse.Namespace) -> list[tuple[Kind, Mapping[str, str]]]:
    """What is asked: a kind with its inputs, or every kind of a file. The command line outranks the file."""
    before, given = _given(options, "before."), _given(options, "input.")
    tables = catalog.read(options.file, KINDS) if "file" in options else {}
    if options.kind is not None and options.measured is not None:
        raise InputError(f"--{options.measured} is a question of its own: leave '{options.kind}' out")
    if options.kind is not None and before:
        option = "--" + next(iter(before)).replace("_", "-")
        raise InputError(f"options go after the kind: ringdp plan {options.kind} {option} ...")
    chosen = options.kind or options.measured
    if chosen is None and tables and not before:
        return [(KINDS[name], table) for name, table in tables.items()]
    name = chosen or _DEFAULT
    if tables and name not in tables:
        raise InputError(f"{options.file}: has no table [{name}]; it has {', '.join(tables)}")
    return [(KINDS[name], {**tables.get(name, {}), **before, **given})]


def report(kind: Kind, given: Mapping[str, str], answer: Answer) -> dict[str, Any]:
    """What `--json` prints of one question."""
    asked = [[entry.name, given.get(entry.name, entry.default)] for entry in kind.inputs]
    return {"kind": kind.name, **answer.as_json(), "inputs": asked}


def run(options: argparse.Namespace) -> int:
    """0: answered; 2: the question is wrong, said in one line."""
    try:
        asked = questions(options)
        answers = [(kind, given, kind.ask(given)) for kind, given in asked]
    except InputError as error:
        print(f"ringdp plan: {error}", file=sys.stderr)
        return 2
    if "json" in options:
        reports = [report(*row) for row in answers]
        print(json.dumps(reports[0] if len(reports) == 1 else reports))
        return 0
    for kind, _, answer in answers:
        display.show(kind.name, answer)
    return 0
