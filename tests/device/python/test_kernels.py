"""What ptxas said when the CUDA part was compiled: no kernel spills, all fit the registers of their launch bounds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import ringdp

ROOT = Path(__file__).resolve().parents[3]
REGISTERS = 128  # 65,536 of a multiprocessor for one block of 512 threads
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+)'(.*?)Used (\d+) registers", re.DOTALL)
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


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
    for_any_world = {"poison"}
    # Else one per world; codec has two for each of four types of elements.
    assert len(of_each) == 8 * len(sources - for_any_world) + len(for_any_world)


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
