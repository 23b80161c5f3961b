"""`ringdp plan`: kinds from the catalogue, input files, JSON, one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ringdp.cli import main
from ringdp.tools.planner.catalog import KINDS
from ringdp.tools.planner.measured import KINDS as MEASURED

STEP = ["--params", "7B", "--ranks", "64", "--seq", "4096", "--bandwidth", "100Gb/s", "--peak-tflops", "h100"]
HELP_LINES, HELP_WIDTH = 40, 100


def answered(capsys, *arguments: str) -> dict:
    assert main.main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kind", [k for k in KINDS.values() if k not in MEASURED], ids=lambda kind: kind.name)
def test_the_example_of_every_kind_runs(kind, capsys):
    assert answered(capsys, *kind.example.split())["kind"] == kind.name
    assert main.main(["plan", *kind.example.split()]) == 0
    assert capsys.readouterr().out.splitlines()[0] == kind.name


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_help_of_every_kind_fits_a_screen(kind, capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(["plan", kind.name, "--help"])
    assert stop.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= HELP_LINES and max(map(len, lines)) <= HELP_WIDTH
    assert f"example: ringdp plan {kind.example}" in " ".join(" ".join(lines).split())
    for entry in kind.inputs:
        assert any(line.split()[:1] == [entry.option] for line in lines)


def test_json_names_units_and_sources(capsys):
    report = answered(capsys, "step", *STEP, "--micro-batch", "1")
    assert list(report["results"]) == [figure["figure"] for figure in report["figures"]]
    assert all(figure["unit"] or figure["figure"] == "whole_sequences" for figure in report["figures"])
    assert ["bandwidth", "100Gb/s"] in report["inputs"]


def test_bits_and_bytes_differ_by_eight(capsys):
    in_bits = answered(capsys, "step", *STEP, "--micro-batch", "1")["results"]["comm_seconds"]
    swapped = [word.replace("Gb/s", "GB/s") for word in STEP]
    in_bytes = answered(capsys, "step", *swapped, "--micro-batch", "1")["results"]["comm_seconds"]
    assert in_bits == pytest.approx(8 * in_bytes)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["step", *STEP], "either --micro-batch"),
        (["step", *STEP, "--micro-batch", "1", "--global-tokens", "4M"], "either --micro-batch"),
        (["wall", "--global-tokens", "1M", "--bandwidth", "400", "--peak-tflops", "989"], "400GB/s"),
        (["lr", "--base-lr", "3e-4"], "lr needs --ranks, --total-steps; for example: ringdp plan lr"),
        (["lr", "--base-lr", "", "--ranks", "2", "--total-steps", "9"], "--base-lr: a value is needed"),
        (["fit", "--params", "7B", "--device-gb", "-3"], "'-3' must be above 0"),
        (["comm", "--params", "1e308", "--ranks", "8"], "'1e308' must be from 1e-30 to 1e+30"),
        (["step", *STEP, "--micro-batch", "1e300"], "'1e300' must be from"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["--ranks", "8", "lr"], "options go after the kind"),
        (["--calibrate", "lr"], "a question of its own"),
        (["--calibrate", "--ranks", "1"], "at least 2 ranks"),
        (["--check", "--seq", "9"], "check has no input 'seq'"),
        (["--find-micro-batch"], "needs --device-gb"),
        (["predict", "--calibration", "/no/such.json"], "make one by ringdp plan --calibrate"),
        (["--file", "/no/such/plan.toml"], "No such file"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, named, refusal):
    assert named in refusal("plan", *arguments)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "plan.json"
    tables = {"lr": {"base_lr": 3e-4, "ranks": 8, "total_steps": "20K"}, "fit": {"params": "7B", "device-gb": 24}}
    path.write_text(json.dumps(tables))
    return path


def test_a_file_answers_all_its_kinds(file, capsys):
    reports = answered(capsys, "--file", str(file))
    assert [report["kind"] for report in reports] == ["lr", "fit"]
    assert reports[0]["results"]["warmup_steps"] == 1000


def test_the_command_line_outranks_the_file(file, capsys):
    report = answered(capsys, "lr", "--file", str(file), "--ranks", "16")
    assert report["results"]["scaled_lr"] == pytest.approx(16 * 3e-4)


def test_the_largest_numbers_give_finite_ones(capsys):
    most = "1e30"
    shape = [word for name in ("micro-batch", "seq", "hidden", "layers", "heads") for word in (f"--{name}", most)]
    slow = ["--bandwidth", "1e-30B/s", "--peak-tflops", "1e-30", "--mfu", "1e-30"]
    for arguments in (
        ["memory", "--params", most, "--ranks", most, *shape],
        ["step", "--params", most, "--ranks", most, "--micro-batch", most, "--seq", most, *slow],
        ["comm", "--params", most, "--ranks", most, "--bandwidth", "1e-30B/s"],
        ["batch", "--global-tokens", most, "--seq", "1", "--micro-batch", most, "--ranks", most],
    ):
        assert main.main(["plan", *arguments, "--json"]) == 0
        assert "Infinity" not in (text := capsys.readouterr().out) and "NaN" not in text
        assert main.main(["plan", *arguments]) == 0


def test_a_kind_that_the_file_lacks_is_named(file, refusal):
    assert "has no table [wall]; it has lr, fit" in refusal("plan", "wall", "--file", str(file))


def test_without_a_kind_it_is_the_overview(capsys):
    report = answered(capsys, "--ranks", "8", "--model", "gpt2")
    assert report["kind"] == "overview" and len(report["sections"]) == 7


def test_planning_needs_no_torch(run_python):
    code = "import sys; from ringdp.cli import main; main.main(['plan']); assert 'torch' not in sys.modules"
    result = run_python(code)
    assert result.returncode == 0, result.stderr
