"""ringdp/planner/device_memory.py: of this machine and of torchrun's variables."""

import pytest

torch = pytest.importorskip("torch")
from ringdp.planner import device_memory


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without CUDA")
def test_local_ranks_share_the_machine(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    whole = device_memory.bytes_per_rank()
    with open("/proc/meminfo") as file:
        assert whole == pytest.approx(1024 * int(file.readline().split()[1]), rel=1e-3)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert device_memory.bytes_per_rank() == whole // 4


def test_ranks_are_torchrun_s_or_one(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert device_memory.ranks() == 1
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert device_memory.ranks() == 6
