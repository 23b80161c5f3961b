"""The backend is found by its name alone, under torchrun and mp.spawn, in every spelling."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = str(Path(__file__).with_name("plain_script.py"))
SPELLINGS = [
    ("ringdp", "ringdp"),
    pytest.param("cpu:ringdp", "ringdp", marks=pytest.mark.long),
    pytest.param("cpu:ringdp,cuda:ringdp", "ringdp", marks=pytest.mark.long),
    pytest.param("cpu:gloo,cuda:ringdp", "torch", marks=pytest.mark.long),
]


@pytest.fixture(autouse=True)
def installed():
    """Without the entry point there is nothing to find."""
    if not any(point.name == "ringdp" for point in metadata.entry_points(group="torch.backends")):
        pytest.skip("ringdp is not installed here, so torch cannot find its entry point")


@pytest.mark.parametrize(("spelling", "over"), SPELLINGS)
def test_mp_spawn(run_python, tmp_path, spelling, over):
    result = run_python(SCRIPT, spelling, str(tmp_path / "store"))
    assert result.returncode == 0, result.stderr
    assert f"gradient [1.5, 1.5, 1.5] over {over}" in result.stdout


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(3, marks=pytest.mark.long)])
def test_torchrun(run_warm, world):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    result = run_warm(*launcher, SCRIPT, "ringdp")
    assert result.returncode == 0, result.stderr
    mean = sum(range(1, world + 1)) / world
    assert f"gradient {[mean] * 3} over ringdp" in result.stdout


@pytest.mark.long
def test_ranks_of_different_user_namespaces_use_tcp(run_python):
    """As in rootless containers that share the network: the kernel lets them pass no memory to each other."""
    alone = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine makes no user namespaces")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python", *alone]
    result = run_python(*launcher, sys.executable, SCRIPT, "ringdp", RINGDP_LOG="info")
    assert result.returncode == 0, result.stderr
    assert "gradient [1.5, 1.5, 1.5] over ringdp" in result.stdout
    assert "tcp: user namespaces differ" in result.stderr


@pytest.mark.long  # tests/python/test_register.py has it in one process
def test_autoload_can_be_switched_off(run_python, tmp_path):
    """Then torch does not know the name, and says so; `import torch` is fine."""
    result = run_python(SCRIPT, "ringdp", str(tmp_path / "store"), RINGDP_AUTOLOAD="0")
    assert result.returncode != 0
    assert "ringdp" in result.stderr
    assert run_python("import torch", RINGDP_AUTOLOAD="0").returncode == 0


@pytest.mark.long  # tests/python/backend has settings in ranks that are kept
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RINGDP_TRANSPORT", "pigeon"),
        ("RINGDP_ALGORITHM", "bubble"),
        ("RINGDP_SLOT_BYTES", "-1"),
        ("RINGDP_LOG", "loud"),
    ],
)
def test_a_bad_setting_is_refused_by_name(run_warm, tmp_path, variable, value):
    result = run_warm(SCRIPT, "ringdp", str(tmp_path / "store"), **{variable: value})
    assert result.returncode != 0
    assert f"invalid value '{value}' for" in result.stderr
    assert variable in result.stderr
