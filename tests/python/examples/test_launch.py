"""Examples start their ranks, end on signals, and wait for rank 0."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from threading import Event, Thread

import pytest
import torch.distributed as dist
from ringdp.examples import launch
from ringdp.examples.launch import Interrupt, on_rank_zero

MODULE = "ringdp.examples.some"


@pytest.fixture
def no_rank(monkeypatch):
    """A process that torchrun has not started."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def became(monkeypatch) -> list:
    """What this process would have been replaced by: then SystemExit instead."""
    called = []

    def replace(*arguments) -> None:
        called.append(arguments)
        raise SystemExit

    monkeypatch.setattr(os, "execv", replace)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return called


def test_a_rank_is_told_by_torchruns_variables(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not launch.started_by_torchrun()
    monkeypatch.setenv("RANK", "0")
    assert launch.started_by_torchrun()


def test_the_explanation_has_both_ways():
    said = launch.how_to_start(MODULE)
    assert said.startswith("some runs as several ranks")
    assert f"torchrun --nproc-per-node 2 -m {MODULE}" in said
    assert "--nproc 2" in said


@pytest.mark.parametrize("spelling", [["--nproc", "3"], ["--nproc=3"]])
def test_all_options_but_nproc_are_handed_on(spelling):
    command = launch.torchrun_command(MODULE, 3, ["--steps", "5", *spelling, "--quick"])
    assert command[: command.index("-m", 2)][-2:] == ["--nproc-per-node", "3"]
    assert command[-5:] == ["-m", MODULE, "--steps", "5", "--quick"]


def test_this_process_becomes_torchrun(became):
    with pytest.raises(SystemExit):
        launch.become_torchrun(MODULE, 2, ["--quick"])
    assert became == [(sys.executable, launch.torchrun_command(MODULE, 2, ["--quick"]))]


@pytest.mark.parametrize("text", ["0", "-1", "65", "two", "1.5", ""])
def test_a_bad_number_of_ranks_is_named(text, capsys):
    with pytest.raises(SystemExit) as ended:
        launch.parser_for(MODULE, "Something.", 4).parse_args(["--nproc", text])
    assert ended.value.code == 2
    assert f"invalid value '{text}' (expected a whole number from 1 to 64)" in capsys.readouterr().err


def on_ranks(*arguments: str, problem=lambda ranks: None) -> int:
    options = launch.parser_for(MODULE, "Something.", 4).parse_args(arguments)
    return launch.on_ranks(MODULE, options, lambda: {"ranks": dist.get_world_size()}, str, problem)


@pytest.mark.usefixtures("no_rank")
def test_without_ranks_torchrun_takes_over_with_the_default_number(became, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["some"])
    with pytest.raises(SystemExit):
        on_ranks()
    assert became == [(sys.executable, launch.torchrun_command(MODULE, 4, []))]


@pytest.mark.usefixtures("no_rank")
def test_what_does_not_fit_the_ranks_is_said_before_any_starts(became, capsys):
    assert on_ranks("--nproc", "3", problem=lambda ranks: f"not on {ranks}") == 2
    assert capsys.readouterr().err == "some: not on 3\n" and not became


@pytest.fixture
def one_rank(monkeypatch, tmp_path):
    """torchrun's variables for a rank that is alone."""
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    make, alone = dist.init_process_group, {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    monkeypatch.setattr(dist, "init_process_group", lambda backend: make(backend, **alone))


@pytest.mark.usefixtures("one_rank")
def test_a_rank_joins_works_prints_and_leaves(capsys):
    assert on_ranks("--json") == 0
    assert json.loads(capsys.readouterr().out) == {"ranks": 1}
    assert on_ranks() == 0
    assert capsys.readouterr().out == "{'ranks': 1}\n"
    assert not dist.is_initialized()


@pytest.mark.usefixtures("one_rank")
def test_the_problem_counts_the_ranks_that_torchrun_has_started(capsys):
    assert on_ranks("--nproc", "3", problem=lambda ranks: f"not on {ranks}") == 2
    assert capsys.readouterr().err == "some: not on 1\n"


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    installed = Interrupt()
    installed.install()
    yield installed
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_with_the_usual_status(interrupt, number):
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), number)
    assert ended.value.code == 128 + number


def test_a_deferred_signal_is_remembered(interrupt):
    with interrupt.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.number == signal.SIGTERM


def test_a_second_signal_does_not_break_the_clean_end(interrupt):
    with pytest.raises(SystemExit):
        os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    assert interrupt.number == signal.SIGTERM


@pytest.fixture
def store(monkeypatch) -> dist.HashStore:
    """Stands for the process group's store."""
    shared = dist.HashStore()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: shared)
    return shared


def test_rank_zero_works_once_and_the_others_get_its_result(store, monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    assert on_rank_zero("a", lambda: "result of 0") == "result of 0"
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    assert on_rank_zero("a", pytest.fail) == "result of 0"


def test_the_others_wait_until_it_is_there(store, monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    got, started = [], Event()

    def wait():
        started.set()
        got.append(on_rank_zero("b", pytest.fail))

    waiting = Thread(target=wait)
    waiting.start()
    started.wait()
    assert got == []
    store.set("on_rank_zero/b", "late")
    waiting.join()
    assert got == ["late"]


def test_a_rank_zero_that_never_finishes_is_named(store, monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(launch, "LIMIT_S", 0.0)
    with pytest.raises(TimeoutError, match="rank 0 has not finished 'c'"):
        on_rank_zero("c", pytest.fail)


class Here:
    """A host whose commands run on this one."""

    address = "127.0.0.1"

    @staticmethod
    def command(command: list[str]) -> list[str]:
        """As it is."""
        return command


ON_A_HOST = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
own = folder / os.environ["RANK"]
own.with_suffix(".new").write_text(json.dumps([os.getpid(), *map(os.environ.get, names)]))
own.with_suffix(".new").replace(own)
while not all((folder / rank).exists() for rank in "01"):
    time.sleep(0.01)
if len(sys.argv) > 2 and os.environ["RANK"] == sys.argv[2]:
    os.kill(os.getpid(), 9) if sys.argv[3] == "killed" else sys.exit(3)
time.sleep(600 if len(sys.argv) > 2 else 0)
"""


@pytest.fixture
def on_hosts(tmp_path, monkeypatch):
    """The status of ranks on two hosts, and what each has left."""
    (tmp_path / "on_a_host.py").write_text(ON_A_HOST)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(launch, "END_S", 0.1)

    def run(*arguments: str) -> tuple[int, list[list[str]]]:
        status = launch.on_hosts("on_a_host", [Here(), Here()], [str(tmp_path), *arguments])
        return status, [json.loads((tmp_path / rank).read_text()) for rank in "01"]

    return run


def test_a_rank_runs_on_each_host(on_hosts):
    status, (first, second) = on_hosts()
    assert status == 0
    assert first[1:] == ["0", "0", "2", "127.0.0.1"] and second[1:] == ["1", "0", "2", "127.0.0.1"]


@pytest.mark.parametrize(("how", "expected"), [("exits", 3), ("killed", 128 + signal.SIGKILL)])
def test_where_one_rank_fails_none_stays(on_hosts, how, expected):
    status, said = on_hosts("1", how)
    assert status == expected
    for pid, *_ in said:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
