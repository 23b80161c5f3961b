"""Builds, tests and measures on a machine with a GPU, in less than eight minutes: `make gpu-check VENV=none`.

    python -m gpu_check                              all parts, the simplest first
    python -m gpu_check --parts probe,plans          these, and what they need; others keep their last verdicts
    python -m gpu_check --list                       the parts

One report says what was found, also when it is cut off: report.md and report.json in $OUT, else in build/gpu-check.
Exit status: 0 when nothing failed, 1 when something did, 2 on bad input. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from . import report
from .parts import HANG_S, LIMIT_S, ROOT, chosen, parts
from .runner import FINDINGS, LOG, Outcome, adopt_orphans, run_all

GOOD = ("passed", "skipped")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(
        prog="gpu-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default="", help="comma-separated names; default all")
    parser.add_argument("--hang", type=float, default=HANG_S, metavar="S", help=f"of one test; default {HANG_S:g}")
    parser.add_argument("--python", default=sys.executable, help="the interpreter with torch")
    parser.add_argument("--build", default="", help="variables for `make build`, as VENV=none")
    parser.add_argument("--list", action="store_true", help="print the parts and end")
    parser.add_argument("--json", action="store_true", help="print the report as JSON at the end")
    options = parser.parse_args(arguments)
    if options.hang <= 0:
        parser.error(f"--hang is {options.hang:g}: write seconds above 0")
    return options


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    options = parse(arguments)
    out = Path(os.environ.get("OUT") or ROOT / "build/gpu-check").absolute()
    plan = parts(options.python, options.build.split(), out, options.hang)
    if options.list:
        print(*(f"{part.name:13}{part.limit_s:4.0f} s  {part.what}" for part in plan), sep="\n")
        return 0
    names = [name for name in options.parts.split(",") if name]
    try:
        todo = chosen(plan, names) if names else plan
    except ValueError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2
    order = [part.name for part in plan]
    if not names:  # nothing is kept
        for name in (report.JSON, report.MARKDOWN, report.SPEED, FINDINGS, LOG):
            (out / name).unlink(missing_ok=True)
    before = out / report.JSON
    known = [one for one in report.outcomes_in(before) if one.part in order] if report.is_of_this_code(before) else []
    os.chdir(ROOT)
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwinds, so that nothing of a part stays behind
    begin = time.monotonic()

    def say(outcomes: list[Outcome], latest: str) -> None:
        report.write(sorted(outcomes, key=lambda one: order.index(one.part)), out)
        if not options.json:
            print(f"gpu-check: {next(one for one in outcomes if one.part == latest)}", flush=True)

    outcomes = run_all(todo, out, LIMIT_S, known, say)
    if options.json:
        print(json.dumps(report.as_json(outcomes, out)))
    else:
        good = sum(one.verdict in GOOD for one in outcomes)
        print(f"gpu-check: {good} of {len(outcomes)} parts passed or were skipped, {time.monotonic() - begin:.0f} s;")
        print(f"gpu-check: {out / report.MARKDOWN} has what they found")
    return int(any(one.verdict not in GOOD for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
