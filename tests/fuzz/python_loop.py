"""One of Python's targets in this process: `python_loop.py NAME SECONDS FOLDER`, or `NAME --repeat FILE`.

A file is kept in the corpus when it makes the target say something new. A finding is an exception that the target lets
out, a second of this process for one file, or memory: files have 64 KiB at most.

Files are changed at random: bytes of any, values of those that are JSON or a pickle of plain values.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import pickle
import random
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ringdp
from python_targets import Target, made
from ringdp.cli import main as command_line

MOST_BYTES = 1 << 16
PACKAGE = f"{Path(ringdp.__file__).parent}/"
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_WHOLE = (0, -1, 1, 2, 255, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 64, 10**30)
_NUMBERS = (*_WHOLE, 0.5, -0.0, 1e308, float("inf"), float("nan"))
_VALUES = (*_NUMBERS, None, True, False, "", "0", "a\x00b", "\ud800", "x" * 300, [], {}, [[]], [None], {"": None})
_TOKENS = (*b"[ ] { } , : null NaN 1e999".split(), b'"', b"\\u", b"\x00", b"\xff" * 4, b"\n", b"[" * 3000)


def mutated(content: bytes, others: Sequence[bytes], choose: random.Random) -> bytes:
    """The content after one to four changes; `others` are files from which parts may come."""
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        content = choose.choice((_changed_bytes, _changed_bytes, _changed_values))(content, others, choose)
    return content[:MOST_BYTES]


def _changed_bytes(content: bytes, others: Sequence[bytes], choose: random.Random) -> bytes:
    at = choose.randrange(len(content) + 1)
    size = choose.choice((1, 1, 2, 4, 8, 64))
    kind = choose.randrange(7)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + content[at + size :]
    if kind == 2:
        return content[:at] + choose.randbytes(size) + content[at + size :]
    if kind == 3:
        return content[:at] + choose.choice(_TOKENS) + content[at:]
    if kind == 4:
        other = choose.choice(others)
        start = choose.randrange(len(other) + 1)
        return content[:at] + other[start : start + 8 * size] + content[at:]
    if kind == 5 and (found := list(_NUMBER.finditer(content))):
        number = choose.choice(found)
        return content[: number.start()] + str(choose.choice(_NUMBERS)).encode() + content[number.end() :]
    return content[:at] + bytes(byte ^ 1 << choose.randrange(8) for byte in content[at : at + 1]) + content[at + 1 :]


def _changed_values(content: bytes, others: Sequence[bytes], choose: random.Random) -> bytes:
    for load, dump in ((json.loads, _as_json), (_plain_values, _as_pickle)):
        try:
            return dump(_changed_value(load(content), choose))
        except Exception:  # no such file, or a value that it cannot have
            continue
    return _changed_bytes(content, others, choose)


def _changed_value(value: Any, choose: random.Random) -> Any:
    """Somewhere in it a value is another one, is left out, or is there twice."""
    if not isinstance(value, (dict, list, tuple)) or not value or choose.random() < 0.1:
        return choose.choice(_VALUES)
    if isinstance(value, dict):
        key = choose.choice(list(value))
        if choose.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {name: _changed_value(item, choose) if name == key else item for name, item in value.items()}
    at = choose.randrange(len(value))
    middle: tuple[Any, ...] = (_changed_value(value[at], choose),)
    if choose.random() < 0.1:
        middle = choose.choice(((), (value[at], value[at])))
    return type(value)([*value[:at], *middle, *value[at + 1 :]])


def _as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(name)


def _plain_values(content: bytes) -> Any:
    return _Plain(io.BytesIO(content)).load()


def _as_pickle(value: Any) -> bytes:
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=2)
    pickler.fast = True  # no memo, as csrc/trace/pickle.h
    pickler.dump(value)
    return stream.getvalue()


try:
    import coverage
except ModuleNotFoundError:  # lines are not counted
    coverage = None

SECONDS = 1.0  # processor time for one file
MEMORY = 2 << 30  # address space beyond what the imports take
GROWTH_KIB = 256 << 10
FOLDER = Path(__file__).resolve().parent


class TooSlow(BaseException):
    """Not to be caught by the parser."""


def _too_slow(number: int, frame: Any) -> None:
    raise TooSlow(f"more than {SECONDS:g} s")


def peak_kib() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def bound_memory() -> None:
    """An allocation that is out of all proportion fails."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def tried(target: Target, content: bytes) -> tuple[str, str]:
    """What the target said of a file, and what was found; '' for nothing."""
    before = peak_kib()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        said = target.take(content)
    except (Exception, TooSlow) as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE)]
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        return "", f"{type(error).__name__}: {str(error)[:300]} {where}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if "MemoryError" in said or peak_kib() - before > GROWTH_KIB:
        return said, f"memory: {(peak_kib() - before) >> 10} MiB more; {said[:300]}"
    return re.sub(r"\d+|'[^']*'|\"[^\"]*\"", "", said)[:200], ""


def regressions(name: str) -> list[bytes]:
    """What was found once."""
    return [file.read_bytes() for file in sorted((FOLDER / "corpus" / name).glob("*"))]


def loop(target: Target, seconds: float, kept: Path) -> dict[str, Any]:
    """Changes files and tries them, for so long; what fuzz.py prints. Findings are told apart by what they say."""
    choose = random.Random(time.time_ns())
    corpus = [*target.seeds, *regressions(target.name)]
    corpus += [file.read_bytes() for file in sorted((kept / "corpus").glob("*"))]
    seen: set[str] = set()
    findings: dict[str, str] = {}
    runs, start = 0, time.monotonic()
    queue = list(corpus)
    while queue or time.monotonic() - start < seconds:
        content = queue.pop() if queue else target.mended(mutated(choose.choice(corpus), corpus, choose), choose)
        (kept / "now").write_bytes(content)
        said, found = tried(target, content)
        runs += 1
        name = hashlib.sha256(content).hexdigest()[:16]
        if found and (known := re.sub(r"\d+", "", found.rpartition(PACKAGE)[2])) not in findings:
            (kept / f"crash-{name}").write_bytes(content)
            findings[known] = str(kept / f"crash-{name}")
            print(f"{target.name}: {found}", file=sys.stderr, flush=True)
        elif not found and said not in seen:
            seen.add(said)
            corpus.append(content)
            (kept / "corpus" / name).write_bytes(content)
    rate = runs / (time.monotonic() - start)
    figures = {"name": target.name, "runs": runs, "per_second": rate, "corpus": len(corpus), "crashes": len(findings)}
    return {**figures, "found": list(findings.values())}


def counter_of(modules: tuple[str, ...]) -> Any:
    """Counts their lines from now on; None without the package coverage."""
    if coverage is None:
        return None
    counter = coverage.Coverage(data_file=None, source=[f"ringdp.{module}" for module in modules])
    counter.set_option("run:disable_warnings", ["module-not-measured"])
    counter.start()
    return counter


def lines_run(counter: Any, modules: tuple[str, ...]) -> str:
    """How many lines ran of the modules' files that were loaded."""
    if counter is None:
        return "no package coverage"
    counter.stop()
    run = all_lines = 0
    for file in counter.get_data().measured_files():
        if any(file.startswith(f"{PACKAGE}{module.replace('.', '/')}/") for module in modules):
            _, lines, _, missing, _ = counter.analysis2(file)
            all_lines += len(lines)
            run += len(lines) - len(missing)
    return f"{run} of {all_lines} lines"


def main(arguments: list[str]) -> int:
    """With --repeat 1 when there is a finding."""
    name, option, value = arguments
    signal.signal(signal.SIGPROF, _too_slow)
    command_line.parser = functools.cache(command_line.parser)  # making it takes most of the time
    with made(name) as target:
        if option == "--repeat":
            said, found = tried(target, Path(value).read_bytes())
            print(found or f"no finding; it said: {said}")
            return int(bool(found))
        target.take(target.seeds[0])  # what is loaded late
        bound_memory()
        counter = counter_of(target.modules)
        figures = loop(target, float(option), Path(value))
        print(json.dumps({**figures, "coverage": lines_run(counter, target.modules)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
