"""Whether a command line of docs/ would be understood: a known command with known options and settings."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import ringdp
from ringdp.cli import run
from ringdp.cli.main import parse as parse_ringdp
from torch.distributed import DistBackendError
from torch.distributed.run import get_args_parser as torchrun_parser

ROOT = Path(__file__).resolve().parents[2]
READERS_OWN = "train.py"  # the reader's own script
_ASSIGNMENT = re.compile(r"^([A-Z][A-Z0-9_]*)=(.*)$")


def commands_of(text: str) -> list[str]:
    """The lines of a block without comments."""
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def problem(command: str) -> str | None:
    """Why this command would be refused, or None."""
    words = shlex.split(command)
    while words and (assignment := _ASSIGNMENT.match(words[0])):
        if wrong := _setting_problem(*assignment.groups()):
            return wrong
        words = words[1:]
    if not words:
        return None
    known: dict[str, Callable[[list[str]], str | None]] = {
        "ringdp": _ringdp_problem,
        "torchrun": _torchrun_problem,
        "python": _python_problem,
        "make": _make_problem,
    }
    if words[0] not in known:
        return f"'{words[0]}' is none of {', '.join(known)}"
    return known[words[0]](words[1:])


def _setting_problem(variable: str, value: str) -> str | None:
    row = next((row for row in ringdp._C.setting_table() if row["variable"] == variable), None)
    if row is None:
        return f"{variable} is no setting"
    if row["field"]:
        try:
            ringdp.Options(**{row["field"]: value})
        except DistBackendError as error:
            return str(error)
    return None


def _refusal(parse: Callable[[list[str]], object], words: list[str]) -> str | None:
    """What argparse says against these words."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            parse(words)
    except SystemExit as ended:
        return said.getvalue().strip().splitlines()[-1] if ended.code else None
    return None


def _ringdp_problem(words: list[str]) -> str | None:
    if words[:1] == ["run"]:
        return _refusal(run.parser().parse_args, words[1:])
    return _refusal(parse_ringdp, words)


def _torchrun_problem(words: list[str]) -> str | None:
    found: list[argparse.Namespace] = []
    if wrong := _refusal(lambda rest: found.append(torchrun_parser().parse_args(rest)), words):
        return wrong
    if found[0].module:
        return _module_problem(found[0].training_script, found[0].training_script_args)
    return None if found[0].training_script == READERS_OWN else f"there is no {found[0].training_script}"


def _python_problem(words: list[str]) -> str | None:
    if words[0] == "-m":
        return _module_problem(words[1], words[2:])
    if not (ROOT / words[0]).is_file():
        return f"there is no {words[0]}"
    unknown = [word for word in words[1:] if word.startswith("--") and word not in _sources_of(ROOT / words[0])]
    return f"{words[0]} has no {unknown[0]}" if unknown else None


def _sources_of(program: Path) -> str:
    """The text of a program and of what lies below its folder."""
    return "".join(path.read_text() for path in sorted(program.parent.rglob("*.py")))


def _module_problem(module: str, arguments: list[str]) -> str | None:
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        return str(error)
    parse = loaded.parser().parse_args if hasattr(loaded, "parser") else loaded.parse_options
    return _refusal(parse, arguments)


def _make_problem(words: list[str]) -> str | None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, is_variable, _ = word.partition("=")
        if not re.search(rf"^{name}\s*\?=" if is_variable else rf"^{name}:", makefile, re.MULTILINE):
            return f"the Makefile has no {name}"
    return None
