"""The extension against its typed face, and its small functions."""

from __future__ import annotations

import ast
import json
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
    for name in ("Options", "Backend", "Reduction", "Mean", "Reducer", "ShardLayout"):
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
    with pytest.raises(ValueError, match=r"RINGDP_TRANSPORT: 'pigeon' .*auto\|shm\|tcp"):
        _C.check_environment()


def test_plans_print_as_text_and_json() -> None:
    plan = json.loads(_C.plan_json("all_reduce", "ring", order="rotated", rank=1, world=4, count=4))
    assert plan["totals"]["rounds"] == 6 and plan["totals"]["bytes_sent"] == 24
    assert "6 rounds, sends 24 B" in _C.plan_text("all_reduce", "ring", order="rotated", rank=1, world=4, count=4)


@pytest.mark.parametrize(
    ("algorithm", "collective", "sent_by_rank_0"),
    [
        ("server", "all_reduce", 3 * 64),
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
    ("collective", "algorithm", "named"), [("all_reduce", "bubble", "bubble"), ("all_dance", "ring", "all_dance")]
)
def test_unknown_plans_are_refused_by_name(collective: str, algorithm: str, named: str) -> None:
    with pytest.raises(dist.DistBackendError, match=f"InvalidArgument: '{named}'"):
        _C.plan_text(collective, algorithm)
