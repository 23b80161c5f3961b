"""NCCL's functions: found in the copy that the process has, else in the file that is named; absent is no error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FUNCTIONS = re.findall(r'"(nccl\w+)"', (ROOT / "csrc/device/cuda/nccl.cc").read_text())
SCRIPT = """
import ctypes, sys
loaded, path = sys.argv[2], sys.argv[3]
if loaded:
    ctypes.CDLL(loaded)
core = ctypes.CDLL(sys.argv[1])
core.rd_gpu_error.restype = ctypes.c_char_p
version, functions = ctypes.c_int(-1), ctypes.c_void_p(1)
result = core.rd_gpu_nccl(path.encode(), ctypes.byref(version), ctypes.byref(functions))
print(result, version.value, bool(functions.value), core.rd_gpu_error().decode())
"""


@pytest.fixture(scope="module")
def compiler() -> str:
    """A C compiler, for libraries that pretend to be NCCL."""
    found = shutil.which(os.environ.get("CC") or "cc")
    if found is None:
        pytest.skip("no C compiler")
    return found


@pytest.fixture(params=["path", "emulated"])
def gpu(request) -> Path:
    """The library, as it ships and with an emulated device."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def pretend(compiler, tmp_path):
    """Makes a library with NCCL's name and functions, of a version; `result`: what they return, which is "broken"."""

    def make(version: int, leave_out: str = "", result: int = 0) -> Path:
        said = "ncclGetErrorString"
        numbers = [name for name in FUNCTIONS if name not in (leave_out, said)]
        lines = [f"int {name}(int* v) {{ if (v) *v = {version}; return {result}; }}" for name in numbers]
        lines += [f'const char* {said}(int e) {{ return "broken"; }}'] if leave_out != said else []
        folder = tmp_path / str(version)
        folder.mkdir()
        (folder / "nccl.c").write_text("\n".join(lines))
        output = folder / "libnccl.so.2"
        name = "-Wl,-soname,libnccl.so.2"
        subprocess.run([compiler, "-shared", "-fPIC", name, "-o", output, folder / "nccl.c"], check=True)
        return output

    return make


def ask(library: Path, path: str = "", loaded: str = "", **environment: str) -> list[str]:
    """result, version, whether there are functions, and the sentence, of a process of its own."""
    command = [sys.executable, "-c", SCRIPT, str(library), str(loaded), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return done.stdout.strip().split(" ", 3)


def test_all_twelve_are_looked_up():
    assert len(set(FUNCTIONS)) == len(FUNCTIONS) == 12


def test_a_named_file_is_opened(gpu, pretend):
    assert ask(gpu, pretend(23007))[:3] == ["0", "23007", "True"]


def test_what_the_process_has_goes_before_what_is_named(gpu, pretend):
    assert ask(gpu, pretend(23007), loaded=pretend(22809))[1] == "22809"


def test_else_it_is_found_by_name(gpu, pretend):
    assert ask(gpu, LD_LIBRARY_PATH=str(pretend(22907).parent))[1] == "22907"


def test_without_nccl_the_version_is_0_and_the_reason_is_said(gpu):
    result, version, functions, sentence = ask(gpu, "/nowhere/libnccl.so")
    assert (result, version, functions) == ("0", "0", "False")
    assert sentence.startswith("no NCCL: ") and "/nowhere/libnccl.so" in sentence and "RINGDP_NCCL" in sentence


def test_one_that_lacks_a_function_is_refused_by_its_name(gpu, pretend):
    result, version, _, sentence = ask(gpu, pretend(20000, leave_out="ncclCommAbort"))
    assert result != "0" and version == "0" and "ncclCommAbort" in sentence


def test_one_that_does_not_know_its_version_is_refused_with_its_words(gpu, pretend):
    result, _, functions, sentence = ask(gpu, pretend(20001, result=3))
    assert (result, functions) == ("-1", "False") and sentence == "ncclGetVersion: broken"


def header() -> Path | None:
    """A real nccl.h, of the vendor's packages or of the system."""
    folders = [Path(entry) / "nvidia/nccl/include" for entry in sys.path] + [Path("/usr/include")]
    return next((folder / "nccl.h" for folder in folders if (folder / "nccl.h").exists()), None)


CHECK = r"""
#include <type_traits>
struct CUstream_st;
#include <nccl.h>
#include "device/runtime/nccl_functions.h"
template <class T> struct Plain { using type = std::conditional_t<std::is_enum_v<T>, int, T>; };
template <> struct Plain<ncclUniqueId> { using type = rd_gpu_nccl_id; };
template <> struct Plain<ncclUniqueId*> { using type = rd_gpu_nccl_id*; };
template <> struct Plain<ncclResult_t*> { using type = int*; };
template <> struct Plain<cudaStream_t> { using type = void*; };
template <class F> struct Pointer;
template <class R, class... A> struct Pointer<R(A...)> {
  using type = typename Plain<R>::type (*)(typename Plain<A>::type...);
};
template <class Theirs, class Ours> constexpr bool alike = std::is_same_v<typename Pointer<Theirs>::type, Ours>;
static_assert(sizeof(rd_gpu_nccl_id) == sizeof(ncclUniqueId) && sizeof(ncclResult_t) == sizeof(int));
static_assert(ncclSuccess == 0 && ncclUint8 == RD_GPU_NCCL_UINT8 && ncclInProgress == RD_GPU_NCCL_IN_PROGRESS);
"""


def test_the_declarations_are_those_of_nccl(compiler, tmp_path):
    nccl = header()
    toolkit = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "include"
    if nccl is None or not (toolkit / "cuda_runtime.h").exists():
        pytest.skip("no nccl.h here (pip install nvidia-nccl-cu13), or no cuda_runtime.h")
    ours = {"nccl" + "".join(part.title() for part in name.split("_")): name for name in declared_names()}
    assert set(ours) == set(FUNCTIONS)
    lines = [f"static_assert(alike<decltype({f}), decltype(rd_gpu_nccl_functions::{o})>);" for f, o in ours.items()]
    source = tmp_path / "check.cc"
    source.write_text(CHECK + "\n".join(lines))
    folders = [f"-I{folder}" for folder in (ROOT / "csrc", nccl.parent, toolkit)]
    subprocess.run([compiler, "-x", "c++", "-std=c++17", "-fsyntax-only", *folders, source], check=True)


def declared_names() -> list[str]:
    """The members of rd_gpu_nccl_functions."""
    return re.findall(r"\(\*(\w+)\)", (ROOT / "csrc/device/runtime/nccl_functions.h").read_text())
