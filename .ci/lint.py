"""Checks the format of the code and the layout of the repository, or applies the format.

    lint.py check     clang-format over the C++ code, ruff over the Python code, the rules of tests/layout_rules.py
    lint.py format    clang-format and ruff, which rewrite the files

What is not installed is skipped by name. Standard library only.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLANG_FORMAT = "clang-format 14"  # releases differ in details
CPP = (".cc", ".h", ".cu", ".cuh")


def cpp_files(root: Path = ROOT) -> list[str]:
    """C++ and CUDA files of csrc and of the tests, below the root."""
    files = [path for folder in ("csrc", "tests") for path in (root / folder).rglob("*") if path.suffix in CPP]
    return [path.relative_to(root).as_posix() for path in sorted(files)]


def tool_named(*names: str) -> str | None:
    """The path of a tool: that of this interpreter's environment, or the first one on the path."""
    own = [str(Path(sys.executable).parent / name) for name in names]
    return next(filter(None, map(shutil.which, [*own, *names])), None)


def clang_format() -> str | None:
    """The release of clang-format with which the code is formatted, where it is installed."""
    tool = tool_named("clang-format-14", "clang-format")
    said = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout if tool else ""
    return tool if " version 14." in said else None


def run(tool: str, *arguments: str, root: Path = ROOT) -> bool:
    """Whether a tool is content; it prints what is wrong itself."""
    return subprocess.run([tool, *arguments], cwd=root).returncode == 0


def format_cpp(apply: bool, root: Path = ROOT) -> bool:
    """Checks or rewrites the C++ code."""
    tool = clang_format()
    if tool is None:
        print(f"skipped: no {CLANG_FORMAT}")
        return True
    mode = ["-i"] if apply else ["--dry-run"]
    command = [tool, "--style=file", *mode, *cpp_files(root)]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stderr
    for file in dict.fromkeys(re.findall(r"^(\S+?):\d+:\d+: warning: ", said, re.MULTILINE)):
        print(f"{file}: is not formatted (make format)")
    return not said


def format_python(apply: bool, root: Path = ROOT) -> bool:
    """Checks or rewrites the Python code."""
    tool = tool_named("ruff")
    if tool is None:
        print("skipped: no ruff")
        return True
    correct = run(tool, "check", "-q", "--output-format=concise", *(["--fix"] if apply else []), ".", root=root)
    return run(tool, "format", *([] if apply else ["--check"]), ".", root=root) and correct


def keeps_layout() -> bool:
    """Whether every rule of the layout is kept; prints what breaks one."""
    sys.path.insert(0, str(ROOT / "tests"))
    import layout_rules

    broken = [sentence for rule in layout_rules.RULES for sentence in rule(ROOT)]
    print(*broken, sep="\n", end="\n" if broken else "")
    return not broken


def main(arguments: list[str]) -> int:
    """0: everything is as it must be; 1: something is not, and has been printed; 2: no such command."""
    if arguments not in (["check"], ["format"]):
        print(__doc__, file=sys.stderr)
        return 2
    apply = arguments == ["format"]
    good = [format_cpp(apply), format_python(apply), apply or keeps_layout()]
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
