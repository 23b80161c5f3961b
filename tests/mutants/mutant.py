"""A planted fault: a patch with lines before it that say what is wrong and which tests see it."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SUITES = ("plain", "thread", "address", "python")
_FILE = FOLDER.parents[1] / "csrc/modules.json"
MODULES = tuple(name for name, module in json.loads(_FILE.read_text())["modules"].items() if "suites" in module)


class BadPatch(Exception):
    """What is wrong with a patch file."""


@dataclass(frozen=True)
class Selection:
    """Tests of one suite: a module and a filter of GoogleTest's, or arguments of pytest's."""

    suite: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.suite, *(shlex.quote(word) if " " in word else word for word in self.words)))


@dataclass(frozen=True)
class Mutant:
    """One planted fault."""

    name: str
    fault: str
    caught_by: Selection
    files: tuple[str, ...]  # that the patch changes, relative to the root
    patch: Path

    def touches(self, prefix: str) -> bool:
        """Whether a file below this folder is changed."""
        return any(file.startswith(prefix) for file in self.files)


def selection_of(text: str) -> Selection:
    """From 'plain plan RingRank.*' or 'python tests/python/ddp -k weights'."""
    suite, *words = shlex.split(text) or [""]
    if suite not in SUITES:
        raise BadPatch(f"invalid suite '{suite}' (expected one of: {', '.join(SUITES)})")
    if suite == "python":
        if not any(word.startswith("tests") for word in words):
            raise BadPatch("no path of tests after 'python'")
    elif len(words) != 2 or words[0] not in MODULES:
        raise BadPatch(f"expected '{suite} <module> <filter>', the module one of: {', '.join(MODULES)}")
    return Selection(suite, tuple(words))


def parse(patch: Path) -> Mutant:
    """Reads a patch file; BadPatch says what it lacks."""
    facts: dict[str, str] = {}
    files: list[str] = []
    for line in patch.read_text().splitlines():
        if line.startswith("+++ "):
            files.append(line[4:].split("\t")[0].removeprefix("b/"))
        elif not files and not line.startswith(("--- ", "diff ")) and ": " in line:
            key, _, value = line.partition(": ")
            facts[key] = value.strip()
    for key in ("Fault", "Caught by"):
        if not facts.get(key):
            raise BadPatch(f"{patch.name}: no line '{key}: ...' before the diff")
    if not files or not all(file.startswith(("csrc/", "python/")) for file in files):
        raise BadPatch(f"{patch.name}: must change files below csrc/ or python/, and no others")
    try:
        caught_by = selection_of(facts["Caught by"])
    except BadPatch as error:
        raise BadPatch(f"{patch.name}: Caught by: {error}") from None
    return Mutant(patch.stem, facts["Fault"], caught_by, tuple(files), patch)


def load(folder: Path = FOLDER, names: list[str] | None = None) -> list[Mutant]:
    """The mutants of a folder, or those of these names, in order of their names."""
    found = {patch.stem: patch for patch in sorted(folder.glob("*.patch"))}
    for name in names or []:
        if name not in found:
            raise BadPatch(f"no mutant '{name}' (there are: {', '.join(found)})")
    return [parse(patch) for name, patch in found.items() if not names or name in names]
