"""Which lines and branches of csrc and python `make test` runs, by module: `make coverage`.

    coverage.py [--json FILE]           builds an instrumented copy below build/coverage, runs suites plain and python
    coverage.py --report TREE           prints the figures of a copy that has run

C++ is counted by gcov (branches to exceptions left out), Python by the package coverage, in every process that tests
start, also where os._exit ends it. A process that is killed counts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/mutants"))
from working_copy import WorkingCopy  # noqa: E402

# Sanitizers are not measured: modules whose tests `make test` runs under one only are run without it.
ALL_MODULES = """import sys
sys.path.insert(0, ".ci")
import suites
suites.run_suite(suites.Suite("plain", "C++ tests of all modules", suites.cpp("plain", suites.MODULES)))
"""
COMPILE = "-O1 --coverage -fprofile-update=atomic"
LINK = "--coverage -Wl,-u,__gcov_dump"
# Loaded by every interpreter that tests start.
HOOK = """
import os, sys
_exit = os._exit
def exit_counted(status):
    tree = os.environ["COVERAGE_PROCESS_START"].partition("/build/coverage/settings")[0]
    with open("/proc/self/maps") as maps:
        mapped = {line.split()[-1] for line in maps if tree in line and ".so" in line}
    import ctypes
    for library in mapped:  # each has counts of its own
        getattr(ctypes.CDLL(library), "__gcov_dump", int)()
    _exit(status)
os._exit = exit_counted
import coverage
coverage.process_startup()
"""
SETTINGS = """[run]
branch = True
parallel = True
data_file = {folder}/data
source = {package}
patch = subprocess, fork, _exit
concurrency = thread, multiprocessing
disable_warnings = no-data-collected, module-not-measured, module-not-imported
"""


@dataclass
class Count:
    """One module's lines and branches, and how many of them ran."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def percent(self) -> tuple[float, float]:
        """Lines and branches in percent; nothing is wholly covered."""
        return 100 * self.lines_run / (self.lines or 1), 100 * self.branches_run / (self.branches or 1)


@dataclass
class Line:
    """One line of C++ in all the units that contain it."""

    count: int = 0
    branches: list[int] = field(default_factory=list)


def run(tree: Path) -> None:
    """Builds the copy and runs its suites; counts of an earlier run are dropped first."""
    folder, hook = tree / "build/coverage", tree / "build/coverage/hook"
    for old in [*tree.rglob("*.gcda"), *folder.glob("data*")]:
        old.unlink()
    hook.mkdir(parents=True, exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK)
    settings = folder / "settings"
    settings.write_text(SETTINGS.format(folder=folder, package=tree / "python/ringdp"))
    environment = {
        **os.environ,
        "CXXFLAGS": COMPILE,
        "LDFLAGS": LINK,
        "RINGDP_CUDA": "off",
        "PYTHONPATH": str(tree / "python"),
    }
    for command in ("build_ext --inplace", "egg_info"):
        subprocess.run([sys.executable, "setup.py", "-q", *command.split()], cwd=tree, env=environment, check=True)
    subprocess.run([sys.executable, "-c", ALL_MODULES], cwd=tree, env=environment)
    environment["PYTHONPATH"] += os.pathsep + str(hook)
    environment["COVERAGE_PROCESS_START"] = str(settings)
    subprocess.run([sys.executable, ".ci/suites.py", "test", "python"], cwd=tree, env=environment)
    subprocess.run([sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={settings}"], cwd=tree)


def lines_of(tree: Path) -> dict[tuple[str, int], Line]:
    """Every line of csrc with code, by (path below csrc, number)."""
    found: dict[tuple[str, int], Line] = defaultdict(Line)
    for notes in sorted((tree / "build").rglob("*.gcno")):
        data = notes.with_suffix(".gcda")
        command = ["gcov", "-j", "-b", "-t", str(data if data.exists() else notes)]
        said = subprocess.run(command, cwd=tree, capture_output=True, text=True).stdout
        for file in json.loads(said)["files"] if said.strip() else ():
            path = (tree / file["file"]).resolve()
            if not path.is_relative_to(tree / "csrc") or not path.exists():  # built before it was removed
                continue
            for row in file["lines"]:
                line = found[path.relative_to(tree / "csrc").as_posix(), row["line_number"]]
                line.count += row["count"]
                branches = [branch["count"] for branch in row["branches"] if not branch["throw"]]
                longer, shorter = sorted((branches, line.branches), key=len, reverse=True)
                line.branches = [n + (shorter[i] if i < len(shorter) else 0) for i, n in enumerate(longer)]
    return found


def of_cpp(tree: Path) -> Iterator[tuple[str, Count]]:
    """Counts by module of csrc."""
    counts: dict[str, Count] = defaultdict(Count)
    for (path, _), line in lines_of(tree).items():
        count = counts[f"csrc/{Path(path).parts[0]}"]
        count.lines += 1
        count.lines_run += line.count > 0
        count.branches += len(line.branches)
        count.branches_run += sum(n > 0 for n in line.branches)
    yield from sorted(counts.items())


def of_python(tree: Path) -> Iterator[tuple[str, Count]]:
    """Counts by package of python/ringdp and of python/ringdp/tools; files of no package count as ringdp or tools."""
    folder = tree / "build/coverage"
    settings, output = folder / "settings", folder / "python.json"
    command = [sys.executable, "-m", "coverage", "json", "-q", f"--rcfile={settings}", "-o", str(output)]
    subprocess.run(command, cwd=tree, check=True)
    counts: dict[str, Count] = defaultdict(Count)
    for path, file in json.loads(output.read_text())["files"].items():
        package = (tree / path).resolve().relative_to(tree / "python").parent.parts
        depth = 3 if "tools" in package[1:2] else 2
        count, total = counts["/".join(("python", *package[:depth]))], file["summary"]
        count.lines += total["num_statements"]
        count.lines_run += total["covered_lines"]
        count.branches += total["num_branches"]
        count.branches_run += total["covered_branches"]
    yield from sorted(counts.items())


def main() -> int:
    """Runs what is asked and prints a table; 2 where a tool is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, metavar="TREE", help="print the figures of a copy that has run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args()
    if not shutil.which("gcov"):
        print("coverage.py needs gcov, which comes with g++", file=sys.stderr)
        return 2
    try:
        import coverage  # noqa: F401
    except ImportError:
        print("coverage.py needs the package coverage: pip install 'coverage>=7.10'", file=sys.stderr)
        return 2
    copy = WorkingCopy(ROOT, ROOT / "build/coverage")
    tree = (options.report or copy.tree).resolve()
    if options.report is None:
        with copy.locked():
            copy.update()
            run(tree)
    counts = dict([*of_cpp(tree), *of_python(tree)])
    print(f"{'module':26}{'lines':>8}{'run':>8}{'branches':>10}{'run':>8}")
    for name, count in counts.items():
        lines, branches = count.percent()
        print(f"{name:26}{count.lines:8}{lines:7.1f}%{count.branches:10}{branches:7.1f}%")
    if options.json:
        options.json.write_text(json.dumps({name: vars(count) for name, count in counts.items()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
