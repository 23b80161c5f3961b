"""Builds ringdp._C: the torch-free modules of csrc/ here, the torch side by torch.utils.cpp_extension.

The CUDA part is a library of its own: setup_cuda.py.

`pip install --no-build-isolation .`, the same with `-e`, or `python setup.py build_ext --inplace`. A wheel needs the
minor release of torch that it was compiled against; an sdist needs no torch to be made.
Environment: CXX (compiler), CXXFLAGS and LDFLAGS (added to our own), MAX_JOBS (default: every core),
RINGDP_CUDA=auto|on|off, RINGDP_CUDA_ARCHS=auto|all|80;90.
Compiled files are kept under build/ and compiled again only when they or what they include changed; ccache is used
where it is on the PATH (CCACHE_DISABLE=1 does without).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from setuptools import setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # pip runs this file from elsewhere
import setup_cuda  # noqa: E402

SUPPORTED_TORCH = "torch>=2.11,<2.16"  # of the sources; a compiled extension fits one minor release
CSRC = setup_cuda.CSRC
MODULES, FLAGS = setup_cuda.MODULES["modules"], setup_cuda.MODULES["flags"]


def asked(name: str) -> list[str]:
    """The flags that a variable of the environment adds."""
    return shlex.split(os.environ.get(name, ""))


CORE_FLAGS = [*FLAGS["core"].split(), *FLAGS["common"].split(), *asked("CXXFLAGS")]
# Only these files may use more than the baseline instruction set; kernels/dispatch.cc picks one at run time.
SIMD_FLAGS = {f"_{isa}.cc": FLAGS[isa].split() for isa in ("avx2", "avx512")}
X86_64 = platform.machine() in ("x86_64", "AMD64")


def say(line: str) -> None:
    """Progress goes to stderr, so that stdout can be a log."""
    print(f"ringdp: {line}", file=sys.stderr, flush=True)


def announce(line: str) -> None:
    """Says what takes long from now on. pip without -v hides output, so under pip the terminal has the line, too."""
    say(line)
    if "PIP_BUILD_TRACKER" in os.environ and not sys.stderr.isatty():
        with suppress(OSError), open("/dev/tty", "w") as terminal:  # OSError: nobody is watching
            terminal.write(f"\nringdp: {line}\n")


def compiler() -> list[str]:
    """The C++ compiler as a command, from CXX."""
    return shlex.split(os.environ.get("CXX", "")) or ["c++"]


@cache
def launcher() -> list[str]:
    """What goes in front of a compiler: ccache where there is one, unless CXX names a launcher itself."""
    found = shutil.which("ccache") if len(compiler()) == 1 else None
    if found:
        os.environ.setdefault("CCACHE_SLOPPINESS", "pch_defines,time_macros")  # else no file with torch's headers hits
    return [found] if found else []


@cache
def compiler_version() -> str:
    """What the compiler says about itself; "" when it says nothing."""
    return subprocess.run([*compiler(), "--version"], capture_output=True, text=True).stdout


def jobs() -> int:
    """Compilations at a time, from MAX_JOBS."""
    return int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)


def torch_minor() -> str | None:
    """Of the torch in this environment: 2.13; None where there is none."""
    try:
        import torch
    except ImportError:
        return None
    return ".".join(torch.__version__.split(".")[:2])


def compiler_of(source: Path) -> str:
    """What compiles a file of csrc, by the innermost module that it is in: core, torch or nvcc."""
    folders = [folder.as_posix() for folder in source.relative_to(CSRC).parents]
    return MODULES[next(folder for folder in folders if folder in MODULES)].get("compiler", "core")


def sources(kind: str) -> list[Path]:
    """Every .cc that is compiled so, relative to the root; SIMD files only where they can compile."""
    every = sorted(path for path in CSRC.rglob("*.cc") if compiler_of(path) == kind)
    return [p.relative_to(ROOT) for p in every if X86_64 or not p.name.endswith(tuple(SIMD_FLAGS))]


def headers() -> list[str]:
    """Every header, so that a build without ninja notices a change."""
    return sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*.h"))


def core_command(source: Path) -> list[str]:
    """The command that compiles one core file, without its outputs."""
    simd = next((flags for end, flags in SIMD_FLAGS.items() if source.name.endswith(end)), [])
    return [*compiler(), *CORE_FLAGS, *simd, "-Icsrc", "-c", str(source)]


def is_current(output: Path) -> bool:
    """Whether an object is newer than everything its dependency file names."""
    dependencies = output.with_suffix(".d")
    if not (output.exists() and dependencies.exists()):
        return False
    names = dependencies.read_text().replace("\\\n", " ").partition(":")[2].split()  # nvcc puts a space before it
    built = output.stat().st_mtime_ns
    return all((ROOT / n).exists() and (ROOT / n).stat().st_mtime_ns <= built for n in names)


def compile_objects(name: str, key: object, files: list[Path], command: Callable[[Path], list[str]]) -> list[Path]:
    """Compiles what changed among these files; returns every object. Exits on the first broken file.

    Objects lie in build/<name>-<hash of key>, each with a .log of what its compiler said.
    """
    folder = ROOT / "build" / f"{name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:12]}"
    outputs = {source: folder / source.relative_to("csrc").with_suffix(".o") for source in files}
    stale = [source for source, output in outputs.items() if not is_current(output)]

    def compile_one(source: Path) -> subprocess.CompletedProcess[str]:
        output = outputs[source]
        output.parent.mkdir(parents=True, exist_ok=True)
        output.unlink(missing_ok=True)
        outputs_of = ["-MMD", "-MF", str(output.with_suffix(".d")), "-o", str(output)]
        result = subprocess.run([*launcher(), *command(source), *outputs_of], cwd=ROOT, capture_output=True, text=True)
        output.with_suffix(".log").write_text(result.stderr)
        return result

    (announce if stale else say)(f"{name}: {len(stale)} of {len(outputs)} files to compile, {jobs()} at a time")
    with ThreadPoolExecutor(jobs()) as pool:
        for number, (source, result) in enumerate(zip(stale, pool.map(compile_one, stale), strict=True), 1):
            if result.returncode != 0 or "warning" in result.stderr:
                print(result.stderr, file=sys.stderr)
            if result.returncode != 0:
                pool.shutdown(cancel_futures=True)
                sys.exit(f"ringdp: {source} does not compile")
            say(f"{name} [{number}/{len(stale)}] {source}")
    return list(outputs.values())


def compile_core() -> list[str]:
    """Compiles what changed in the core modules; returns every object."""
    key = (compiler(), compiler_version(), CORE_FLAGS, SIMD_FLAGS)
    objects = compile_objects("core", key, sources("core"), core_command)
    return [str(output.relative_to(ROOT)) for output in objects]


def precompiled(flags: list[str], folder: Path) -> list[str]:
    """Has GCC parse torch's headers once for all files with these flags; what makes it use that. [] elsewhere."""
    if "Free Software Foundation" not in compiler_version():
        return []
    source = ROOT / "csrc/backend/precompiled.h"
    key = (compiler(), compiler_version(), flags, source.read_text())
    copy = folder / hashlib.sha256(repr(key).encode()).hexdigest()[:12] / source.name
    output = copy.with_suffix(".h.gch")
    if not output.exists():
        shutil.rmtree(folder, ignore_errors=True)  # it is large
        copy.parent.mkdir(parents=True)
        shutil.copy(source, copy)
        announce("torch's headers, once for all files")
        command = [*compiler(), *flags, "-w", "-x", "c++-header", str(copy), "-o", str(output)]
        if subprocess.run(command, cwd=ROOT).returncode != 0:
            return []  # each file parses them for itself
    # -Wsign-compare is what torch's headers switch off, and that is not kept; ccache needs the last.
    return ["-include", str(copy), "-Wno-sign-compare", "-fpch-preprocess"]


def write_build_record(folder: Path, cuda: str | None) -> None:
    """What this build is for, in a file that can be read where the library itself cannot be loaded."""
    import torch

    version = compiler_version().splitlines()
    record = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiler": version[0] if version else " ".join(compiler()),
        "cuda": cuda,
        "cuda_architectures": setup_cuda.architectures() if cuda else [],
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
    (folder / "_built.json").write_text(json.dumps(record, indent=2) + "\n")


def extension_and_command() -> tuple[object, type]:
    """The extension and the build_ext command that compiles it."""
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    class BuildRingdp(BuildExtension):
        """BuildExtension that compiles the core first and keeps its objects between editable builds."""

        def finalize_options(self) -> None:
            super().finalize_options()
            # pip gives editable builds a throw-away folder, which would compile everything again.
            self.build_temp = str(ROOT / "build" / f"torch-{torch_minor()}-{sys.implementation.cache_tag}")

        def run(self) -> None:
            os.environ.setdefault("MAX_JOBS", str(jobs()))  # torch's build uses ccache by itself
            objects = compile_core()
            for ext in self.extensions:
                ext.extra_objects = objects
                ext.depends = [*objects, *headers()]
            files = sources("torch")
            new = sum(not (Path(self.build_temp) / file.with_suffix(".o")).exists() for file in files)
            (announce if new else say)(f"torch side: {len(files)} files, {new} of them new; others if they changed")
            self.force = True  # ninja knows what changed; setuptools would keep another torch's library in build/lib
            super().run()
            folder = Path(self.get_ext_fullpath("ringdp._C")).parent
            write_build_record(folder, setup_cuda.build(folder, say, compile_objects))

        def build_extension(self, ext: Any) -> None:
            folders = [*self.compiler.include_dirs, *ext.include_dirs]
            macros = [f"-D{name}={value}" for name, value in ext.define_macros]
            flags = [*self.compiler.compiler_so[1:], *macros, *(f"-I{f}" for f in folders), *ext.extra_compile_args]
            ext.extra_compile_args += precompiled(flags, Path(self.build_temp) / "precompiled")
            super().build_extension(ext)

    extension = CppExtension(
        "ringdp._C",
        [str(p) for p in sources("torch")],
        include_dirs=[str(ROOT / "csrc")],
        define_macros=[("RINGDP_TORCH_VERSION", f'"{torch.__version__}"')],
        extra_compile_args=["-std=c++20", "-O2", "-g0", "-ffp-contract=off", "-fvisibility=hidden", *asked("CXXFLAGS")],
        extra_link_args=["-pthread", "-ldl", *asked("LDFLAGS")],
    )
    return extension, BuildRingdp


NO_TORCH = """ringdp is compiled against the torch that is installed, and this build sees none.
pip builds in an empty environment unless it is told otherwise. Type:
    pip install torch==2.13.0 'setuptools>=70.1'        (or another torch from 2.11 to 2.15)
    pip install --no-build-isolation ."""


def main() -> None:
    """An sdist and metadata need neither torch nor a compiler. Exits with what to type where torch is needed."""
    setup_cuda.choice()  # a bad value is refused before anything is compiled
    setup_cuda.asked_architectures()
    minor = None if "sdist" in sys.argv else torch_minor()
    if minor is not None:
        extension, command = extension_and_command()
        setup(install_requires=[f"torch=={minor}.*"], ext_modules=[extension], cmdclass={"build_ext": command})
    elif {"sdist", "egg_info", "dist_info"}.isdisjoint(sys.argv):
        sys.exit(NO_TORCH)
    else:
        setup(install_requires=[SUPPORTED_TORCH])


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
