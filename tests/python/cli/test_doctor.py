"""`ringdp doctor`: a clean job has no finding, planted faults are named, wrong input is one line."""

from __future__ import annotations

import json
import sys
from importlib import metadata

import pytest
import warm_torchrun
from planted import ARGUMENTS, script
from ringdp.cli import main

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
WARM = [sys.executable, warm_torchrun.__file__, "2"]
CLEAN_RUNS = [(wrapper, backend) for wrapper in ("stock", "ringdp") for backend in ("ringdp", "gloo")]
RULE = ("--base-lr", "3e-4", "--base-batch", "8")  # the example's own rate and global batch
ALONE = [
    ("loader sleeps", "stock", "straggler"),
    ("workers sleep", "ringdp", "straggler"),
    ("backward sleeps", "ringdp", "straggler"),
    ("threads", "stock", "threads"),
    ("pinned", "stock", "pinning"),
    ("no set_epoch", "ringdp", "stale epoch"),
    ("plain loader", "stock", "duplicates"),
    ("no overlap", "ringdp", "overlap"),
    ("one bucket", "stock", "overlap"),
    ("partial layer", "stock", "partial layer"),
    ("noisy kernel", "stock", "kernels"),
    ("group order", "stock", "group order"),
    ("same dropout", "stock", "dropout"),
    ("odd buffer", "stock", "failed"),
    ("killed", "stock", "failed"),
    ("over tcp", "stock", "topology"),
]


@pytest.fixture
def examined(run_warm, tmp_path):
    """examined(changes, wrapper, backend, *options): the diagnosis of a job of two ranks."""
    if "ringdp" not in metadata.entry_points(group="torch.backends").names:
        pytest.skip("ringdp is not installed here, so torch cannot find its entry point")

    def run(changes, wrapper="stock", backend="ringdp", *options, launcher=WARM):
        train = script(tmp_path, *changes, wrapper=wrapper)
        job = [*launcher, str(train), "--backend", backend, *ARGUMENTS]
        result = run_warm("-m", "ringdp", "doctor", "--json", *options, "--", *job, OMP_NUM_THREADS="1")
        assert result.returncode in (0, 1), result.stderr
        report = json.loads(result.stdout)
        assert result.returncode == bool(report["findings"])
        return report

    return run


def checks(report):
    return {finding["check"] for finding in report["findings"]}


def of_the_job(report):
    """Not those of time: on a busy machine one rank does wait for another (checks/test_performance.py)."""
    return [finding for finding in report["findings"] if finding["check"] not in ("straggler", "overlap")]


def test_a_clean_job_has_no_finding(examined):
    report = examined([], "stock", "ringdp", *RULE)
    assert of_the_job(report) == []
    assert report["world"] == 2 and report["steps"] >= 30


def test_faults_that_keep_a_job_running_are_all_named(examined):
    faults = ["same dropout", "loader sleeps", "partial layer", "noisy kernel"]
    # So many steps that a pause of the other rank, on a busy machine, does not count for much.
    report = examined(faults, "stock", "ringdp", "--base-lr", "3e-4", "--base-batch", "2", "--steps", "40")
    assert {"dropout", "straggler", "partial layer", "kernels", "learning rate"} <= checks(report)
    (slow,) = [finding for finding in report["findings"] if finding["check"] == "straggler"]
    assert (slow["ranks"], slow["numbers"]["where"]) == ([1], "in its data loader")


@pytest.mark.long
def test_a_mis_sized_buffer_is_named_with_ringdp_s_error(examined):
    report = examined(["odd buffer"], "ringdp")
    (failed,) = [finding for finding in report["findings"] if finding["check"] == "failed"]
    assert "Mismatch" in failed["seen"]


@pytest.mark.long
@pytest.mark.parametrize(("wrapper", "backend"), CLEAN_RUNS)
@pytest.mark.parametrize("changes", [[], ["own dropout"], []])
def test_clean_jobs_have_no_finding(examined, wrapper, backend, changes):
    assert of_the_job(examined(changes, wrapper, backend, *RULE, launcher=TORCHRUN)) == []


@pytest.mark.long
@pytest.mark.parametrize(("fault", "wrapper", "check"), ALONE)
def test_each_fault_is_named(examined, fault, wrapper, check):
    assert check in checks(examined([fault], wrapper))


@pytest.mark.long
def test_a_job_that_hangs_is_ended_and_its_line_named(examined):
    report = examined(["hang"], "stock", "gloo", "--timeout", "5")
    (found,) = [finding for finding in report["findings"] if finding["check"] == "hang"]
    assert found["seen"].startswith("rank 1 has not called for 5 s (after 20 steps, at train.py, line ")
    assert "rank 0 waits for it (after 20 steps in " in found["seen"]


SPAWNED = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def main(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        dist.barrier()
        if rank == 1 and step == 3:
            HOW

if __name__ == "__main__":
    mp.spawn(main, (sys.argv[1],), 2)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise ValueError('no such sample')", "no such sample"),
        ("os._exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), 9)", "signal SIGKILL"),
    ],
)
def test_a_spawned_rank_that_dies_is_a_finding(run_warm, tmp_path, how, said):
    (tmp_path / "train.py").write_text(SPAWNED.replace("HOW", how))
    job = [sys.executable, str(tmp_path / "train.py"), str(tmp_path)]
    result = run_warm("-m", "ringdp", "doctor", "--json", "--", *job, OMP_NUM_THREADS="1")
    assert result.returncode == 1, result.stderr
    (failed,) = [finding for finding in json.loads(result.stdout)["findings"] if finding["check"] == "failed"]
    assert failed["numbers"]["steps"] >= 4 and said in result.stderr


def test_a_job_that_is_not_watched_shows_its_output(capsys):
    assert main.main(["doctor", "--", "sh", "-c", "echo no such data; exit 1"]) == 2
    error = capsys.readouterr().err
    assert "no such data" in error and "TORCH_DEVICE_BACKEND_AUTOLOAD" in error
    assert main.main(["doctor", "--", "sh", "-c", 'touch "${RINGDP_ATTACH#doctor:}/attached"']) == 2
    assert "no rank has drawn from a DataLoader" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no command: ringdp doctor -- torchrun"),
        (["train.py"], "'train.py': put -- before"),
        (["--base-lr", "0.1", "--", "true"], "--base-lr and --base-batch belong together"),
        (["--", "/no/such/command"], "/no/such/command"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(arguments, said, capsys):
    assert main.main(["doctor", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


def test_old_records_are_not_mixed_with_new_ones(tmp_path, capsys):
    (tmp_path / "rank0.jsonl").write_text("{}\n")
    assert main.main(["doctor", "--records", str(tmp_path), "--", "true"]) == 2
    assert "holds the records of an earlier job" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--steps", "0"), ("--base-lr", "nan"), ("--timeout", "soon")])
def test_numbers_are_checked(option, value, capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(["doctor", option, value, "--", "true"])
    assert stop.value.code == 2
    assert f"invalid value '{value}'" in capsys.readouterr().err


def test_help_fits_one_screen_with_an_example(capsys):
    with pytest.raises(SystemExit):
        main.main(["doctor", "--help"])
    printed = capsys.readouterr().out
    assert "ringdp doctor --base-lr 0.1 --base-batch 256 -- torchrun" in printed
    assert len(printed.splitlines()) <= 40
