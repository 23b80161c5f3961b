"""The rules of the layout, each a function from a repository's root to sentences that name what breaks it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

MAX_LINES = 600

# room -> rooms it may include besides itself
_CORE = ("base", "kernels", "trace", "transport", "plan", "collective", "comm")
_ALLOWED: dict[str, tuple[str, ...]] = {
    "base": (),
    "kernels": ("base",),
    "trace": ("base",),
    "transport": ("base",),
    "plan": ("base",),
    "collective": _CORE[:5],
    "comm": _CORE[:6],
    "gpu": ("base", "kernels", "transport", "plan"),
    "backend": (*_CORE, "gpu"),
    "reducer": ("base", "kernels", "trace", "backend"),
    "zero": ("base", "kernels", "trace", "backend", "reducer"),
    "bindings": (*_CORE, "gpu", "backend", "reducer", "zero"),
}
_BELOW_TORCH_LINE = ("backend", "reducer", "zero", "bindings")
_FEATURE_FILES = ("base/crc32c.cc", "kernels/dispatch.cc", "transport/catalog.h", "transport/catalog.cc", "backend/compat.h")
_TORCH = re.compile(r"(torch|ATen|c10|caffe2|pybind11)/|Python\.h")
_INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)
_CONDITIONAL = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*$", re.MULTILINE)
_VARIABLE = re.compile(r"\bRINGDP_[A-Z][A-Z0-9_]*\b")
_MACRO = re.compile(r'define_macros=\[\("(\w+)"')
_CODE_SPAN = re.compile(r"`([\w.\-]+(?:/[\w.\-]+)*/?)`")
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def _sources(root: Path) -> Iterator[tuple[str, str, str]]:
    """(path below csrc, room, text without comments) of every C++ and CUDA file."""
    csrc = root / "csrc"
    for path in sorted([*csrc.rglob("*.cc"), *csrc.rglob("*.h"), *csrc.rglob("*.cu")]):
        relative = path.relative_to(csrc)
        yield relative.as_posix(), relative.parts[0], _without_comments(path.read_text())


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))


def includes(root: Path) -> Iterator[str]:
    """A room includes itself and the rooms its row allows, by a path relative to csrc/; torch only below its line."""
    for path, room, text in _sources(root):
        if room not in _ALLOWED:
            yield f"csrc/{path}: '{room}' is no room of the house ({', '.join(_ALLOWED)})"
            continue
        for quote, target in _INCLUDE.findall(text):
            first = target.split("/")[0]
            if _TORCH.match(target):
                if room not in _BELOW_TORCH_LINE:
                    yield f"csrc/{path}: includes {target} above the torch line"
            elif quote == '"' and not (root / "csrc" / target).is_file():
                yield f'csrc/{path}: "{target}" is no path relative to csrc/'
            elif quote == '"' and first != room and first not in _ALLOWED[room]:
                yield f"csrc/{path}: room {room} may not include {target}"


def getenv(root: Path) -> Iterator[str]:
    """Only base/env.cc reads the environment."""
    for path, _, text in _sources(root):
        if path != "base/env.cc" and re.search(r"\b(?:secure_)?getenv\b", text):
            yield f"csrc/{path}: getenv belongs in base/env.cc alone"


def feature_switches(root: Path) -> Iterator[str]:
    """Conditional compilation lives in the catalogue files and in backend/compat.h."""
    for path, _, text in _sources(root):
        for line in _CONDITIONAL.findall(text) if path not in _FEATURE_FILES else ():
            yield f"csrc/{path}: '{line.strip()}' belongs in {', '.join(_FEATURE_FILES)}"


def small_files(root: Path) -> Iterator[str]:
    """No source file is longer than MAX_LINES."""
    folders = ("csrc", "python", "tests", "benchmarks", "docs", ".ci")
    files = [p for f in folders for p in (root / f).rglob("*") if p.suffix in (".cc", ".h", ".cu", ".py", ".sh")]
    for path in sorted([*files, *root.glob("setup*.py")]):
        count = len(path.read_text().splitlines())
        if count > MAX_LINES:
            yield f"{path.relative_to(root).as_posix()}: {count} lines, at most {MAX_LINES}"


def _names_a_path(folders: Sequence[Path], token: str) -> bool:
    """Whether a code span means a file of this repository: it starts in one of its folders and goes deeper."""
    first, _, rest = token.partition("/")
    return bool(rest) and any((folder / first).is_dir() for folder in folders)


def documented_paths(root: Path) -> Iterator[str]:
    """Paths that the documents quote or link exist, from the document's folder or from one above it; none of build/."""
    patterns = ("*.md", "docs/*.md", "csrc/**/README.md", "benchmarks/*.md")
    for page in sorted(path for pattern in patterns for path in root.glob(pattern)):
        text = page.read_text()
        folders = [folder for folder in page.parents if folder.is_relative_to(root)]
        spans = [span for span in _CODE_SPAN.findall(text) if not span.startswith("build/")]
        quoted = [span for span in spans if _names_a_path(folders, span)]
        for token in [*quoted, *_LINK.findall(text)]:
            if not any((folder / token).exists() for folder in folders):
                yield f"{page.relative_to(root).as_posix()}: {token} does not exist"


def known_variables(root: Path) -> Iterator[str]:
    """Every RINGDP_ variable named in code, README or docs/ has its row in the table of base/env.cc."""
    table = root / "csrc/base/env.cc"
    setup = root / "setup.py"
    known = set(_VARIABLE.findall(table.read_text())) if table.is_file() else set()
    known |= set(_MACRO.findall(setup.read_text())) if setup.is_file() else set()
    folders = ("csrc", "python", "benchmarks", "docs")
    suffixes = (".cc", ".h", ".cu", ".py", ".pyi", ".md")
    files = [p for f in folders for p in (root / f).rglob("*") if p.suffix in suffixes]
    for path in sorted([*files, *root.glob("setup*.py"), root / "README.md", root / "Makefile"]):
        text = path.read_text() if path.is_file() else ""
        for name in sorted(set(_VARIABLE.findall(text)) - known):
            yield f"{path.relative_to(root).as_posix()}: {name} is not in the table of csrc/base/env.cc"


RULES = (
    includes,
    getenv,
    feature_switches,
    small_files,
    documented_paths,
    known_variables,
)
