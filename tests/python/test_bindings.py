"""The extension against its typed face, and its small functions."""

from __future__ import annotations

import ast
import json
import struct
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import ringdp
import torch.distributed as dist
from ringdp import _native

_C = _native.load()
STUB = Path(ringdp.__file__).with_name("_C.pyi")


def _public(names: Any) -> set[str]:
    return {n for n in names if not n.startswith("_")}


def test_stub_names_what_the_module_has() -> None:
    tree = ast.parse(STUB.read_text())
    declared = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert _public(declared) == _public(vars(_C))
    for name in ("Options", "Backend", "Reduction", "Mean", "Reducer", "ShardLayout", "StepRows", "StepJudge"):
        methods = {m.name for m in declared[name].body if isinstance(m, ast.FunctionDef)}
        assert _public(vars(getattr(_C, name))) <= methods
        assert all(hasattr(getattr(_C, name), m) for m in methods)


def test_built_for_is_what_runs() -> None:
    assert _C.built_for()["torch"] == _native.built_for()["torch"]


def test_the_cuda_part_is_described_or_missed_with_a_reason() -> None:
    report = _C.gpu_report()
    beside = Path(ringdp.__file__).with_name("libringdp_gpu.so")
    assert report["library"] == (str(beside) if beside.exists() else None)
    assert bool(report["devices"]) == (report["why_none"] is None) == bool(report["kernels"])
    assert report["library"] or "RINGDP_CUDA=on" in report["why_none"]


def test_another_file_can_be_named_as_the_cuda_part(run_python) -> None:
    code = "from ringdp import _native; print(_native.load().gpu_report())"
    result = run_python(code, RINGDP_GPU_LIBRARY="/nowhere/gpu.so")
    assert result.returncode == 0, result.stderr
    assert "'library': None" in result.stdout and "/nowhere/gpu.so" in result.stdout


def test_bad_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGDP_TRANSPORT", "pigeon")
    with pytest.raises(ValueError, match=r"RINGDP_TRANSPORT: invalid value 'pigeon' for transport .*auto, shm, tcp"):
        _C.check_environment()


def test_plans_print_as_text_and_json() -> None:
    plan = json.loads(_C.plan_json("all_reduce", "ring", order="rotated", rank=1, world=4, count=4))
    assert plan["totals"]["rounds"] == 6 and plan["totals"]["bytes_sent"] == 24
    assert "6 rounds, sends 24 B" in _C.plan_text("all_reduce", "ring", order="rotated", rank=1, world=4, count=4)


@pytest.mark.parametrize(
    ("algorithm", "collective", "sent_by_rank_0"),
    [
        ("server", "all_reduce", 3 * 64),
        ("exchange", "all_reduce", 3 * 64),
        ("tree", "all_reduce", 2 * 64),
        ("hierarchy", "all_reduce", 32),
        ("direct", "all_to_all", 3 * 64),
        ("arena", "gather", 0),
    ],
)
def test_every_algorithm_prints_its_bytes(algorithm: str, collective: str, sent_by_rank_0: int) -> None:
    plan = json.loads(_C.plan_json(collective, algorithm, world=4, count=16, hosts=[0, 2]))
    assert plan["algorithm"] == algorithm and plan["collective"] == collective
    assert plan["totals"]["bytes_sent"] == sent_by_rank_0


@pytest.mark.parametrize(
    ("asks", "algorithm", "folded"),
    [({}, "arena", 512), ({"one_shot_bytes": 0}, "arena", 128), ({"in_heaps": True}, "one pass", 128)],
)
def test_arena_plans_are_asked_for_by_their_limits(asks: dict[str, Any], algorithm: str, folded: int) -> None:
    plan = json.loads(_C.plan_json("all_reduce", "arena", world=4, count=128, **asks))
    steps = [step for channel in plan["channels"] for step in channel["steps"]]
    assert plan["algorithm"] == algorithm
    assert [step["bytes"] for step in steps if step["verb"] == "fold"] == [folded]


@pytest.mark.parametrize(
    ("collective", "algorithm", "named"), [("all_reduce", "bubble", "bubble"), ("all_dance", "ring", "all_dance")]
)
def test_unknown_plans_are_refused_by_name(collective: str, algorithm: str, named: str) -> None:
    with pytest.raises(dist.DistBackendError, match=f"InvalidArgument: .*'{named}'"):
        _C.plan_text(collective, algorithm)


@pytest.mark.parametrize(("multiprocessors", "ranks"), [(132, 1), (132, 2), (132, 8), (4, 8)])
def test_all_ranks_blocks_fit_on_one_device(multiprocessors: int, ranks: int) -> None:
    blocks = _C.device_blocks(multiprocessors, ranks)
    assert blocks >= 1 and (blocks == 1 or blocks * ranks <= multiprocessors)


def test_a_device_plan_comes_as_text_and_packed() -> None:
    plan = _C.device_plan("all_reduce", "direct", dtype="bfloat16", op="AVG", rank=1, world=4, count=4096)
    assert plan["text"].startswith("all_reduce direct bfloat16 AVG, rank 1 of 4: ")
    assert len(plan["packed"]) == plan["steps"] * _C.device_sizes()["Step"]
    assert plan["text"].count("\n") == plan["steps"]
    assert plan["input_bytes"] == plan["output_bytes"] == 8192
    assert plan["blocks"] == 1  # 128 packs each
    assert plan["read_bytes"] == plan["written_bytes"] == 8192  # a quarter of everybody's, for everybody


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"collective": "all_dance"}, "all_dance"),
        ({"algorithm": "bubble"}, "'bubble' is not an algorithm"),
        ({"dtype": "float31"}, "'float31' is not a dtype"),
        ({"op": "sum"}, "'sum' is not a reduce operation"),
        ({"count": 3}, "count=3 of float32"),
    ],
)
def test_a_device_plan_that_is_none_is_refused_by_name(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(dist.DistBackendError, match=named):
        _C.device_plan(**{"collective": "all_reduce", **asked})


def test_the_scalars_of_a_fused_step_are_those_of_the_formula() -> None:
    packed = _C.device_adam_scalars(0.1, 0.9, 0.99, 1e-8, 0.01, decoupled=True, number=2)
    assert len(packed) == _C.device_sizes()["AdamScalars"]
    keep, _, mean_weight, beta2, square_weight, correction, eps, rate = struct.unpack("8f", packed[:32])
    expected = [1 - 0.1 * 0.01, 1 - 0.9, 0.99, 1 - 0.99, (1 - 0.99**2) ** 0.5, 1e-8, -0.1 / (1 - 0.9**2)]
    assert [keep, mean_weight, beta2, square_weight, correction, eps, rate] == pytest.approx(expected, rel=1e-6)
