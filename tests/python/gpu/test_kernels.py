"""What ptxas said when the CUDA part was compiled: no kernel spills, all fit the registers of their launch bounds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
REGISTERS = 128  # 65,536 of a multiprocessor for one block of 512 threads
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+)'(.*?)Used (\d+) registers", re.DOTALL)
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
ARCHITECTURES = {"sm_80", "sm_90", "sm_100"}


def logs() -> list[Path]:
    """The logs beside the objects of the newest build."""
    builds = sorted((ROOT / "build").glob("cuda-*/gpu/cuda"), key=lambda folder: folder.stat().st_mtime)
    return sorted(builds[-1].glob("*.log")) if builds else []


@pytest.fixture(scope="module")
def kernels() -> list[tuple[str, str, list[int], int]]:
    """Name, architecture, stack and spill bytes, registers of every compiled kernel."""
    found = []
    for log in logs():
        for name, architecture, said, registers in ENTRY.findall(log.read_text()):
            found.append((name, architecture, [int(n) for n in SPILLS.search(said).groups()], int(registers)))
    if not found:
        pytest.skip("the CUDA part was not compiled in this tree: no nvcc, or RINGDP_CUDA=off")
    return found


def test_every_kernel_is_compiled_for_every_architecture(kernels):
    by_architecture = {a: {name for name, other, *_ in kernels if other == a} for a in ARCHITECTURES}
    assert {architecture for _, architecture, *_ in kernels} == ARCHITECTURES
    assert by_architecture["sm_80"] == by_architecture["sm_90"] == by_architecture["sm_100"]
    sources = {source.stem for source in (ROOT / "csrc/gpu/cuda").glob("*.cu")}
    for_any_world = {"poison"}
    # Else one per world; codec has two for each of four types of elements.
    assert len(by_architecture["sm_90"]) == 8 * len(sources - for_any_world) + len(for_any_world)


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
