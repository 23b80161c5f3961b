#!/usr/bin/env python3
"""Which peers, and which simulator, are on this machine? Installs what is named, and says of each whether it starts.

    python benchmarks/peers.py                      # says what is there
    python benchmarks/peers.py openmpi mpich        # installs these
    python benchmarks/peers.py all

Each gets a virtual environment below --folder, because MPI flavours share the names of launchers and libraries. What
is installed stands in benchmarks/requirements.txt. DeepSpeed's is built without isolation against the torch of this
interpreter, which its environment sees; compiling its op needs a C++ compiler and takes a minute, running it AVX-512.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from runner.peers import PEERS, compiled_op, why_missing
from scale.compare import simulator

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
# What has to be there before a package can be built. SimGrid 4.1 does not compile with pybind11 3.
TOOLS = {
    "deepspeed": ["setuptools", "wheel", "ninja"],
    "simgrid": ["setuptools", "wheel", "cmake", "pybind11<3"],
}


def packages(text: str) -> dict[str, list[str]]:
    """What requirements.txt says of each peer."""
    return {name: words.split() for name, words in re.findall(r"^# peer (\w+): (.+)$", text, re.MULTILINE)}


def install(name: str, wanted: list[str], home: Path) -> None:
    """Makes the environment; CalledProcessError when pip cannot."""
    venv.create(home, with_pip=True)
    pip = [str(home / "bin/python"), "-m", "pip", "install", "-q"]
    if name in TOOLS:
        subprocess.run([*pip, *TOOLS[name]], check=True)
        pip.append("--no-build-isolation")
    if name == "deepspeed":
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        found = importlib.util.find_spec("torch")
        torch = Path(found.origin).parent.parent if found and found.origin else Path(sysconfig.get_path("purelib"))
        (home / "lib" / version / "site-packages/torch-of-ringdp.pth").write_text(f"{torch}\n")
    subprocess.run([*pip, *wanted], check=True, env=with_tools(home))
    if name == "deepspeed":
        compile_op(home)


def with_tools(home: Path) -> dict[str, str]:
    """Variables under which a build finds the tools of that environment, then ours."""
    path = os.pathsep.join((str(home.absolute() / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return {**os.environ, "PATH": path}


def compile_op(home: Path) -> None:
    """DeepSpeed's op, by torch's own means; CalledProcessError when it cannot be."""
    folder = compiled_op(home.absolute()).parent.parent
    shutil.rmtree(folder, ignore_errors=True)  # may hold the lock of a killed build
    build = "from deepspeed.ops.op_builder import ShareMemCommBuilder; ShareMemCommBuilder().load(verbose=False)"
    environment = {**with_tools(home), "TORCH_EXTENSIONS_DIR": str(folder)}
    subprocess.run([home.absolute() / "bin/python", "-c", build], check=True, env=environment)


def main() -> int:
    """1 when a peer that was asked for cannot start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PEER", help=f"of {', '.join(PEERS)}, simgrid, or all")
    parser.add_argument("--folder", type=Path, default=ROOT / ".peers", help="default .peers next to the sources")
    found = parser.parse_args()
    known = packages(REQUIREMENTS.read_text())
    wanted = list(known) if found.names == ["all"] else found.names
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(known)}, all")
    for name in wanted:
        try:
            install(name, known[name], found.folder / name)
        except subprocess.CalledProcessError as error:
            print(f"{name}: {error}", file=sys.stderr)
    status = 0
    for name in known:
        home = (found.folder / name).absolute()
        reason = why_missing(PEERS[name], home) if name in PEERS else simulator(found.folder)[1]
        print(f"{name:<10} {reason or 'ready'}")
        status |= bool(reason) and name in wanted
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
