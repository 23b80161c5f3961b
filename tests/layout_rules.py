"""The rules of the layout, each a function from a repository's root to sentences that name what breaks it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

MIN_LINES, MAX_LINES = 25, 600
# One text that is compiled once per instruction set or per element type.
_COMPILED_PER_KIND = re.compile(r"_(scalar|avx2|avx512)\.cc$|/cuda/(float|bfloat|int)\d+\.cu$")
# C++ files that are shorter for another reason.
_SHORT = {
    "backend/precompiled": "read once for all files",
    "bindings/module": "the entry point of the extension",
    "device/cuda/adam": "a kernel that compiles beside those of the element types",
    "device/cuda/plan_kernel": "what the files of the element types share",
}

_MODULES = json.loads((Path(__file__).resolve().parent.parent / "csrc/modules.json").read_text())["modules"]
_FEATURE_FILES = ("base/crc32c.cc", "kernels/dispatch.cc", "backend/compat.h")
_TORCH = re.compile(r"(torch|ATen|c10|caffe2|pybind11)/|Python\.h")
_INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)
_CONDITIONAL = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*$", re.MULTILINE)
_VARIABLE = re.compile(r"\bRINGDP_[A-Z][A-Z0-9_]*\b")
_MACRO = re.compile(r'define_macros=\[\("(\w+)"')
_CODE_SPAN = re.compile(r"`([\w.\-]+(?:/[\w.\-]+)*/?)`")
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def _sources(root: Path) -> Iterator[tuple[str, str, str]]:
    """(path below csrc, module, text without comments) of every C++ and CUDA file."""
    csrc = root / "csrc"
    for path in sorted([*csrc.rglob("*.cc"), *csrc.rglob("*.h"), *csrc.rglob("*.cu")]):
        relative = path.relative_to(csrc)
        yield relative.as_posix(), _module(relative.as_posix()), _without_comments(path.read_text())


def _module(path: str) -> str:
    """The module of a path below csrc: the innermost one, or its first folder where there is none."""
    folders = path.split("/")[:-1]
    inner = ("/".join(folders[:depth]) for depth in range(len(folders), 0, -1))
    return next((module for module in inner if module in _MODULES), path.split("/")[0])


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))


def includes(root: Path) -> Iterator[str]:
    """A module includes itself and what its row of csrc/modules.json allows, relative to csrc/; torch where it may."""
    for path, module, text in _sources(root):
        if module not in _MODULES:
            yield f"csrc/{path}: invalid module '{module}' (csrc/modules.json has {', '.join(_MODULES)})"
            continue
        allowed = _MODULES[module]["includes"]
        for quote, target in _INCLUDE.findall(text):
            other = _module(target)
            if _TORCH.match(target):
                if _MODULES[module].get("compiler") != "torch":
                    yield f"csrc/{path}: includes {target} above the torch line"
            elif quote == '"' and not (root / "csrc" / target).is_file():
                yield f'csrc/{path}: "{target}" is not a path relative to csrc/'
            elif quote == '"' and other != module and other not in allowed and target not in allowed:
                yield f"csrc/{path}: module {module} may not include {target}"


def getenv(root: Path) -> Iterator[str]:
    """Only base/settings.cc reads the environment."""
    for path, _, text in _sources(root):
        if path != "base/settings.cc" and re.search(r"\b(?:secure_)?getenv\b", text):
            yield f"csrc/{path}: getenv belongs in base/settings.cc alone"


def feature_switches(root: Path) -> Iterator[str]:
    """Conditional compilation lives in the catalogue files and in backend/compat.h."""
    for path, _, text in _sources(root):
        for line in _CONDITIONAL.findall(text) if path not in _FEATURE_FILES else ():
            yield f"csrc/{path}: '{line.strip()}' belongs in {', '.join(_FEATURE_FILES)}"


def long_files(root: Path) -> Iterator[str]:
    """No source file is longer than MAX_LINES."""
    folders = ("csrc", "python", "tests", "benchmarks", "docs", ".ci")
    files = [p for f in folders for p in (root / f).rglob("*") if p.suffix in (".cc", ".h", ".cu", ".py", ".sh")]
    for path in sorted([*files, *root.glob("setup*.py")]):
        count = len(path.read_text().splitlines())
        if count > MAX_LINES:
            yield f"{path.relative_to(root).as_posix()}: {count} lines, at most {MAX_LINES}"


def short_files(root: Path) -> Iterator[str]:
    """A C++ file has at least MIN_LINES, counted with the header of its name, unless there is a reason."""
    lines: Counter[str] = Counter()
    csrc = root / "csrc"
    for path in sorted([*csrc.rglob("*.cc"), *csrc.rglob("*.h"), *csrc.rglob("*.cu")]):
        if not _COMPILED_PER_KIND.search(path.as_posix()):
            lines[path.relative_to(csrc).with_suffix("").as_posix()] += len(path.read_text().splitlines())
    for name, count in lines.items():
        if count < MIN_LINES and name not in _SHORT:
            yield f"csrc/{name}: {count} lines, at least {MIN_LINES}: merge it with what it belongs to"


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
    """Every RINGDP_ variable named in code, README or docs/ has its row in the table of base/settings.cc."""
    table = root / "csrc/base/settings.cc"
    setup = root / "setup.py"
    known = set(_VARIABLE.findall(table.read_text())) if table.is_file() else set()
    known |= set(_MACRO.findall(setup.read_text())) if setup.is_file() else set()
    folders = ("csrc", "python", "benchmarks", "docs")
    suffixes = (".cc", ".h", ".cu", ".py", ".pyi", ".md")
    files = [p for f in folders for p in (root / f).rglob("*") if p.suffix in suffixes]
    for path in sorted([*files, *root.glob("setup*.py"), root / "README.md", root / "Makefile"]):
        text = path.read_text() if path.is_file() else ""
        for name in sorted(set(_VARIABLE.findall(text)) - known):
            yield f"{path.relative_to(root).as_posix()}: {name} is not in the table of csrc/base/settings.cc"


RULES = (
    includes,
    getenv,
    feature_switches,
    long_files,
    short_files,
    documented_paths,
    known_variables,
)
