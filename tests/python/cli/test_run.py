"""`ringdp run`: torchrun's arguments, --as, and ranks that torch does not give ringdp by itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ringdp.cli import main, worker
from ringdp.elastic import supervisor
from torch.distributed import run as torchrun

SHOWS = """
import sys, __main__
print(__name__, __main__ is sys.modules["__main__"], sys.argv, sys.path[0], __spec__ is None)
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Nothing is chosen, and torch would load ringdp in the ranks."""
    for variable in ("RINGDP_AS", "RINGDP_AUTOLOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD"):
        monkeypatch.setenv(variable, "")  # what run() sets is taken back
        monkeypatch.delenv(variable)
    point = type("Point", (), {"name": "ringdp"})
    monkeypatch.setattr("ringdp.cli.run.metadata.entry_points", lambda group: [point] * (group == "torch.backends"))


@pytest.fixture
def launched(monkeypatch):
    """launched("--as", "gloo", ...): what torchrun is told, and RINGDP_AS as the ranks find it."""
    seen = []
    monkeypatch.setattr(torchrun, "run", lambda arguments: seen.append((arguments, os.environ.get("RINGDP_AS"))))

    def launched(*arguments):
        assert main.main(["run", *arguments]) == 0
        return seen[-1]

    return launched


def refusal(capsys, *arguments):
    """The last line of what a wrong command line makes it say."""
    try:
        status = main.main(["run", *arguments])
    except SystemExit as end:
        status = end.code
    assert status == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_torchrun_gets_its_own_arguments(launched):
    given = ["--nproc-per-node", "2", "--max-restarts=1", "-m", "train", "--as", "x", "--", "-q"]
    arguments, choice = launched("--as", "cpu-default", *given)
    theirs = torchrun.parse_args(given)
    assert {
        n: value for n, value in vars(arguments).items() if n not in ("choice", "min_ranks", "host_timeout")
    } == vars(theirs)
    assert choice == "cpu-default"


def test_the_argument_outranks_the_environment_and_says_so(launched, monkeypatch, capsys):
    monkeypatch.setenv("RINGDP_AS", "cpu-default")
    assert launched("train.py")[1] == "cpu-default"
    assert launched("--as", "cpu-default", "train.py")[1] == "cpu-default"
    assert capsys.readouterr().err == ""
    assert launched("--as", "gloo", "train.py")[1] == "gloo"
    assert capsys.readouterr().err == "ringdp run: --as gloo replaces RINGDP_AS=cpu-default\n"


@pytest.mark.parametrize(
    ("arguments", "variables", "error"),
    [
        (["--as", "foo", "a.py"], {}, "argument --as: invalid value 'foo' (expected one of: gloo, cpu-default)"),
        (["a.py"], {"RINGDP_AS": "foo"}, "invalid value 'foo' for RINGDP_AS (expected one of: gloo, cpu-default)"),
        (["--as", "gloo", "a.py"], {"RINGDP_AUTOLOAD": "0"}, "RINGDP_AS=gloo needs ringdp at `import torch`"),
        (["--min-ranks", "0", "a.py"], {}, "argument --min-ranks: invalid value '0'"),
        (["--min-ranks", "2", "a.py"], {}, "--min-ranks 2 with --nproc-per-node 1, which are fewer"),
        (["--min-ranks", "3", "--nnodes", "2:4", "a"], {}, "--min-ranks 3 with --nproc-per-node 1 on 2 hosts, which"),
        (["--min-ranks", "1", "--nnodes", "2", "--master-port", "0", "a"], {}, "port 0 for the store of several hosts"),
        (["--min-ranks", "1", "--nnodes", "2", "--rdzv-conf", "is_host=0", "a"], {}, "--rdzv-conf is_host: only join"),
        (["--min-ranks", "1", "--nnodes", "2", "--rdzv-conf", "join_timeout=x", "a"], {}, "join_timeout=x: invalid"),
        (["--min-ranks", "1", "--nnodes", "3:2", "a"], {}, "--nnodes 3:2, must be N or LEAST:MOST"),
        (["--min-ranks", "1", "--nnodes", "1:2:3", "a"], {}, "--nnodes 1:2:3, must be N or LEAST:MOST"),
        (["--min-ranks", "1", "--nnodes", "2", "--standalone", "a"], {}, "--standalone with --nnodes 2"),
        (["--min-ranks", "1", "--nnodes", "2", "--rdzv-backend", "c10d", "a"], {}, "--rdzv-endpoint says where hosts"),
        (
            ["--min-ranks", "1", "--nnodes", "2", "--rdzv-backend", "etcd", "a"],
            {},
            "--rdzv-backend etcd: several hosts",
        ),
        (["--host-timeout", "1", "a"], {}, "--host-timeout without --min-ranks"),
        (
            ["--min-ranks", "1", "--host-timeout", "1", "a"],
            {},
            "--host-timeout 1 with --nnodes 1: there is no other host",
        ),
        (["--min-ranks", "1", "--host-timeout", "0", "a"], {}, "argument --host-timeout: invalid value '0'"),
        (["--min-ranks", "1", "--no-python", "a"], {}, "--min-ranks with --no-python: torchrun does not start"),
        (["--min-ranks", "1", "--run-path", "a"], {}, "--min-ranks with --run-path: torchrun does not start"),
        (["--min-ranks", "1", "--local-ranks-filter", "0", "a"], {}, "--min-ranks with --local-ranks-filter 0"),
        (["--unknown", "a.py"], {}, "unrecognized arguments: --unknown"),
        (["--as", "gloo"], {}, "the following arguments are required: training_script"),
        (["--", "torchrun", "a.py"], {}, "this command takes torchrun's place"),
        (["--no-python", "a.sh"], {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "--no-python works only where torch loads"),
        (["--run-path", "/a.py"], {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "--run-path works only where torch loads"),
    ],
)
def test_what_is_wrong_is_refused_by_name(launched, capsys, monkeypatch, arguments, variables, error):
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert error in refusal(capsys, *arguments)


def test_scripts_run_as_they_are_where_torch_loads_ringdp(launched):
    for option in ([], ["--no-python"], ["-m"]):
        assert launched(*option, "train", "x")[0].training_script == "train"


@pytest.mark.parametrize("reason", ["switched off", "not installed"])
def test_ranks_load_ringdp_where_torch_does_not(launched, monkeypatch, reason):
    if reason == "switched off":
        monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    else:
        monkeypatch.setattr("ringdp.cli.run.metadata.entry_points", lambda group: [])
    for option, before in (([], []), (["-m"], ["-m"])):
        arguments, _ = launched(*option, "train", "--x")
        assert (arguments.module, arguments.training_script) == (True, worker.__name__)
        assert arguments.training_script_args == [*before, "train", "--x"]


@pytest.mark.parametrize("module", [False, True])
def test_a_worker_is_to_the_script_what_python_is(run_warm, tmp_path, monkeypatch, module):
    (tmp_path / "shows.py").write_text(SHOWS)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path if module else tmp_path / "elsewhere")
    script = ["-m", "shows", "-m"] if module else [str(tmp_path / "shows.py"), "--x"]
    plain = subprocess.run([sys.executable, *script], capture_output=True, text=True, timeout=120)
    ours = run_warm("-m", worker.__name__, *script)
    assert (ours.stdout, ours.returncode) == (plain.stdout, 3), ours.stderr
    assert "shows.py" in plain.stdout


@pytest.mark.parametrize(("option", "python"), [([], ["-u", "train"]), (["-m"], ["-u", "-m", "train"])])
def test_ranks_that_may_die_are_started_by_a_supervisor(launched, option, python):
    given = ["--min-ranks", "2", "--nproc-per-node", "3", "--max-restarts", "7", *option, "train", "--x", "1"]
    arguments, _ = launched(*given)
    assert (arguments.module, arguments.training_script) == (True, "ringdp.elastic.supervisor")
    assert arguments.training_script_args == ["3", "2", "7", sys.executable, *python, "--x", "1"]
    assert (arguments.nproc_per_node, arguments.max_restarts) == ("1", 0)


C10D = "--nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint a --rdzv-id x --host-timeout 2"
STATIC = "--nnodes 2 --node-rank 1 --master-addr a --master-port 7"
DEFAULTS = "--nnodes 2 --node-rank 0 --master-addr [::1] --rdzv-conf join_timeout=9"


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (C10D, "--hosts 2 4 --endpoint a:29400 --id x --host-timeout 2.0"),
        (STATIC, "--hosts 2 2 --endpoint a:7 --id none --node-rank 1"),
        (DEFAULTS, "--hosts 2 2 --endpoint ::1:29500 --id none --node-rank 0 --join-timeout 9.0"),
    ],
)
def test_on_several_hosts_supervisors_meet_and_torchrun_knows_of_one(launched, given, options):
    arguments, _ = launched("--min-ranks", "3", "--nproc-per-node", "2", *given.split(), "train")
    assert arguments.training_script_args == [*options.split(), "2", "3", "0", sys.executable, "-u", "train"]
    assert (arguments.nnodes, arguments.standalone, arguments.nproc_per_node) == ("1:1", True, "1")
    parsed = supervisor.parser().parse_args(arguments.training_script_args)
    assert (parsed.ranks, parsed.min_ranks, parsed.replacements) == (2, 3, 0)
    assert parsed.command == [sys.executable, "-u", "train"]
