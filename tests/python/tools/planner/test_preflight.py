"""preflight() refuses before anything is allocated, and names what fits; the memory of this machine."""

from __future__ import annotations

import pytest
import ringdp
import torch
from ringdp.tools.planner import preflight
from ringdp.tools.planner.memory import widths
from ringdp.tools.planner.preflight import DoesNotFit
from torch import nn

WIDTH, LAYERS = 1 << 14, 32  # 8.6 G parameters


@pytest.fixture
def large():
    with torch.device("meta"):
        return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).bfloat16()


def asked(model, **arguments):
    given = {"device_bytes": "80GB", "ranks": 64, "master_dtype": torch.float32, **arguments}
    return ringdp.preflight(model, torch.optim.AdamW, torch.empty(1, WIDTH, dtype=torch.bfloat16), **given)


def test_what_does_not_fit_is_refused_with_what_does(large):
    with pytest.raises(DoesNotFit) as refusal:
        asked(large)
    sentence = str(refusal.value)
    assert sentence.startswith("preflight: stage 0 on 64 ranks needs 1")
    assert "a device has 80.00 GB" in sentence and "it fits with ZeRO stage 1 from " in sentence
    assert "stage 3 from 2 ranks" in sentence


def test_the_error_is_a_memory_error_and_nothing_was_allocated(large):
    with pytest.raises(MemoryError):
        asked(large)
    assert all(parameter.is_meta and parameter.grad is None for parameter in large.parameters())


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_ranks_it_names_fit_and_one_less_does_not(large, stage):
    found = asked(large, stage=3)
    fewest = int(found.fewest_ranks[stage])
    assert asked(large, stage=stage, ranks=fewest).fits
    with pytest.raises(DoesNotFit):
        asked(large, stage=stage, ranks=fewest - 1)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_parameters_gradients_and_state_are_the_formula(large, stage):
    from ringdp.tools.planner import formulas

    count = LAYERS * WIDTH**2
    held = asked(large, stage=3).by_stage[stage]
    expected = formulas.stage_bytes(count, 64, stage, *widths("bf16").three)
    total = held.parameters + held.gradients + held.state + held.master
    assert total == pytest.approx(expected, rel=1e-6)  # Adam counts steps in 4 bytes per tensor


def test_views_save_the_copy_of_gradients(large):
    copied, views = (asked(large, stage=3, gradient_as_bucket_view=flag).by_stage[0] for flag in (False, True))
    assert copied.buckets == copied.gradients and views.buckets == 0


def test_units_are_gathered_at_stage_3_only(large):
    by_stage = asked(large, stage=3).by_stage
    assert [by_stage[s].gathered for s in range(4)] == [0, 0, 0, 2 * 2 * WIDTH**2]


def test_a_small_model_fits_and_prints(capsys):
    found = ringdp.preflight(nn.Linear(8, 8), torch.optim.SGD, torch.zeros(2, 8), device_bytes=1e9, ranks=2)
    assert found.fits and found.fewest_ranks[0] == 1
    assert str(found).splitlines()[1].split()[0] == "stage" and len(str(found).splitlines()) == 6


def test_counts_may_be_given():
    class Looks(nn.Linear):
        def forward(self, x):
            return super().forward(x[: int(x.sum().item())])

    arguments = {"device_bytes": 1e9, "ranks": 1, "activation_bytes": 1000.0, "optimizer_bytes": 500.0}
    held = ringdp.preflight(Looks(8, 8), torch.optim.Adafactor, torch.zeros(2, 8), **arguments).by_stage[0]
    assert (held.activations, held.state) == (1000, 500)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"stage": 4}, "stage=4"), ({"ranks": 0}, "ranks=0"), ({"device_bytes": -1.0}, "device_bytes=-1")],
)
def test_arguments_that_make_no_sense(arguments, named):
    with pytest.raises(ValueError, match=named):
        ringdp.preflight(nn.Linear(8, 8), torch.optim.SGD, torch.zeros(2, 8), **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without CUDA")
def test_local_ranks_share_the_machine(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    whole = preflight.bytes_per_rank()
    with open("/proc/meminfo") as file:
        assert whole == pytest.approx(1024 * int(file.readline().split()[1]), rel=1e-3)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert preflight.bytes_per_rank() == whole // 4


def test_ranks_are_torchrun_s_or_one(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert preflight.world_size() == 1
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert preflight.world_size() == 6
