"""Plants faults in a copy of the tree, one at a time, and shows which suite of `make test` catches each.

Every mutant is a patch in tests/mutants with two lines before its diff: `Fault:` says what is wrong, `Caught by:` which
tests see it ('plain plan RingRank.*', 'python tests/python/ddp'). These tests must pass without the fault and fail with
it. The copy is build/mutants/tree; the working tree is never touched. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mutant import FOLDER, BadPatch, Mutant, Selection, load
from trial import Bench, Verdict, judge, why_not_clean
from working_copy import WorkingCopy

ROOT = FOLDER.parent.parent
WHOLE_SUITES = ("plain", "python", "thread", "address")


def say(line: str) -> None:
    """A line of progress, at once."""
    print(line, flush=True)


class Runner:
    """Tries mutants; verifies each selection of tests without a fault once, before the first fault is planted."""

    def __init__(self, copy: WorkingCopy, bench: Bench, *, all_suites: bool) -> None:
        self.copy, self.bench, self.all_suites = copy, bench, all_suites
        self._unfit: dict[Selection, str] = {}

    def verify(self, mutants: list[Mutant]) -> None:
        """Runs what the mutants name on the tree as it is."""
        selections = sorted({mutant.caught_by for mutant in mutants}, key=str)
        for number, selection in enumerate(selections, 1):
            start = time.monotonic()
            outcome = self.bench.test(selection, f"clean-{number}")
            self._unfit[selection] = why_not_clean(outcome)
            said = self._unfit[selection] or f"{outcome.passed} passed"
            seconds = time.monotonic() - start
            say(f"[{number}/{len(selections)}] without a fault: {selection}: {said} ({seconds:.0f} s)")

    def verify_whole(self) -> None:
        """Whole suites, likewise: a suite that fails without a fault says nothing about one."""
        for suite in WHOLE_SUITES:
            why = why_not_clean(self.bench.whole_suite(suite, "clean"))
            self._unfit[Selection(suite, ())] = why
            say(f"without a fault: {suite}: {why or 'passed'}")

    def try_one(self, mutant: Mutant) -> tuple[Verdict, str]:
        """Plants one fault and takes it out again; the verdict, and which tests gave it."""
        if not self.all_suites and (why := self._unfit.get(mutant.caught_by)):
            return Verdict("broken", why), str(mutant.caught_by)
        try:
            with self.copy.planted(mutant):
                if self.all_suites:
                    return self._try_suites(mutant)
                return judge(self.bench.test(mutant.caught_by, mutant.name, mutant)), str(mutant.caught_by)
        except BadPatch as error:
            return Verdict("broken", str(error)), str(mutant.caught_by)

    def _try_suites(self, mutant: Mutant) -> tuple[Verdict, str]:
        verdict = Verdict("missed", "no suite fails")
        for suite in WHOLE_SUITES:
            if self._unfit.get(Selection(suite, ())):
                continue
            if suite == "python" and (why := self.bench.build(Selection("python", ("tests",)), mutant.name, mutant)):
                return Verdict("broken", why), suite
            verdict = judge(self.bench.whole_suite(suite, mutant.name))
            if verdict.word != "missed":
                return verdict, suite
        return verdict, "all suites"


def run_all(runner: Runner, mutants: list[Mutant], *, keep_going: bool) -> list[dict[str, object]]:
    """Tries these mutants in turn; a row for each."""
    rows: list[dict[str, object]] = []
    for number, mutant in enumerate(mutants, 1):
        start = time.monotonic()
        verdict, by = runner.try_one(mutant)
        seconds = time.monotonic() - start
        how = f"caught by {by.split(' -')[0]}:" if verdict.word == "caught" else f"{verdict.word}:"
        say(f"[{number}/{len(mutants)}] {mutant.name} ... {how} {verdict.reason} ({seconds:.0f} s)")
        row = {"name": mutant.name, "fault": mutant.fault, "verdict": verdict.word, "by": by, "reason": verdict.reason}
        rows.append({**row, "seconds": round(seconds, 1)})
        if verdict.word != "caught" and not keep_going:
            break
    return rows


def counts(rows: list[dict[str, object]]) -> dict[str, int]:
    """Caught, missed (which includes those that hang) and broken."""
    words = [row["verdict"] for row in rows]
    missed = words.count("missed") + words.count("hung")
    return {"caught": words.count("caught"), "missed": missed, "broken": words.count("broken")}


def table(rows: list[dict[str, object]]) -> str:
    """The rows under one another, a line each."""
    width = max((len(str(row["name"])) for row in rows), default=0)
    lines = [f"{row['name']!s:{width}}  {row['verdict']!s:6}  {row['seconds']:6.1f} s  {row['by']}" for row in rows]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The options."""
    result = argparse.ArgumentParser(prog="run.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    result.add_argument("names", nargs="*", metavar="NAME", help="mutants to try (default: all)")
    result.add_argument("--list", action="store_true", help="print the mutants and what should catch them, and end")
    result.add_argument("--json", type=Path, metavar="FILE", help="write a row for each mutant to FILE")
    result.add_argument(
        "--keep-going",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="go on after a mutant that is not caught (default: yes)",
    )
    result.add_argument("--jobs", type=int, default=2, metavar="N", help="compilations at a time (default: 2)")
    result.add_argument(
        "--all-suites",
        action="store_true",
        help=f"ignore `Caught by:` and run the whole suites {', '.join(WHOLE_SUITES)} until one fails: hours",
    )
    return result


def main(arguments: list[str] | None = None, *, root: Path = ROOT, make_bench: Callable[..., Bench] = Bench) -> int:
    """0 when all were caught; 1 when one was not, or did not apply or compile; 2 for a mistake in the call."""
    options = parser().parse_args(arguments)
    try:
        mutants = load(root / "tests/mutants", options.names)
    except BadPatch as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        for mutant in mutants:
            say(f"{mutant.name}: {mutant.fault}\n    {mutant.caught_by}")
        return 0
    folder = root / "build/mutants"
    copy = WorkingCopy(root, folder)
    runner = Runner(copy, make_bench(copy, folder, options.jobs), all_suites=options.all_suites)
    try:
        with copy.locked():
            say(f"{copy.update()} files copied to {copy.tree}")
            runner.verify_whole() if options.all_suites else runner.verify(mutants)
            rows = run_all(runner, mutants, keep_going=options.keep_going)
    except BlockingIOError:
        print(f"another run has {folder}; wait for its end", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the next run mends the copy", file=sys.stderr)
        return 130
    say(f"\n{table(rows)}")
    total = counts(rows)
    say(", ".join(f"{count} {word}" for word, count in total.items()))
    if options.json:
        options.json.write_text(json.dumps({**total, "mutants": rows}, indent=1) + "\n")
    return int(total["missed"] + total["broken"] > 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
