"""libringdp_gpu.so through its C interface, which loads anywhere, and what ptxas said of its kernels."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import ringdp

HEADER = Path(__file__).resolve().parents[3] / "csrc/device/runtime/ringdp_gpu.h"
FLOAT32, MAX_OP, SUM_OP = 10, 3, 0  # ringdp::DType, ringdp::ReduceOp
SPIN, STREAM = 0, 1
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Describe(ctypes.Structure):
    """As many bytes as rd_gpu_device has, or more."""

    _fields_ = [("room", ctypes.c_ubyte * 256)]


def declared() -> set[str]:
    """The functions of the header."""
    return set(re.findall(r"\b(rd_gpu_\w+)\(", re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)))


def said(core) -> str:
    """The sentence of the last failure."""
    return core.rd_gpu_error().decode()


def refused(core, result: int) -> str:
    """The sentence of a call that must have failed."""
    assert result != 0
    return said(core)


def output_of(*command) -> str:
    """What a tool prints; skipped where it is not there."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout


def zeros_of_known_size(core, function) -> ctypes.Array:
    """Work of the size that the library expects, all zeros."""
    sentence = refused(core, function(b"x", 1))
    return ctypes.create_string_buffer(int(re.search(r"where (\d+) are known", sentence)[1]))


def test_it_exports_its_interface_and_nothing_else(path):
    symbols = {line.split()[-1] for line in output_of("nm", "-D", "--defined-only", path).splitlines()}
    assert symbols == declared()


def test_it_needs_neither_cuda_nor_nccl(path):
    needed = output_of("ldd", "-r", path)
    assert "undefined" not in needed and "not found" not in needed
    for absent in ("cuda", "nccl", "nvidia", "torch", "python"):
        assert absent not in needed.lower()


def test_without_a_device_the_reason_is_said(core, devices):
    assert devices > 0 or said(core).startswith("no CUDA device: ")


def test_the_header_and_the_library_have_one_number(core):
    assert core.rd_gpu_abi() == int(re.search(r"RD_GPU_ABI = (\d+)", HEADER.read_text())[1])


def test_what_is_null_is_named(core):
    null = None
    for call, argument in [
        (lambda: core.rd_gpu_count(null), "count"),
        (lambda: core.rd_gpu_describe(0, null), "out"),
        (lambda: core.rd_gpu_alloc(0, 1, 0, null), "out"),
        (lambda: core.rd_gpu_import(0, null, -1, null), "handle"),
        (lambda: core.rd_gpu_export(null, null, null), "out"),
        (lambda: core.rd_gpu_host_alloc(1, null, null), "host"),
        (lambda: core.rd_gpu_host_map(null, 1, null), "host"),
        (lambda: core.rd_gpu_copy(null, null, 1, null), "to"),
        (lambda: core.rd_gpu_call(null, null, null), "call"),
        (lambda: core.rd_gpu_await(null, 1, null), "host_word"),
        (lambda: core.rd_gpu_write(null, 1, null), "host_word"),
        (lambda: core.rd_gpu_copy_now(0, null, null, 1), "to"),
        (lambda: core.rd_gpu_stream(0, null), "out"),
        (lambda: core.rd_gpu_swap_capture_mode(null), "mode"),
        (lambda: core.rd_gpu_is_capturing(null, null), "out"),
        (lambda: core.rd_gpu_run(null, 1, 0, 0, 0, null), "work"),
        (lambda: core.rd_gpu_adam_step(null, 1, null), "work"),
        (lambda: core.rd_gpu_pass_abort_on(null, null, null, 0, null), "abort"),
        (lambda: core.rd_gpu_recode(null, 1, null), "work"),
        (lambda: core.rd_gpu_kernels(null, 1), "text"),
        (lambda: core.rd_gpu_nccl(null, null, null), "version"),
    ]:
        assert f": {argument} is null" in refused(core, call())


def test_memory_of_others_is_neither_freed_nor_exported(core):
    foreign, fd = ctypes.create_string_buffer(64), ctypes.c_int()
    handle = ctypes.create_string_buffer(256)
    assert "not the start of memory from rd_gpu_alloc" in refused(core, core.rd_gpu_free(foreign))
    assert "not of rd_gpu_alloc" in refused(core, core.rd_gpu_export(foreign, handle, ctypes.byref(fd)))
    assert "not memory from rd_gpu_import" in refused(core, core.rd_gpu_unimport(foreign))


def test_a_bad_handle_is_refused_before_it_is_opened(core, handle_of):
    out = ctypes.c_void_p()
    handle = handle_of(bytes=4096, offset=4096)
    assert "offset 4096 in an allocation of 4096" in refused(
        core, core.rd_gpu_import(0, ctypes.byref(handle), -1, ctypes.byref(out))
    )
    handle = handle_of(bytes=4096, needs_fd=1)
    assert "needs the descriptor" in refused(core, core.rd_gpu_import(0, ctypes.byref(handle), -1, ctypes.byref(out)))


def test_bad_sizes_and_ways_to_share_are_named(core):
    out = ctypes.c_void_p()
    assert "0 bytes" in refused(core, core.rd_gpu_alloc(0, ctypes.c_size_t(0), 0, ctypes.byref(out)))
    assert "sharing 7" in refused(core, core.rd_gpu_alloc(0, ctypes.c_size_t(1), 7, ctypes.byref(out)))
    assert "bytes" in refused(core, core.rd_gpu_alloc(0, ctypes.c_size_t(-1), 0, ctypes.byref(out)))


def test_bad_work_is_refused_before_anything_is_launched(core):
    work = zeros_of_known_size(core, lambda w, n: core.rd_gpu_run(w, ctypes.c_size_t(n), FLOAT32, SUM_OP, SPIN, None))

    def run(element=FLOAT32, reduce=SUM_OP, executor=SPIN):
        return refused(core, core.rd_gpu_run(work, ctypes.c_size_t(len(work)), element, reduce, executor, None))

    assert "invalid value 0 for world" in run()
    assert "element 99" in run(element=99)
    assert "reduce 99" in run(reduce=99)
    assert "executor 9" in run(executor=9)
    adam = zeros_of_known_size(core, lambda w, n: core.rd_gpu_adam_step(w, ctypes.c_size_t(n), None))
    assert "invalid value 0 for world" in refused(core, core.rd_gpu_adam_step(adam, ctypes.c_size_t(len(adam)), None))
    codec = zeros_of_known_size(core, lambda w, n: core.rd_gpu_recode(w, ctypes.c_size_t(n), None))
    assert "invalid value 0 for wire" in refused(core, core.rd_gpu_recode(codec, ctypes.c_size_t(len(codec)), None))


def test_without_a_device_every_function_says_so(core, devices, handle_of):
    if devices:
        pytest.skip("there is a device")
    out, host = ctypes.c_void_p(), ctypes.c_void_p()
    page = ctypes.create_string_buffer(4096)
    one = ctypes.c_size_t(1)
    handle = handle_of(bytes=4096)
    calls = {
        "cudaGetDeviceProperties": lambda: core.rd_gpu_describe(0, ctypes.byref(Describe())),
        "cudaGetDevice": lambda: core.rd_gpu_alloc(0, one, 0, ctypes.byref(out)),
        "cudaSetDevice|cudaGetDevice": lambda: core.rd_gpu_import(0, ctypes.byref(handle), -1, ctypes.byref(out)),
        "cudaHostAlloc": lambda: core.rd_gpu_host_alloc(one, ctypes.byref(host), ctypes.byref(out)),
        "cudaFreeHost": lambda: core.rd_gpu_host_free(page),
        "cudaHostRegister": lambda: core.rd_gpu_host_map(page, ctypes.c_size_t(4096), ctypes.byref(out)),
        "cudaHostUnregister": lambda: core.rd_gpu_host_unmap(page),
        "cudaMemcpyAsync": lambda: core.rd_gpu_copy(page, page, one, None),
        "cudaLaunchHostFunc": lambda: core.rd_gpu_call(None, CALLBACK(lambda _: None), None),
        "cudaStreamIsCapturing": lambda: core.rd_gpu_is_capturing(None, page),
        "cudaFuncGetAttributes": lambda: core.rd_gpu_kernels(page, ctypes.c_size_t(4096)),
    }
    for named, call in calls.items():
        assert re.search(rf"^({named}).*\(\d+\)", refused(core, call())), said(core)
    assert out.value is None and host.value is None


# What ptxas said when the CUDA part was compiled: no kernel spills, all fit the registers of their launch bounds.

ROOT = Path(__file__).resolve().parents[3]
REGISTERS = 128  # 65,536 of a multiprocessor for one block of 512 threads
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+)'(.*?)Used (\d+) registers", re.DOTALL)
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


PTX, ELF = 1, 2  # the kinds of an image


def images_of(path: Path) -> set[tuple[int, str]]:
    """Kind and architecture of all device code in the library, by the headers of its fat binaries."""
    content = path.read_bytes()
    found = set()
    for start in re.finditer(re.escape(struct.pack("<IHH", 0xBA55ED50, 1, 16)), content):
        [size] = struct.unpack_from("<Q", content, start.end())
        at = start.start() + 16
        while at < start.start() + 16 + size:
            kind, header, payload, architecture = struct.unpack_from("<H2xIQ12xI", content, at)
            found.add((kind, f"sm_{architecture}"))
            at += header + payload
    return found


@pytest.fixture(scope="module")
def architectures() -> set[str]:
    """For which devices the library beside the extension was compiled."""
    record = json.loads(Path(ringdp.__file__).with_name("_built.json").read_text())
    return {f"sm_{number}" for number in record["cuda_architectures"]}


@pytest.fixture(scope="module")
def kernels(architectures) -> list[tuple[str, str, list[int], int]]:
    """Name, architecture, stack and spill bytes, registers of every kernel of the newest build for these devices."""
    builds = sorted((ROOT / "build").glob("cuda-*/device/cuda"), key=lambda folder: folder.stat().st_mtime)
    for build in reversed(builds):
        found = []
        for log in sorted(build.glob("*.log")):
            for name, architecture, said, registers in ENTRY.findall(log.read_text()):
                found.append((name, architecture, [int(n) for n in SPILLS.search(said).groups()], int(registers)))
        if found and {architecture for _, architecture, *_ in found} == architectures:
            return found
    assert not architectures, f"no build for {architectures} below build/"
    pytest.skip("the CUDA part was not compiled in this tree: no nvcc, or RINGDP_CUDA=off")


def test_every_kernel_is_compiled_for_every_architecture(kernels, architectures):
    names = {a: {name for name, other, *_ in kernels if other == a} for a in architectures}
    [of_each] = {frozenset(found) for found in names.values()}
    sources = {source.stem for source in (ROOT / "csrc/device/cuda").glob("*.cu")}
    kernels_of = {"poison": 2, "adam": 8, "codec": 8}  # one per world; two for each of four types of elements
    assert len(of_each) == sum(kernels_of.get(name, 16) for name in sources)  # plans: two per world


def test_it_holds_code_for_every_architecture_and_ptx_of_the_newest_for_later_ones(path, architectures):
    images = images_of(path)
    newest = max(architectures, key=lambda name: int(name.removeprefix("sm_")))
    assert {name for kind, name in images if kind == ELF} >= architectures
    assert {name for kind, name in images if kind == PTX} == {newest}


def test_no_kernel_spills(kernels):
    assert [(name, architecture) for name, architecture, spilled, _ in kernels if any(spilled)] == []


def test_every_kernel_fits_its_block(kernels):
    assert [(name, registers) for name, _, _, registers in kernels if registers > REGISTERS] == []


def test_the_pattern_sees_a_spill():
    said = (
        "Compiling entry function '_Zk' for 'sm_90'\nptxas info    : Function properties for _Zk\n"
        "    8 bytes stack frame, 16 bytes spill stores, 4 bytes spill loads\nptxas info    : Used 129 registers,"
    )
    [(name, architecture, between, registers)] = ENTRY.findall(said)
    assert (name, architecture, registers) == ("_Zk", "sm_90", "129")
    assert SPILLS.search(between).groups() == ("8", "16", "4")
