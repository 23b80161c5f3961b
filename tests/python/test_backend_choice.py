"""ringdp/backend_choice.py: RINGDP_AS carries programs that do not name ringdp, and changes nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from ringdp import backend_choice
from torch.distributed import distributed_c10d as c10d

SCRIPT = str(Path(__file__).with_name("choice_script.py"))
GLOO_LINE = "ringdp: RINGDP_AS=gloo: groups whose backend is gloo run over ringdp"
DEFAULT_LINE = "ringdp: RINGDP_AS=cpu-default: groups on the CPU for which no backend is named run over ringdp"


def long(way):
    return pytest.param(way, marks=pytest.mark.long)


@pytest.fixture
def run(run_warm):
    """What the script's rank 0 has printed, by the first word, and what was written to stderr."""

    def run(*ways, choice=None):
        result = run_warm(SCRIPT, "60", *ways, **({"RINGDP_AS": choice} if choice else {}))
        assert result.returncode == 0, result.stderr
        return dict(line.split(" ", 1) for line in result.stdout.splitlines()), result.stderr

    return run


@pytest.mark.parametrize(
    "way", ["gloo", "none", *(long(way) for way in ("mesh", "device", "options", "cpu:gloo,cuda:gloo"))]
)
def test_as_gloo_gives_the_same_losses_over_ringdp(run, way):
    without, quiet = run(way)
    chosen, said = run(way, choice="gloo")
    assert without["carried"] == "by torch, torch, torch"
    assert chosen["carried"] == "by ringdp True, ringdp True, ringdp True"
    assert chosen["losses"] == without["losses"]
    assert chosen["named"] == without["named"]  # a program that asks takes the same way as over gloo
    assert "ringdp" not in quiet
    assert said.count(GLOO_LINE) == 1


@pytest.mark.parametrize("way", ["none", long("device"), long("mesh")])
def test_cpu_default_leaves_gloo_to_who_names_it(run, way):
    chosen, said = run(way, choice="cpu-default")
    assert chosen["losses"] == run(way)[0]["losses"]
    assert chosen["carried"] == "by ringdp True, torch, ringdp True"
    assert chosen["named"].endswith("gloo ringdp")
    assert said.count(DEFAULT_LINE) == 1


def test_cpu_default_has_nothing_to_say_where_gloo_is_named(run):
    chosen, said = run("gloo", choice="cpu-default")
    assert chosen["carried"] == "by torch, torch, torch"
    assert "RINGDP_AS" not in said


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({"RINGDP_AS": "foo"}, "invalid value 'foo' for RINGDP_AS (expected one of: gloo, cpu-default)"),
        ({"RINGDP_AS": "GLOO"}, "invalid value 'GLOO' for RINGDP_AS (expected one of: gloo, cpu-default)"),
        ({"RINGDP_AS": "gloo", "RINGDP_AUTOLOAD": "0"}, "RINGDP_AS=gloo needs ringdp at `import torch`"),
    ],
)
def test_a_bad_value_is_an_error_of_the_first_group_on_every_rank(run_warm, variables, error):
    result = run_warm(SCRIPT, "60", "gloo", **variables)
    assert result.returncode == 1
    assert result.stderr.count(f"ValueError: {error}") == 2


def test_ranks_that_disagree_end_by_the_deadline(run_warm):
    result = run_warm(SCRIPT, "3", "gloo", "unset", RINGDP_AS="gloo")
    assert result.returncode == 1
    assert "rank 0: DistBackendError" in result.stderr
    assert "rank 1: " in result.stderr


@pytest.mark.parametrize(
    ("named", "gloo", "default"),
    [
        ("gloo", "ringdp-as-gloo", "gloo"),
        ("cpu:gloo,cuda:nccl", "cpu:ringdp-as-gloo,cuda:nccl", "cpu:gloo,cuda:nccl"),
        ("cuda:nccl,cpu:gloo", "cuda:nccl,cpu:ringdp-as-gloo", "cuda:nccl,cpu:gloo"),
        ("nccl", "nccl", "nccl"),
        ("ringdp", "ringdp", "ringdp"),
    ],
)
def test_which_name_is_made_in_place_of_which(named, gloo, default):
    assert backend_choice.carried_by(named, "gloo", c10d) == gloo
    assert backend_choice.carried_by(named, "cpu-default", c10d) == default


def test_a_device_other_than_the_cpu_keeps_its_default(monkeypatch):
    monkeypatch.setattr(c10d.BackendConfig, "get_device_backend_map", lambda self: {"cuda": "nccl"})
    assert backend_choice.carried_by("undefined", "gloo", c10d) == "undefined"
    assert backend_choice.carried_by("undefined", "cpu-default", c10d) == "undefined"


def test_a_torch_that_makes_groups_in_another_way_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(c10d, "_new_process_group_helper", lambda name: None)
    with pytest.raises(RuntimeError, match="makes process groups in another way"):
        backend_choice.install()
