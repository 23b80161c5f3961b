"""How a process starts to be watched, what a rank writes, what is found in it, and the job that a tool runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import metadata

import numpy as np
import pytest
import torch
from ringdp.tools.attach import finding, job
from ringdp.tools.attach.assignment import VARIABLE, Assignment, from_environment, parse
from ringdp.tools.attach.finding import Finding, problems
from ringdp.tools.attach.patches import Patches
from ringdp.tools.attach.records import RankFile, Reader, absent, identity, world_of


def test_what_is_written_is_read(tmp_path, monkeypatch):
    given = Assignment("audit", tmp_path)
    monkeypatch.setenv(VARIABLE, str(given))
    assert from_environment() == given
    given.write_options({"epochs": 3})
    assert from_environment().options() == {"epochs": 3}


def test_no_tool_watches_by_default(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert from_environment() is None


@pytest.mark.parametrize("text", ["audit", "audit:", "spy:/", "audit:/no/such/folder"])
def test_other_values_are_named(text):
    with pytest.raises(ValueError, match="audit:FOLDER or doctor:FOLDER") as refused:
        parse(text)
    assert f"'{text}'" in str(refused.value)


DRAW = """
import torch
from torch.utils.data import DataLoader
import ringdp
ringdp._register.autoload()
list(DataLoader(list(range(4)), batch_size=2))
"""


@pytest.fixture
def installed():
    """Torch finds ringdp's entry point."""
    if "ringdp" not in metadata.entry_points(group="torch.backends").names:
        pytest.skip("ringdp is not installed here, so torch cannot find its entry point")


@pytest.mark.usefixtures("installed")
def test_a_rank_is_watched_once(run_python, tmp_path):
    (tmp_path / "options.json").write_text('{"epochs": 3}')
    result = run_python(DRAW, RINGDP_ATTACH=f"audit:{tmp_path}")
    assert result.returncode == 0, result.stderr
    (file,) = tmp_path.glob("*.jsonl")
    assert file.read_text().count('"kind":"batch"') == 2
    assert Assignment("audit", tmp_path).attached


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("value", [pytest.param("audit:/no/such/folder", marks=pytest.mark.long), "spy:/"])
def test_a_bad_assignment_is_said_and_torch_imports(run_python, value):
    result = run_python("import torch; print('alive')", RINGDP_ATTACH=value)
    assert result.stdout.strip() == "alive"
    assert "ringdp does not watch this process" in result.stderr and value in result.stderr


# Functions are replaced, and come back as they were.


class Base:
    def step(self):
        """The original."""
        return 1


class Below(Base):
    pass


def plus(number):
    return lambda original: lambda self: original(self) + number


def test_replacements_nest_and_come_back():
    original = Base.step
    patches = Patches()
    patches.around(Base, "step", plus(1))
    patches.around(Base, "step", plus(10))
    assert Base().step() == 12
    assert Base.step.__doc__ == "The original."
    patches.undo()
    patches.undo()
    assert Base.step is original


def test_an_inherited_function_is_inherited_again():
    patches = Patches()
    patches.around(Below, "step", plus(1))
    assert (Base().step(), Below().step()) == (1, 2)
    patches.undo()
    assert "step" not in vars(Below) and Below().step() == 1


def test_hooks_are_taken_back_in_reverse_order():
    order = []
    patches = Patches()
    patches.on_undo(lambda: order.append("first"))
    patches.on_undo(lambda: order.append("second"))
    patches.undo()
    assert order == ["second", "first"]


def test_what_is_not_there_is_named():
    with pytest.raises(AttributeError, match="no_such"):
        Patches().around(Base, "no_such", plus(1))


# Records are on disk at once, from the process that opened the file, and are read while files still grow.


@pytest.fixture
def as_rank_2(monkeypatch):
    for name, value in {"RANK": "2", "WORLD_SIZE": "4", "TORCHELASTIC_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)


def lines_in(folder):
    (file,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_header_and_every_record_at_once(tmp_path, as_rank_2):
    write = RankFile(tmp_path)
    assert list(tmp_path.iterdir()) == []
    write({"kind": "batch", "indices": [1, torch.tensor(2), np.int64(3), {1}]})
    header, record = lines_in(tmp_path)  # the file is still open
    assert (header["rank"], header["world"], header["restart"], header["pid"]) == (2, 4, 1, os.getpid())
    assert record == {"kind": "batch", "indices": [1, 2, 3, "{1}"]}


def test_without_a_launcher_it_is_a_job_of_one(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert identity() == (0, 1)


def test_forked_children_write_nothing(tmp_path, as_rank_2, monkeypatch):
    write = RankFile(tmp_path)
    write({"kind": "one"})
    monkeypatch.setattr(os, "getpid", lambda: 1)
    write({"kind": "two"})
    assert [line["kind"] for line in lines_in(tmp_path)] == ["rank", "one"]


def test_a_folder_that_is_gone_is_said_once(tmp_path, as_rank_2, recwarn):
    write = RankFile(tmp_path / "gone")
    write({"kind": "one"})
    write({"kind": "two"})
    assert [str(w.message).startswith("ringdp stops watching") for w in recwarn] == [True]


def line(**values):
    return json.dumps(values) + "\n"


def header(rank, restart=0, time=0.0, world=3):
    return line(kind="rank", rank=rank, world=world, restart=restart, time=time)


def test_reading_goes_on_behind_the_last_complete_line(tmp_path):
    file = tmp_path / "rank0.jsonl"
    whole = line(kind="batch", step=1)
    file.write_text(header(0) + whole[:5])
    reader = Reader(tmp_path)
    assert reader.read()[0].of("batch") == []
    with file.open("a") as stream:
        stream.write(whole[5:] + line(kind="batch", step=2))
    records = reader.read()[0]
    assert [row["step"] for row in records.of("batch")] == [1, 2]
    assert (records.rank, records.lines) == (0, 3)
    assert reader.read()[0].lines == 3


def test_the_latest_life_of_a_rank_counts(tmp_path):
    (tmp_path / "a.jsonl").write_text(header(1, restart=1, time=1.0) + line(kind="new"))
    (tmp_path / "b.jsonl").write_text(header(1, restart=0, time=2.0) + line(kind="old"))
    ranks = Reader(tmp_path).read()
    assert list(ranks[1].kinds) == ["rank", "new"]
    assert (world_of(ranks), absent(ranks)) == (3, [0, 2])


def test_no_records_are_no_world(tmp_path):
    ranks = Reader(tmp_path).read()
    assert (ranks, world_of(ranks), absent(ranks)) == ({}, 0, [])


def first_line(**changes):
    return line(**{"kind": "rank", "rank": 0, "world": 2, "restart": 0, "time": 0.0, **changes})


HEADERS = [{"world": 10**9}, {"world": "2"}, {"rank": 2}, {"rank": -1}, {"rank": 0.5}, {"time": None}, {"restart": []}]


FOREIGN = ["not json\n", '{"kind":"batch"}\n', "[]\n", "[" * 100000 + "\n"]


@pytest.mark.parametrize("text", [*FOREIGN, *(first_line(**change) for change in HEADERS)])
def test_a_file_of_something_else_is_named(tmp_path, text):
    (tmp_path / "other.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"other\.jsonl holds no records"):
        Reader(tmp_path).read()


# A finding as text and as JSON, plain and in a terminal.

PROBLEM = Finding("duplicates", "seen twice", "counts twice", "shard it", (0, 3), numbers={"repeated": 2})
NOTE = Finding("padding", "3 of 9", "weighs twice", "nothing", severity="note")


def test_text_says_what_why_and_what_to_do():
    assert str(PROBLEM).splitlines() == [
        "PROBLEM duplicates: seen twice",
        "  why it matters: counts twice",
        "  what to do: shard it",
    ]


def test_json_has_everything():
    stored = json.loads(json.dumps(PROBLEM.as_dict()))
    assert Finding(**{**stored, "ranks": tuple(stored["ranks"])}) == PROBLEM


def test_notes_are_no_problems():
    assert problems([NOTE, PROBLEM]) == [PROBLEM]


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_is_lost_in_either_form(terminal, monkeypatch, capsys):
    if terminal:
        pytest.importorskip("rich")
    monkeypatch.setattr("ringdp.text.terminal.in_terminal", lambda: terminal)
    problem = Finding("duplicates", "[seen] twice", "counts twice", "shard it")
    finding.show_findings([problem], ["loader 1: not known"])
    printed = capsys.readouterr().out
    for text in (*str(problem).splitlines(), "not judged: loader 1: not known"):
        assert text in printed


# A command runs to its end or to a reason to stop, and leaves no process behind.


# A parent that is not asked twice, with a child in a session of its own.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.environ["RINGDP_JOB"], flush=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def test_the_status_is_the_command_s_and_it_has_the_assignment(tmp_path):
    given = Assignment("audit", tmp_path)
    code = "import os, sys; sys.exit(os.environ['RINGDP_ATTACH'] != sys.argv[1]); "
    assert job.run([sys.executable, "-c", code, str(given)], given.environment) == job.Ended(0)
    assert job.run([sys.executable, "-c", "import sys; sys.exit(7)"], given.environment) == job.Ended(7)
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert job.run([sys.executable, "-c", killed], given.environment) == job.Ended(137)


def test_a_reason_ends_it_with_all_its_processes(tmp_path, monkeypatch):
    told = {"RINGDP_TRACE": str(tmp_path)}
    monkeypatch.setattr(job, "_GRACE_S", 0.2)
    said = tmp_path / "said"
    with said.open("wb") as output:
        tick = when_ready(said, lambda: "seen enough")
        ended = job.run([sys.executable, "-c", STUBBORN], told, tick, output)
    assert ended == job.Ended(137, "seen enough")
    assert left_of(said) == []


def when_ready(said, then):
    return lambda: then() if "ready" in said.read_text() else ""


def left_of(said):
    """The processes of the job that has printed its mark first."""
    return job.marked(said.read_text().split()[0])


def test_who_interrupts_and_then_interrupts_the_grace_leaves_nothing_behind(tmp_path, monkeypatch):
    told = {"RINGDP_TRACE": str(tmp_path)}
    real = subprocess.Popen.wait

    def interrupted(process, timeout=None):
        if timeout == job._GRACE_S:
            raise KeyboardInterrupt
        return real(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)

    def interrupt():
        raise KeyboardInterrupt

    said = tmp_path / "said"
    with said.open("wb") as output, pytest.raises(KeyboardInterrupt):
        job.run([sys.executable, "-c", STUBBORN], told, when_ready(said, interrupt), output)
    assert left_of(said) == []


def test_an_interrupt_while_it_starts_leaves_nothing_behind(tmp_path, monkeypatch):
    said = tmp_path / "said"
    real = subprocess.Popen.__init__

    def interrupted(process, *arguments, **named):
        real(process, *arguments, **named)
        while "ready" not in said.read_text():
            time.sleep(0.02)
        raise SystemExit(143)

    monkeypatch.setattr(subprocess.Popen, "__init__", interrupted)
    with said.open("wb") as output, pytest.raises(SystemExit):
        job.run([sys.executable, "-c", STUBBORN], {}, output=output)
    assert left_of(said) == []


def test_an_interrupt_reaches_the_command_as_an_interrupt(tmp_path):
    left = tmp_path / "left"
    code = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whatever the tests were started with
        "try:\n    print('ready', flush=True); time.sleep(600)\n"
        f"except KeyboardInterrupt:\n    pathlib.Path({str(left)!r}).write_text('all it had')"
    )

    def interrupt():
        raise KeyboardInterrupt

    said = tmp_path / "said"
    with said.open("wb") as output, pytest.raises(KeyboardInterrupt):
        job.run([sys.executable, "-c", code], {}, when_ready(said, interrupt), output)
    assert left.read_text() == "all it had"


def test_a_stranger_with_the_same_setting_lives_on(tmp_path):
    told = {"RINGDP_TRACE": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    code = "print('ready', flush=True); input()"
    strangers = []

    def another_begins():
        if not strangers:
            strangers.append(subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **told}, **pipes))
            strangers[0].stdout.readline()
        return "seen enough"

    assert job.run([sys.executable, "-c", "import time; time.sleep(600)"], told, another_begins).stopped
    try:
        assert strangers[0].poll() is None
    finally:
        strangers[0].communicate(b"\n")


def test_a_job_within_a_job_belongs_to_both(tmp_path, monkeypatch):
    monkeypatch.setenv(job.VARIABLE, "outer")
    seen = tmp_path / "jobs"
    code = f"import os, pathlib; pathlib.Path({str(seen)!r}).write_text(os.environ['{job.VARIABLE}'])"
    assert job.run([sys.executable, "-c", code], {}) == job.Ended(0)
    outer, own = seen.read_text().split()
    assert outer == "outer" and job.marked(own) == []


def test_a_command_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="no-such-command"):
        job.run(["no-such-command"], {})
