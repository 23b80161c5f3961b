"""`ringdp info [--json]`: what this ringdp was built for, what it finds, and the settings in force."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib import metadata
from typing import Any

import ringdp
from ringdp import _native
from ringdp.cli.transports import transports
from ringdp.tune import cache


def add_command(commands: Any) -> None:
    """Adds `info` to argparse's sub-commands."""
    command = commands.add_parser("info", help="what was built, what is found, which settings are in force")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def _found() -> dict[str, str | None]:
    """The versions here. torch's comes from its metadata, so that a torch that cannot be imported is named too."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = None
    return {"torch": torch, "python": platform.python_version()}


def collect() -> dict[str, Any]:
    """Everything `ringdp info` prints.

    `error` is None, or why the extension cannot be used; then what only the extension knows (instruction_set,
    transports, settings) is empty.
    """
    report: dict[str, Any] = {
        "ringdp": ringdp.__version__,
        "built_for": _native.built_for(),
        "found": _found(),
        "instruction_set": None,
        "transports": [],
        "settings": [],
        "error": None,
    }
    try:
        core = _native.load()
    except ImportError as error:
        report["error"] = str(error)
        return report
    report["instruction_set"] = core.instruction_set()
    report["settings"] = cache.in_force(core.setting_table())
    choice = next(row["value"] for row in report["settings"] if row["field"] == "transport")
    report["transports"] = transports(choice)
    return report


def _setting_lines(settings: list[dict[str, str]]) -> list[str]:
    lines = []
    for row in settings:
        name = row["variable"] + (f" ({row['field']})" if row["field"] else "")
        value = f"{row['value'] or '-'} [{row['source']}]"
        lines.append(f"  {name:<40} {value:<24} {row['help']}; accepts {row['accepts']}")
    return lines


def render(report: dict[str, Any]) -> str:
    """The report as text for a person."""
    built, found = report["built_for"], report["found"]
    lines = [f"ringdp           {report['ringdp']}"]
    if built:
        lines.append(f"built for        torch {built['torch']}, Python {built['python']}")
        lines.append(f"built by         {built['compiler']}, {built['date']}")
    lines.append(f"found            torch {found['torch'] or 'none'}, Python {found['python']}")
    if report["error"]:
        return "\n".join([*lines, f"cannot run       {report['error']}"])
    lines.append(f"instruction set  {report['instruction_set']}")
    lines.append("transports")
    for row in report["transports"]:
        lines.append(f"  {row['name']:<8} {'yes' if row['available'] else 'no':<4} {row['why']}")
    lines.append(
        "settings in force (a call wins over ringdp.Options, Options over the environment, that over tuned values)"
    )
    return "\n".join([*lines, *_setting_lines(report["settings"])])


def run(options: argparse.Namespace) -> int:
    """Prints the report; 1 when the extension cannot be used."""
    report = collect()
    print(json.dumps(report, indent=2) if options.json else render(report))
    if report["error"] and options.json:
        print(report["error"], file=sys.stderr)
    return 1 if report["error"] else 0
