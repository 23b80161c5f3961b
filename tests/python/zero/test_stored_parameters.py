"""Float32 masters: kept by who has them, made from the parameters by who needs them, left out with a word by others."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import ringdp
import torch
from ranks import HERE
from ringdp.checkpoint import CheckpointError
from ringdp.zero.optimizer import ZeroOptimizer
from ringdp.zero.stored_parameters import StoredParameters
from torch import nn
from zero_rig import ADAMW, model, same

checkpoint = ringdp.checkpoint


def of_16_bits(masters: bool | None) -> tuple[nn.Module, Any]:
    """A bfloat16 model; masters None: with torch's optimizer."""
    module = model(torch.bfloat16)
    if masters is None:
        return module, torch.optim.AdamW(module.parameters(), **ADAMW)
    dtype = torch.float32 if masters else None
    return module, ZeroOptimizer(module.parameters(), torch.optim.AdamW, master_dtype=dtype, **ADAMW)


def step(module: nn.Module, optimizer: Any, gradient: float) -> None:
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()


def save(folder: str, masters: bool | None) -> None:
    module, optimizer = of_16_bits(masters)
    step(module, optimizer, 0.3)
    checkpoint.save(folder, module, optimizer)


def go_on(folder: str, masters: bool | None) -> list[str]:
    """On a rank: loads, saves to "loaded", steps and saves to "stepped"; the warnings."""
    module, optimizer = of_16_bits(masters)
    step(module, optimizer, -1.0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        checkpoint.load(folder, module, optimizer)
    checkpoint.save(f"{folder}/loaded", module, optimizer)
    step(module, optimizer, 0.2)
    checkpoint.save(f"{folder}/stepped", module, optimizer)
    return [str(warning.message) for warning in said if "ringdp" in str(warning.message)]


def assert_alike(found: dict[str, dict[str, torch.Tensor]], expected: dict[str, dict[str, torch.Tensor]]) -> None:
    assert found.keys() == expected.keys()
    for kind, tensors in expected.items():
        assert found[kind].keys() == tensors.keys()
        assert [name for name in tensors if not same(found[kind][name], tensors[name])] == [], kind


def test_masters_travel_to_another_number_of_ranks(trio, pair, tmp_path):
    trio.run(save, str(tmp_path), True)
    saved = checkpoint.read(tmp_path).tensors
    assert all(master.dtype == torch.float32 for master in saved["master"].values())
    assert not all(same(master, saved["parameter"][name].float()) for name, master in saved["master"].items())
    assert pair.run(go_on, str(tmp_path), True) == [[], []]
    assert_alike(checkpoint.read(tmp_path / "loaded").tensors, saved)


def test_without_saved_masters_they_are_the_parameters(pair, tmp_path):
    save(str(tmp_path), None)
    saved = checkpoint.read(tmp_path).tensors
    assert pair.run(go_on, str(tmp_path), True) == [[], []]
    widened = {kind: {name: t.float() for name, t in tensors.items()} for kind, tensors in saved.items()}
    expected = {**widened, "parameter": saved["parameter"], "master": widened["parameter"]}
    assert_alike(checkpoint.read(tmp_path / "loaded").tensors, expected)


@pytest.mark.parametrize("masters", [False, None])
def test_who_has_no_masters_goes_on_from_the_parameters_and_is_told(pair, tmp_path, masters):
    pair.run(save, str(tmp_path), True)
    saved = checkpoint.read(tmp_path).tensors
    told = pair.run(go_on, str(tmp_path), masters) if masters is not None else [go_on(str(tmp_path), None)]
    assert all("float32 masters of 6 parameters" in warning and "master_dtype" in warning for (warning,) in told)
    rounded = {kind: {n: t.bfloat16() for n, t in saved[kind].items()} for kind in ("exp_avg", "exp_avg_sq")}
    kept = {kind: saved[kind] for kind in ("parameter", "step")}
    assert_alike(checkpoint.read(tmp_path / "loaded").tensors, {**kept, **rounded})
    assert checkpoint.read(tmp_path / "stepped").tensors["step"]["0.weight"] == 2


def replaced() -> tuple[bool, bool]:
    """On a rank: what users put into .data, or write to a 16-bit parameter, is what is offered."""
    module = nn.Linear(70, 60, dtype=torch.bfloat16)
    optimizer = ZeroOptimizer(module.parameters(), torch.optim.SGD, lr=0.1, master_dtype=torch.float32)
    module.weight.data = torch.full_like(module.weight, 3.0)
    names = {parameter: name for name, parameter in module.named_parameters()}
    pieces = list(StoredParameters(optimizer._flats, names).pieces())
    offered = [piece.tensor.float().unique().tolist() for piece in pieces if piece.name == "weight"]
    return all(values == [3.0] for values in offered), len(offered) == 2 * bool(HERE.rank < 2)


def test_values_that_were_put_elsewhere_are_offered(pair):
    assert pair.run(replaced) == [(True, True)] * 2


def half_a_model() -> str:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = ZeroOptimizer(module.parameters(), torch.optim.SGD, lr=0.1)
    try:
        StoredParameters(optimizer._flats, {p: n for n, p in module[0].named_parameters()})
    except CheckpointError as error:
        return str(error)
    return ""


def test_a_parameter_outside_the_model_is_named(pair):
    assert all("that the optimizer shards is not in the model" in said for said in pair.run(half_a_model))


def misfit(width: int) -> list[str]:
    """What a model of another width is told, and one with another parameter."""
    said = []
    for other in (nn.Linear(4, width), nn.Sequential(nn.Linear(4, 4))):
        optimizer = ZeroOptimizer(other.parameters(), torch.optim.SGD, lr=0.1)
        holder = StoredParameters(optimizer._flats, {p: n for n, p in other.named_parameters()})
        specs = [piece.stretch.spec for piece in checkpoint.module.ModuleHolder(nn.Linear(4, 4)).pieces()]
        try:
            list(holder.wants(specs, {}))
        except CheckpointError as error:
            said.append(str(error))
    return said


def test_what_does_not_fit_is_named(pair):
    for shape, name in pair.run(misfit, 5):
        assert "[5]" in shape and "[4]" in shape and "bias" in shape
        assert "lacks parameter/0.bias" in name
