"""CUDA is served where the library finds a device: shown by a barrier for one, with libraries that only count."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
BARRIER = """
import torch, torch.distributed as dist
dist.init_process_group("ringdp", store=dist.HashStore(), rank=0, world_size=1)
options = dist.BarrierOptions()
options.device = torch.device("cuda", 0)
try:
    dist.group.WORLD._get_backend(torch.device("cuda")).barrier(options).wait()
    print("passed")
except RuntimeError as error:
    print(error)
"""


def library(folder: Path, devices: int) -> str:
    """A library with all functions of the C interface, which has this many devices and can do nothing."""
    names = re.findall(r'symbols\.find\("(\w+)"', (ROOT / "csrc/gpu/library.cc").read_text())
    abi = re.search(r"RD_GPU_ABI = (\d+)", (ROOT / "csrc/gpu/ringdp_gpu.h").read_text())
    special = {
        "rd_gpu_abi": f"int rd_gpu_abi(void) {{ return {abi[1]}; }}",
        "rd_gpu_count": f"int rd_gpu_count(int* count) {{ *count = {devices}; return 0; }}",
        "rd_gpu_error": 'const char* rd_gpu_error(void) { return "it can do nothing"; }',
    }
    text = [special.get(name, f"int {name}(void) {{ return 1; }}") for name in sorted({*names, *special})]
    source, built = folder / f"counts_{devices}.c", folder / f"counts_{devices}.so"
    source.write_text("\n".join(text))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(built), str(source)], check=True, timeout=60)
    return str(built)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("devices", "served"), [(0, False), (1, True)])
def test_cuda_is_served_where_the_library_finds_a_device(run_warm, tmp_path, devices, served):
    result = run_warm("-c", BARRIER, RINGDP_GPU_LIBRARY=library(tmp_path, devices))
    assert result.returncode == 0, result.stderr
    assert ("passed" in result.stdout) != served
