"""The sdist has every file, is made without torch, and says what to type where it is compiled without one."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
METADATA = ("PKG-INFO", "setup.cfg")  # what setuptools adds, beside its egg-info
# An interpreter that finds setuptools but no torch, as in pip's build environment.
WITHOUT_TORCH = """
import importlib.abc, runpy, sys
class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
sys.argv = sys.argv[1:]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """The files that are the project's, and nothing that was built."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True) if shutil.which("git") else None
    if listed is None or listed.returncode or not listed.stdout:  # or a copy that another checkout ignores
        pytest.skip("no git checkout: nothing says which files are the project's")
    folder = tmp_path_factory.mktemp("checkout")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def setup_without_torch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, "setup.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_it_has_every_file_and_needs_no_torch(checkout, tmp_path):
    files = {path.relative_to(checkout).as_posix() for path in checkout.rglob("*") if path.is_file()}
    made = setup_without_torch(checkout, "-q", "sdist", "-d", str(tmp_path))
    assert made.returncode == 0, made.stderr
    [sdist] = tmp_path.glob("ringdp-*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {member.name.partition("/")[2] for member in archive if member.isfile()}
        [info] = [member for member in archive if member.name.count("/") == 1 and member.name.endswith("/PKG-INFO")]
        metadata = archive.extractfile(info).read().decode()
    added = {name for name in packed if name in METADATA or ".egg-info/" in name}
    assert packed - added == files
    assert "Requires-Dist: torch<2.16,>=2.11" in metadata


@pytest.mark.parametrize("command", ["bdist_wheel", "build_ext"])
def test_compiling_without_torch_says_what_to_type(checkout, command):
    refused = setup_without_torch(checkout, "-q", command)
    assert refused.returncode != 0
    assert "pip install --no-build-isolation ." in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_build_needs_the_torch_that_it_is_compiled_against(checkout, tmp_path):
    import torch

    minor = ".".join(torch.__version__.split(".")[:2])
    command = [sys.executable, "setup.py", "-q", "egg_info", "-e", str(tmp_path)]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True, timeout=120)
    lines = (tmp_path / "ringdp.egg-info/requires.txt").read_text().splitlines()
    assert lines[: lines.index("")] == [f"torch=={minor}.*"]


# The terminal on stdin becomes this process's own, as it is that of a shell.
ANNOUNCES = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.path.insert(0, sys.argv[1])
import setup
setup.announce("compiling")
"""


@pytest.mark.parametrize(("under_pip", "shown"), [(True, ["ringdp: compiling"]), (False, [])])
def test_under_pip_the_terminal_has_what_takes_long(under_pip, shown):
    terminal, other_end = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "PIP_BUILD_TRACKER"}
    environment.update({"PIP_BUILD_TRACKER": "/nowhere"} if under_pip else {})
    command = [sys.executable, "-c", ANNOUNCES, str(ROOT)]
    said = subprocess.run(
        command, stdin=other_end, stderr=subprocess.PIPE, env=environment, start_new_session=True, timeout=120
    ).stderr
    os.write(other_end, b"end\n")
    lines: list[str] = []
    while "end" not in lines:
        lines += os.read(terminal, 1 << 16).decode().split()
    os.close(terminal)
    os.close(other_end)
    assert said.decode() == "ringdp: compiling\n"
    assert " ".join(lines) == " ".join([*shown, "end"])
