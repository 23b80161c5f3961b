"""Peers: what cannot run is refused with a reason, what is not installed is named with the way out."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from race.cell import Cell
from race.peers import PEERS, commands, why_missing
from race.session import refusal

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MPIS = ("openmpi", "mpich", "intelmpi")


def installer():
    """benchmarks/peers.py, which shares its name with race/peers.py."""
    spec = importlib.util.spec_from_file_location("install_peers", BENCHMARKS / "peers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", MPIS)
def test_mpi_sums_no_bfloat16_but_moves_it(name):
    assert "bfloat16" in refusal(name, Cell("all_reduce", "bfloat16", 2, 64), cores=2)
    assert not refusal(name, Cell("all_gather", "bfloat16", 2, 64), cores=2)
    assert not refusal(name, Cell("all_reduce", "float32", 8, 64), cores=2)


def test_deepspeed_needs_a_core_per_rank():
    assert "4 on 2 cores" in refusal("deepspeed", Cell("all_reduce", "float32", 4, 64), cores=2)
    assert refusal("deepspeed", Cell("broadcast", "float32", 2, 64), cores=2)
    assert not refusal("deepspeed", Cell("all_reduce", "bfloat16", 2, 64), cores=2)


@pytest.mark.parametrize("name", PEERS)
def test_what_is_not_installed_is_named_with_the_way_out(name, tmp_path):
    assert f"peers.py {name}" in why_missing(PEERS[name], tmp_path)


@pytest.mark.parametrize("name", MPIS)
def test_one_launcher_starts_all_ranks(name, tmp_path):
    lines, launch = commands(PEERS[name], tmp_path, 4, 2, ["folder", "1", name])
    assert len(lines) == 1
    assert lines[0][0] == str(tmp_path / "bin/mpiexec")
    assert lines[0][lines[0].index("-n") + 1] == "4"
    assert lines[0][-5:] == ["-m", "race.mpi_rank", "folder", "1", name]
    assert "mpiexec" in launch.settings


def test_deepspeed_ranks_are_started_one_by_one(tmp_path):
    lines, _ = commands(PEERS["deepspeed"], tmp_path, 2, 2, ["folder"])
    assert [line[-1] for line in lines] == ["0", "1"]


def test_requirements_say_what_every_peer_is_made_of():
    module = installer()
    known = module.packages(module.REQUIREMENTS.read_text())
    assert set(known) == {*PEERS, "simgrid"}
    assert all(known.values())
