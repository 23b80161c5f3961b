"""Fuzzing: every parser of bytes that come from elsewhere, for as long as you like.

    tests/fuzz/fuzz.py --minutes 60             all targets, each for its share of the time
    tests/fuzz/fuzz.py --target peer_info         one; repeat the option for several
    tests/fuzz/fuzz.py --target trace --repeat FILE    one file, as a finding is printed

C++'s targets (tests/fuzz/*.cc) are programs of libFuzzer's under the address, leak and undefined-behaviour sanitizers
and need clang; without one they are skipped by name. Python's (python_targets.py) are files changed at random. What a
run finds lies in build/fuzz/TARGET, next to the corpus that grows there. Status 1 when anything was found.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
BUILD = ROOT / "build/fuzz"
PROGRAMS = BUILD / "bin"
CPP = sorted(
    name
    for path in FOLDER.glob("*.cc")
    for name in re.findall(r"^FUZZ_TARGET\((\w+)\)", path.read_text(), re.MULTILINE)
)
PYTHON = ("manifest", "index", "shard", "trace", "run", "records", "plan", "calibration", "tuned", "report")
COMPILERS = ("clang++", *(f"clang++-{release}" for release in range(22, 13, -1)))
PROBE = 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
LIMITS = ("-max_len=4096", "-timeout=5", "-rss_limit_mb=1024", "-malloc_limit_mb=256", "-use_value_profile=1")
GRACE_S = 900  # beyond its share, after which a target is ended: a busy machine may hold it up


@dataclass
class Outcome:
    """One target's result. `coverage`: edges and features as libFuzzer counts them, or lines of the parsing modules."""

    name: str
    runs: int = 0
    per_second: float = 0.0
    coverage: str = ""
    corpus: int = 0
    crashes: int = 0
    leaks: int = 0
    found: list[str] = field(default_factory=list)  # how to repeat each
    note: str = ""

    def __str__(self) -> str:
        if self.note:
            return f"{self.name:12}{self.note}"
        figures = f"{self.runs:>10,} runs {self.per_second:>8,.0f}/s  {self.coverage:<26} corpus {self.corpus:>5}"
        return f"{self.name:12}{figures}  crashes {self.crashes}  leaks {self.leaks}"


def compiler() -> str | None:
    """A clang that has libFuzzer."""
    for name in COMPILERS:
        if not shutil.which(name):
            continue
        command = [name, "-x", "c++", "-", "-fsanitize=fuzzer,address,undefined", "-o", "/dev/null"]
        if subprocess.run(command, input=PROBE, text=True, capture_output=True).returncode == 0:
            return name
    return None


def build(names: list[str], clang: str) -> None:
    """Builds the programs of these targets. CalledProcessError when they do not compile; the log has been shown."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = ["cmake", "-S", str(FOLDER), "-B", str(PROGRAMS), f"-DCMAKE_CXX_COMPILER={clang}", *generator]
    for command in (configure, ["cmake", "--build", str(PROGRAMS), "--parallel", "2", "--target", *names]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            print("\n".join(done.stdout.splitlines()[-40:]), file=sys.stderr)
            raise subprocess.CalledProcessError(done.returncode, command)


def last(pattern: str, log: str) -> re.Match[str] | None:
    """The last place in a log that matches."""
    return next(iter([*re.finditer(pattern, log)][-1:]), None)


def read_log(name: str, log: str) -> Outcome:
    """What libFuzzer says of a run."""
    outcome = Outcome(name)
    if status := last(r"cov: (\d+) ft: (\d+) corp: (\d+)/", log):
        outcome.coverage = f"{status[1]} edges, {status[2]} features"
        outcome.corpus = int(status[3])
    if runs := last(r"stat::number_of_executed_units: *(\d+)", log) or last(r"(?m)^#(\d+)\t", log):
        outcome.runs = int(runs[1])
    for artifact in re.findall(r"Test unit written to (\S+)", log):
        leak = Path(artifact).name.startswith("leak-")
        outcome.leaks += leak
        outcome.crashes += not leak
        outcome.found.append(f"{PROGRAMS / name} {artifact}")
    return outcome


def fuzz_cpp(name: str, seconds: float) -> Outcome:
    """Runs a program of libFuzzer's, until its time is over or it has found something."""
    kept, corpus = BUILD / name, BUILD / name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    command = [str(PROGRAMS / name), str(corpus), str(FOLDER / "corpus" / name), *LIMITS, "-print_final_stats=1"]
    command += [f"-max_total_time={max(1, round(seconds))}", f"-artifact_prefix={kept}/"]
    start = time.monotonic()
    with (kept / "log").open("w") as stream:
        status = subprocess.run(command, stdout=stream, stderr=stream, timeout=seconds + GRACE_S).returncode
    outcome = read_log(name, (kept / "log").read_text(errors="replace"))
    outcome.per_second = outcome.runs / (time.monotonic() - start)
    if status != 0 and not outcome.found:
        outcome.crashes += 1
        outcome.found.append(f"{kept / 'log'} (status {status})")
    return outcome


def fuzz_python(name: str, seconds: float) -> Outcome:
    """Runs a target of Python's in a process of its own, whose memory is bounded."""
    kept = BUILD / name
    (kept / "corpus").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(FOLDER / "python_loop.py"), name, str(seconds), str(kept)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds + GRACE_S)
    if done.returncode != 0:
        return Outcome(name, crashes=1, found=[f"{kept / 'now'} (the loop ended with status {done.returncode})"])
    outcome = Outcome(**json.loads(done.stdout.splitlines()[-1]))
    script = FOLDER / "fuzz.py"
    outcome.found = [f"{sys.executable} {script} --target {name} --repeat {file}" for file in outcome.found]
    return outcome


def fuzz(name: str, seconds: float) -> Outcome:
    """One target for so long."""
    try:
        return (fuzz_cpp if name in CPP else fuzz_python)(name, seconds)
    except subprocess.TimeoutExpired:
        return Outcome(name, crashes=1, found=[f"{BUILD / name} (it did not end)"])


def repeat(name: str, file: Path, clang: str | None) -> int:
    """Runs one file through one target; the status of that."""
    if name in PYTHON:
        command = [sys.executable, str(FOLDER / "python_loop.py"), name, "--repeat", str(file)]
    else:
        if clang is None:
            print("fuzz: no clang with libFuzzer", file=sys.stderr)
            return 2
        build([name], clang)
        command = [str(PROGRAMS / name), str(file), *LIMITS]
    return subprocess.run(command).returncode


def main(arguments: list[str] | None = None) -> int:
    """0: nothing was found; 1: something was, or does not compile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of all targets together (default 10)")
    parser.add_argument("--target", action="append", choices=[*CPP, *PYTHON], metavar="NAME", help="only this one")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="run one file through the one target")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    names = options.target or [*CPP, *PYTHON]
    clang = compiler() if set(names) & set(CPP) else None
    if options.repeat:
        if len(names) != 1:
            parser.error("--repeat needs exactly one --target")
        return repeat(names[0], options.repeat, clang)
    possible = [name for name in names if name in PYTHON or clang]
    outcomes = [Outcome(name, note="skipped: no clang with libFuzzer") for name in names if name not in possible]
    try:
        if built := [name for name in possible if name in CPP]:
            build(built, str(clang))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"fuzz: the targets do not compile: {error}", file=sys.stderr)
        return 1
    for name in possible:
        outcomes.append(fuzz(name, 60 * options.minutes / len(possible)))
        shown = sys.stderr if options.json else sys.stdout
        print(outcomes[-1], *outcomes[-1].found, sep="\n  ", file=shown, flush=True)
    skipped = [outcome for outcome in outcomes if outcome.note]
    found = sum(len(outcome.found) for outcome in outcomes)
    if options.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes]))
    else:
        print(*skipped, f"{len(possible)} targets, {found} findings, {len(skipped)} skipped", sep="\n")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
