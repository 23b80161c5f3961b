"""Trainers with their usual features, each an optional test: over ringdp they have gloo's numbers, in all digits.

The programs are what a user writes. Each runs as it is, which is over gloo; with its trainer's line of README.md; and
with RINGDP_AS=gloo instead.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ringdp.tools.pages import run_file

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
README = (HERE.parents[1] / "README.md").read_text()
PACKAGES = {"geometric": "torch_geometric"}  # of programs with another name
LAUNCH_S = 600
LINE = "ringdp: RINGDP_AS=gloo: groups whose backend is gloo run over ringdp"
Found = dict[str, dict[str, Any]]


def needs(program: str) -> None:
    package = PACKAGES.get(program, program)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.fixture
def ranks_of(run_warm, tmp_path) -> Callable[..., list[Found]]:
    """ranks_of("lightning", "none", "line"): on each rank what came out and what carried it, by the way."""

    def run(program: str, *ways: str) -> list[Found]:
        needs(program)
        script = str(HERE / "ways_script.py")
        result = run_warm(script, f"{program}_program", str(tmp_path), *ways, CUDA_VISIBLE_DEVICES="")
        assert result.returncode == 0, result.stdout + result.stderr
        return [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]

    return run


def assert_same(found: Found, first: str, *others: str) -> None:
    """To the bit, by the parts of the result."""
    for way in others:
        ours, expected = found[way]["result"], found[first]["result"]
        assert [name for name in {**expected, **ours} if ours.get(name) != expected.get(name)] == [], way


def record(folder: Path) -> dict[str, Any]:
    """The history of the run.json, as `ringdp report` reads it."""
    return run_file.read(folder / "run.json")["history"]


def check_lightning(found: list[Found], folder: Path) -> None:
    """What RunLogCallback and RingdpStrategy have left: the second Trainer has gone on with the first one's record."""
    mine, other = (rank["stage-2-observed"]["result"]["losses"] for rank in found)
    means = [sum(pair) / 2 for pair in zip(mine, other, strict=True)]
    epochs = [means[begin : begin + 10] for begin in (0, 10, 20)]  # of ten micro-batches, of which three make a step
    steps = [sum(epoch[begin : begin + 3]) / 3 for epoch in epochs for begin in (0, 3, 6, 9)]
    history = record(folder / "stage-2-observed")
    assert history["losses"] == pytest.approx(steps)
    assert history["validation"][-1] == [12, found[0]["stage-2-observed"]["result"]["logged"]["val_loss"]]
    assert [step for step, _ in history["validation"]] == [4, 8, 12]
    assert "ringdp/collectives_per_s" in found[0]["stage-2-observed"]["result"]["to-3"].splitlines()[0]
    # It clips by ringdp's norm, whose last bit is another one than that of torch's.
    assert mine == pytest.approx(found[0]["none"]["result"]["losses"])


def check_accelerate(found: list[Found], folder: Path) -> None:
    for rank in found:
        assert_same(rank, "none", "observed")
    last = [rank["none"]["result"]["losses"][1][-1] for rank in found]
    losses = record(folder / "observed")["losses"]
    assert len(losses) == 8 and losses[-1] == pytest.approx(sum(last) / 2)


def check_transformers(found: list[Found], folder: Path) -> None:
    for rank in found:
        assert_same(rank, "none", "observed")
    logged = found[0]["none"]["result"]["losses"]
    history = record(folder / "observed")
    assert history["losses"] == pytest.approx([entry["loss"] for entry in logged if "loss" in entry])
    evaluated = [[entry["step"], entry["eval_loss"]] for entry in logged if "eval_loss" in entry]
    assert history["validation"] == evaluated and len(evaluated) == 2


CHECKS = {
    "lightning": ("stage-2-observed", check_lightning),
    "accelerate": ("observed", check_accelerate),
    "transformers": ("observed", check_transformers),
}


@pytest.mark.parametrize(
    "program", ["accelerate", *(pytest.param(name, marks=pytest.mark.long) for name in ("lightning", "transformers"))]
)
def test_a_trainer_has_gloos_numbers_and_its_run_is_recorded(ranks_of, tmp_path, program):
    way, check = CHECKS[program]
    found = ranks_of(program, "none", "line", way, "as-gloo")
    for rank in found:
        assert {name: of["carrier"] for name, of in rank.items()} == {
            "none": "torch",
            "line": "ringdp",
            way: "ringdp",
            "as-gloo": "ringdp",
        }
        assert_same(rank, "none", "line", "as-gloo")
    check(found, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("program", ["geometric", "monai"])
def test_loaders_feed_stock_ddp_as_over_gloo(ranks_of, program):
    found = ranks_of(program, "none", "line", "as-gloo")
    for rank in found:
        assert [of["carrier"] for of in rank.values()] == ["torch", "ringdp", "ringdp"]
        assert_same(rank, "none", "line", "as-gloo")
    assert found[0]["none"]["result"]["losses"] != found[1]["none"]["result"]["losses"], "ranks have different samples"


@pytest.mark.long
def test_lightning_s_strategy_has_the_same_bits_at_every_stage(ranks_of):
    unclipped = ("none-unclipped", "stage-0-unclipped", "stage-1-unclipped", "stage-3-unclipped")
    for rank in ranks_of("lightning", *unclipped, *(f"stage-{stage}" for stage in range(4))):
        assert_same(rank, *unclipped)
        assert_same(rank, *(f"stage-{stage}" for stage in range(4)))


@pytest.mark.long
@pytest.mark.parametrize("program", CHECKS)
def test_figures_reach_tensorboard(ranks_of, tmp_path, program):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    way = f"{CHECKS[program][0]}-tensorboard"
    ranks_of(program, way)
    drawn: set[str] = set()
    for file in (tmp_path / way).rglob("*tfevents*"):
        events = EventAccumulator(str(file)).Reload()
        drawn |= set(events.Tags()["scalars"])
    prefix = "train/" if program == "transformers" else ""
    assert {f"{prefix}ringdp/{name}" for name in ("collectives_per_s", "late/rank_0", "late/rank_1")} <= drawn


@pytest.mark.long
def test_figures_reach_wandb_offline(ranks_of, tmp_path):
    pytest.importorskip("wandb")
    ranks_of("lightning", "stage-0-observed-wandb")
    (file,) = (tmp_path / "stage-0-observed-wandb").rglob("run-*.wandb")
    assert b"ringdp/late/rank_1" in file.read_bytes()


@pytest.fixture
def result_of(tmp_path) -> Callable[..., tuple[dict[str, Any], str]]:
    """result_of(launcher, program, way, NAME=value): result.json of a program started by a launcher; its output."""

    def run(launcher: list[str], program: str, way: str = "", **variables: str) -> tuple[dict[str, Any], str]:
        needs(program)
        folder = tmp_path / f"{way}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        command = [sys.executable, *launcher, str(PROGRAMS / f"{program}_program.py"), str(folder), *way.split()]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LAUNCH_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((folder / "result.json").read_text()), done.stdout + done.stderr

    return run


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.mark.long
@pytest.mark.parametrize("program", [*CHECKS, "geometric", "monai"])
def test_a_launched_program_needs_no_line(result_of, program):
    over_gloo, _ = result_of(TORCHRUN, program)
    chosen, said = result_of(TORCHRUN, program, RINGDP_AS="gloo")
    assert chosen == over_gloo
    assert said.count(LINE) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "launcher"), [("deepspeed", ["-m", "deepspeed.launcher.runner", "--num_accelerators=2"]), ("ray", [])]
)
def test_launchers_of_their_own(result_of, program, launcher):
    results = [
        result_of(launcher, program, way, RAY_USAGE_STATS_ENABLED="0", **variables)[0]
        for way, variables in (("", {}), ("line", {}), ("", {"RINGDP_AS": "gloo"}))
    ]
    carriers = [result.pop("carriers") for result in results]
    assert [set(names) for names in carriers] == [{"torch"}, {"ringdp"}, {"ringdp"}]
    assert results[1:] == results[:1] * 2


ROWS = {
    "Lightning": ["lightning"],
    "Accelerate": ["accelerate", "transformers"],
    "Ray": ["ray"],
    "DeepSpeed": ["deepspeed"],
    "PyTorch Geometric": ["geometric", "monai"],
}


@pytest.mark.parametrize(("trainer", "programs"), ROWS.items())
def test_the_line_in_the_readme_is_the_one_that_is_tested(trainer, programs):
    (row,) = [row for row in README.splitlines() if row.startswith("|") and trainer in row.split("|")[1]]
    code = re.findall(r"`([^`]+)`", row.split("|")[2])[0]
    for program in programs:
        assert code in (PROGRAMS / f"{program}_program.py").read_text()
