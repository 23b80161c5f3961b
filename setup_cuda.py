"""Builds libringdp_gpu.so, the CUDA part of ringdp, with nvcc alone: no torch, no driver and no GPU are needed.

The library stands beside the extension, which opens it at run time. nvcc is looked for in $CUDA_HOME/bin, on the PATH,
and among the vendor's pip packages (the extra `cuda-build`). setup.py calls `build`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib import util
from pathlib import Path

ROOT = Path(__file__).resolve().parent
LIBRARY = "libringdp_gpu.so"
CHOICES = ("auto", "on", "off")
PACKAGES = "nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-cccl".split()
OLDEST = (12, 8)  # the first that knows sm_100 and compresses
CSRC = ROOT / "csrc"
MODULES = json.loads((CSRC / "modules.json").read_text())
[FOLDER] = [CSRC / name for name, module in MODULES["modules"].items() if module.get("compiler") == "nvcc"]
BORROWED = [f"csrc/{path}" for path in MODULES["borrowed"]]
# No contraction: sums keep the roundings of the CPU, and a fused multiply-add stands where it is written.
# Kernels of many types and worlds look alike: compressed they are a sixth.
FLAGS = (
    "-std=c++17 -O3 -fmad=false --compress-mode=size -Xcompiler -fPIC,-Wall,-Wextra -Xptxas -v,-warn-spills"
).split()
ALL_ARCHITECTURES = ("80", "90", "100")
LINK_FLAGS = "-shared -cudart static -Xlinker --version-script=csrc/device/cuda/exports.map,-z,defs".split()

# compile_objects of setup.py: folder's name, what its key is made of, sources, the command of one source -> objects
Compile = Callable[[str, object, list[Path], Callable[[Path], list[str]]], list[Path]]


def choice() -> str:
    """RINGDP_CUDA, refused when it is none of its values."""
    chosen = os.environ.get("RINGDP_CUDA") or "auto"
    if chosen not in CHOICES:
        sys.exit(f"invalid value '{chosen}' for RINGDP_CUDA (expected one of: {', '.join(CHOICES)})")
    return chosen


def asked_architectures() -> tuple[str, ...] | None:
    """Compute capabilities without the point from RINGDP_CUDA_ARCHS; None for auto. Refused when it is neither."""
    asked = os.environ.get("RINGDP_CUDA_ARCHS") or "auto"
    if asked in ("auto", "all"):
        return None if asked == "auto" else ALL_ARCHITECTURES
    numbers = set(re.split(r"[;, ]+", asked.strip()))
    if numbers != set(supported(numbers)):
        sys.exit(f"invalid value '{asked}' for RINGDP_CUDA_ARCHS (expected auto, all, or numbers from 80 on: '80;90')")
    return supported(numbers)


def architectures() -> tuple[str, ...]:
    """For which devices kernels are compiled: those asked for, those here, or the oldest, whose PTX runs on all."""
    return asked_architectures() or devices_here() or ALL_ARCHITECTURES[:1]


def supported(numbers: set[str]) -> tuple[str, ...]:
    """Those that can be compiled for, the oldest first."""
    oldest = int(ALL_ARCHITECTURES[0])
    return tuple(sorted((n for n in numbers if re.fullmatch(r"\d{2,3}", n) and int(n) >= oldest), key=int))


@cache
def devices_here() -> tuple[str, ...]:
    """The compute capabilities of this machine's devices that can be compiled for; () where there are none."""
    smi = shutil.which("nvidia-smi")
    query = [str(smi), "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout if smi else ""
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    return supported({line.strip().replace(".", "") for line in said.splitlines()})


def code_of(chosen: tuple[str, ...]) -> list[str]:
    """What tells nvcc so. The last one also as PTX, from which the driver compiles for what comes later."""
    *others, last = chosen
    codes = [*((n, f"sm_{n}") for n in others), (last, f"[sm_{last},compute_{last}]")]
    return [word for n, code in codes for word in ("-gencode", f"arch=compute_{n},code={code}")]


def _in_packages() -> Path | None:
    """The nvcc of nvidia-cuda-nvcc, which installs below the package nvidia.cu13."""
    spec = util.find_spec("nvidia")
    found = [Path(folder) / "cu13/bin/nvcc" for folder in (spec.submodule_search_locations or ())] if spec else []
    return next((nvcc for nvcc in found if nvcc.is_file()), None)


def find_nvcc() -> Path | None:
    """Where nvcc is. $CUDA_HOME counts alone when it is set."""
    home = os.environ.get("CUDA_HOME")
    if home:
        nvcc = Path(home) / "bin/nvcc"
        return nvcc if nvcc.is_file() else None
    on_path = shutil.which("nvcc")
    return Path(on_path) if on_path else _in_packages()


@cache
def version_of(nvcc: Path) -> str:
    """What it says about itself."""
    return subprocess.run([str(nvcc), "--version"], capture_output=True, text=True).stdout


def release_in(version: str) -> tuple[int, int]:
    """(13, 0) of `nvcc --version`; (0, 0) when it names none."""
    found = re.search(r"release (\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def unfit(nvcc: Path | None) -> str | None:
    """Why this nvcc cannot build the library, or None."""
    if nvcc is None:
        where = os.environ.get("CUDA_HOME")
        return f"no nvcc in CUDA_HOME={where}" if where else "no nvcc in CUDA_HOME, on the PATH or from pip"
    release = release_in(version_of(nvcc))
    if release >= OLDEST:
        return None
    return f"{nvcc} is of CUDA {release[0]}.{release[1]}, and {OLDEST[0]}.{OLDEST[1]} or later is needed"


def sources() -> list[Path]:
    """What the library is made of, relative to the root."""
    own = [p.relative_to(ROOT) for p in FOLDER.iterdir() if p.suffix in (".cc", ".cu")]
    return sorted([*own, *map(Path, BORROWED)])


def compile_command(nvcc: Path, source: Path) -> list[str]:
    """The command that compiles one file, without its outputs."""
    return [str(nvcc), *FLAGS, *code_of(architectures()), "-Icsrc", "-c", str(source)]


def link(nvcc: Path, objects: list[Path], output: Path) -> None:
    """Links the library; exits with the linker's words."""
    # Packages of pip keep libraries in lib, where nvcc looks in lib64.
    folder = f"-L{nvcc.resolve().parent.parent / 'lib'}"
    command = [str(nvcc), *LINK_FLAGS, folder, "-o", str(output), *map(str, objects), "-ldl"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{result.stderr}\nringdp: {LIBRARY} does not link; RINGDP_CUDA=off builds without it")


def compiled(nvcc: Path, compile_objects: Compile) -> list[Path]:
    """Compiles what changed; returns every object. Beside each stands what ptxas said, in a .log."""
    key = (version_of(nvcc), FLAGS, architectures())
    return compile_objects("cuda", key, sources(), lambda source: compile_command(nvcc, source))


def build(folder: Path, say: Callable[[str], None], compile_objects: Compile) -> str | None:
    """Puts the library into `folder`, as RINGDP_CUDA says; returns which CUDA it is of, None when it was not built."""
    output = folder / LIBRARY
    chosen, nvcc = choice(), find_nvcc()
    why = "RINGDP_CUDA=off" if chosen == "off" else unfit(nvcc)
    if why and chosen == "on":
        ways_out = f"`pip install {' '.join(PACKAGES)}` brings one, RINGDP_CUDA=off does without"
        sys.exit(f"RINGDP_CUDA=on: {why}; {ways_out}")
    if why:
        output.unlink(missing_ok=True)
        say(f"CUDA part skipped: {why}")
        return None
    say(f"CUDA part: {', '.join(f'sm_{n}' for n in architectures())} and PTX (RINGDP_CUDA_ARCHS=all for all)")
    link(nvcc, compiled(nvcc, compile_objects), output)
    return ".".join(map(str, release_in(version_of(nvcc))))
