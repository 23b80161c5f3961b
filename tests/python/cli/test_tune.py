"""`ringdp tune`: a short real run, what is in force and where it comes from, and what it refuses."""

from __future__ import annotations

import json
import os

import pytest
from ringdp.cli import main
from ringdp.tools.tune import cache, microbenchmark, session
from ringdp.tools.tune.cache import FIELDS


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Where this host's values are kept."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "tuned.json"))
    return cache.path()


def printed(capsys) -> dict:
    assert main.main(["tune", "--print", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_short_run_is_written_and_in_force(file, monkeypatch, capsys):
    monkeypatch.setattr(microbenchmark, "confidence", lambda benchmark, times: 1.0)
    assert main.main(["tune", "-n", "2", "--seconds", "0.05"]) == 0
    said = capsys.readouterr().out
    measured = {field for field in FIELDS if not field.endswith("of_more")}
    for field in measured:
        assert field in said
    assert said.splitlines()[-1] == f"written to {file}"
    monkeypatch.setenv("RINGDP_SPIN_US", "33")
    found = printed(capsys)
    assert (found["file"], found["exists"], found["host"]) == (str(file), True, cache.host())
    values = cache.load()
    assert set(values) == measured
    for field, row in found["thresholds"].items():
        if field == "spin_us":
            assert row == {"value": 33, "source": "environment"}
        elif field in measured:
            assert row == {"value": values[field], "source": "tuned"}
        else:
            assert row["source"] == "default"


def test_what_is_not_sure_is_not_stored_and_a_busy_machine_is_named(file, monkeypatch, capsys):
    """The rounds of one field come out even, those of the others decide; at first on a machine under load."""
    near, far = [[1.0, 1.01], [1.01, 1.0]], [[1.0, 1.5]]

    def measured(assignment):
        for benchmark in assignment.benchmarks:
            rows = near * 10 if benchmark.field == "one_pass_bytes_of_two" else far * 20
            yield benchmark, {size: [row + [2.0] * 9 for row in rows] for size in benchmark.sizes}

    monkeypatch.setattr(session, "measured", measured)
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert main.main(["tune", "-n", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = {line.split()[0]: line for line in lines}
    assert said["one_pass_bytes_of_two"].endswith(": not stored") and "one_pass_bytes_of_two" not in cache.load()
    assert "100% sure, at the edge of what was tried" in said["one_shot_bytes_of_two"]
    assert cache.load()["one_shot_bytes_of_two"] == 1 << 20
    assert any("this machine is busy: a load of 1000.0 on " in line for line in lines)
    assert any(line.startswith("not stored: 1 value of 4") for line in lines)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert main.main(["tune", "-n", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["busy"] == "" and not found["measured"]["one_pass_bytes_of_two"]["stored"]


def test_without_a_file_the_defaults_are_in_force(file, capsys):
    found = printed(capsys)
    assert not found["exists"]
    assert {row["source"] for row in found["thresholds"].values()} == {"default"}
    assert main.main(["tune", "--print"]) == 0
    text = capsys.readouterr().out
    assert f"{file} (does not exist)" in text
    for field, row in found["thresholds"].items():
        assert any(line.split() == [field, str(row["value"]), "default"] for line in text.splitlines())


def test_off_is_said_and_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setenv(cache.VARIABLE, "off")
    assert main.main(["tune", "--print"]) == 0
    assert "none (RINGDP_TUNE=off)" in capsys.readouterr().out
    assert main.main(["tune"]) == 2
    assert "RINGDP_TUNE=off" in capsys.readouterr().err


def test_a_bad_variable_is_named(file, monkeypatch, refusal):
    monkeypatch.setenv("RINGDP_TREE_BYTES", "many")
    assert "RINGDP_TREE_BYTES" in refusal("tune", "--print")


def test_a_failed_measurement_writes_nothing(file, monkeypatch, capsys):
    def fails(_):
        raise session.TuneError("rank 1 died with status 7")

    monkeypatch.setattr(session, "measured", fails)
    assert main.main(["tune"]) == 1
    assert "rank 1 died" in capsys.readouterr().err
    assert not file.exists()


def test_json_says_what_was_measured(file, monkeypatch, capsys):
    def rounds(assignment):
        for benchmark in assignment.benchmarks:
            yield benchmark, {size: [[1.0] * len(benchmark.candidates)] * 5 for size in benchmark.sizes}

    monkeypatch.setattr(session, "measured", rounds)
    assert main.main(["tune", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["measured"]) == set(FIELDS)
    for field, row in found["measured"].items():
        assert found["thresholds"][field] == {"value": row["value"], "source": "tuned"} and row["stored"]


def test_a_file_that_cannot_be_written_is_status_1(file, monkeypatch, capsys):
    monkeypatch.setattr(session, "measured", lambda assignment: iter(()))
    monkeypatch.setenv(cache.VARIABLE, str(file / "below" / "a" / "file"))
    file.write_text("in the way")
    assert main.main(["tune", "--json"]) == 1
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--hosts", "no command: ringdp tune --hosts -- torchrun"),
        ("--hosts -- python train.py", "'python' is not torchrun"),
        ("--hosts -- torchrun --nproc-per-node 2 train.py", "the command is for one host (--nnodes)"),
        ("--hosts -- torchrun --nnodes 2 --master-addr no-such-host.invalid --node-rank 1 t.py", "is not known here"),
        ("--hosts -n 2 -- torchrun t.py", "-n 2 counts processes of one host"),
        ("--hosts --print -- torchrun t.py", "--print runs nothing: leave out -- torchrun t.py"),
        ("--hosts --seconds 0 -- torchrun t.py", "--seconds 0"),
        ("--hosts --timeout 0 -- torchrun t.py", "invalid value '0'"),
        ("--timeout 3", "--timeout 3 is for --hosts"),
        ("-- torchrun t.py", "tune without --hosts runs nothing: leave out -- torchrun t.py"),
    ],
)
def test_hosts_that_cannot_be_meant(words, said, monkeypatch, refusal):
    monkeypatch.delenv("RANK", raising=False)
    assert said in refusal("tune", *words.split())


def test_half_a_launcher_is_refused(monkeypatch, refusal):
    monkeypatch.setenv("RANK", "0")
    assert "RANK is set, but not WORLD_SIZE" in refusal("tune", "--hosts")


def test_what_is_in_force_between_hosts(file, monkeypatch, capsys):
    """A file of this host has no part in it."""
    monkeypatch.setenv("RINGDP_TCP_STREAMS", "3")
    assert main.main(["tune", "--hosts", "--print", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["thresholds"].pop("tcp_streams") == {"value": 3, "source": "environment"}
    assert {field: row["source"] for field, row in found["thresholds"].items()} == {"exchange_bytes": "default"}
    assert main.main(["tune", "--hosts", "--print"]) == 0
    assert capsys.readouterr().out.split()[:3] == ["tcp_streams", "3", "environment"]
