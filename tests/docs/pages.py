"""The code in docs/*.md as values: what to run, on how many ranks, and what it must print.

    ```python ranks=2             runs on 2 ranks of one group, after the preamble of index.md (default: 1 rank)
    ```python needs=lightning     skipped where this package is not installed
    ```python ranks=2 fresh ...   in a group of its own, which it may break; `timeout=2`: its seconds; others: settings
    ```output                     what rank 0 prints, or the error it ends with; right after its snippet
    ```output rank=1              the same of another rank; `stderr`: lines that are in its stderr
    ```sh                         commands, one per line

Two outputs of one rank: either may be printed.

Also the programs that print pages, and what makes the messages of two runs equal.
"""

from __future__ import annotations

import importlib.util
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LANGUAGES = ("python", "output", "sh", "text")
_FENCE = re.compile(r"^```(\S*)(.*)$")
_NUMBERS = ("ranks", "timeout", "rank")
_NEEDS = "needs"


@dataclass(frozen=True)
class Block:
    """A fenced block. words: what follows the language; outputs: the blocks of output that follow a snippet."""

    page: str
    line: int
    language: str
    words: tuple[str, ...]
    text: str
    outputs: tuple[Block, ...] = ()

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def number(self, name: str, default: int) -> int:
        """The value of `name=value` after the language."""
        return next((int(word.partition("=")[2]) for word in self.words if word.startswith(f"{name}=")), default)

    @property
    def settings(self) -> dict[str, str]:
        """RINGDP_ settings of a fresh group."""
        pairs = (word.partition("=") for word in self.words if "=" in word)
        return {name: value for name, _, value in pairs if name not in (*_NUMBERS, _NEEDS)}

    @property
    def missing(self) -> str:
        """The package of `needs=` that is not installed, or ""."""
        needed = (word.partition("=")[2] for word in self.words if word.startswith(f"{_NEEDS}="))
        return next((package for package in needed if importlib.util.find_spec(package) is None), "")


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """Every fenced block of a page, outputs attached to their snippets. ValueError for one that no test can check."""
    snippet: Block | None = None
    for block in _fenced(page, text):
        if block.language == "output":
            if snippet is None:
                raise ValueError(f"{block}: output of no snippet")
            snippet = replace(snippet, outputs=(*snippet.outputs, block))
            continue
        if snippet is not None:
            yield snippet
        snippet = block if block.language == "python" else None
        if snippet is None:
            yield block
    if snippet is not None:
        yield snippet


def _fenced(page: str, text: str) -> Iterator[Block]:
    opened: Block | None = None
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, inside = Block(page, number, fence[1], tuple(fence[2].split()), ""), []
            if opened.language not in LANGUAGES:
                known = ", ".join(LANGUAGES)
                raise ValueError(f"{opened}: '{opened.language}' is not checked by any test (expected one of: {known})")
        elif opened is not None and line == "```":
            yield replace(opened, text="\n".join(inside) + "\n")
            opened = None
        elif opened is not None:
            inside.append(line)
    if opened is not None:
        raise ValueError(f"{opened}: is not closed")


def all_blocks() -> list[Block]:
    """The blocks of all pages of docs/."""
    return [block for path in sorted(DOCS.glob("*.md")) for block in blocks_of(path.name, path.read_text())]


def preamble() -> str:
    """The snippet of index.md that comes before every other."""
    return next(block.text for block in all_blocks() if block.page == "index.md" and "preamble" in block.words)


_REPLACED = (
    (re.compile(r"pid \d+ on [^)\s]+"), "pid 1 on HOST"),
    (re.compile(r"\bpid \d+"), "pid 1"),
    (re.compile(r"\b\d+\.\d+ (s|ms|us)\b"), r"0.0 \1"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:1"),
    (re.compile(r"its process is [^.;\n]+"), "its process is SOMEHOW"),
    # It may hear of it before it calls or after.
    (re.compile(r"\(this rank called "), "(this rank was in "),
    # When two ranks disagree, one of them notices, and the other is told.
    (re.compile(r"rank \d+( \(pid 1 on HOST\))? gave up: "), ""),
)
_SIDE = r"(rank \d+ (?:\(pid 1 on HOST\) )?(?:called|has) .+?)"
_BOTH_SIDES = re.compile(rf"{_SIDE}, {_SIDE}(?=\. |; )")


def normal(text: str) -> str:
    """`text` with the same word for what no two runs share."""
    text = text.replace(socket.gethostname(), "HOST")
    for pattern, word in _REPLACED:
        text = pattern.sub(word, text)
    text = _BOTH_SIDES.sub(lambda found: ", ".join(sorted(found.groups())), text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def generator_named(name: str) -> ModuleType:
    """docs/NAME.py as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
