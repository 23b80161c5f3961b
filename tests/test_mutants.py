"""tests/mutants: every patch fits the tree, its hint names tests that are there, and the runner judges rightly."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests/mutants"
sys.path.append(str(FOLDER))
import mutant as mutants  # noqa: E402
import run as runner  # noqa: E402
from processes import run as run_command  # noqa: E402
from trial import SUITES_OF_MAKE, Bench, Outcome, judge, reports, why_not_clean  # noqa: E402
from working_copy import WorkingCopy  # noqa: E402

PATCHES = sorted(FOLDER.glob("*.patch"))
FEWEST = 28
PATCH = """Fault: one is two
Caught by: {by}

--- a/{file}
+++ b/{file}
@@ -1,1 +1,1 @@
-{old}
+{new}
"""


def test_there_are_enough_of_every_module():
    assert len(PATCHES) >= FEWEST
    touched = {"/".join(file.split("/")[:2]) for mutant in mutants.load() for file in mutant.files}
    modules = (*mutants.MODULES, "backend", "reducer", "zero")
    assert touched >= {*(f"csrc/{module}" for module in modules), "python/ringdp"}
    assert {mutant.caught_by.suite for mutant in mutants.load()} == set(mutants.SUITES)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="patches are checked in a checkout")
def test_every_patch_applies():
    """All at once would hide two that touch the same line, so one by one."""
    for patch in PATCHES:
        command = ["git", "apply", "--check", str(patch)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{patch.name}: {done.stderr}"


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_every_hint_names_tests_that_are_there(patch):
    mutant = mutants.parse(patch)
    suite, words = mutant.caught_by.suite, mutant.caught_by.words
    assert mutant.fault and not mutant.fault.endswith(".")
    if suite == "python":
        for word in words:
            assert not word.startswith("tests") or (ROOT / word.partition("::")[0]).exists(), word
        return
    folder = ROOT / ("tests/device/cpp" if words[0] == "device" else f"tests/cpp/{words[0]}")
    text = "\n".join(file.read_text() for file in folder.rglob("*.[ch]*"))
    for part in words[1].split(":"):
        name = part.partition(".")[0].strip("*")
        assert name in text, f"no test of {folder} has {name} in its name"


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("Caught by: plain plan X*", "no line 'Fault"),
        ("Fault: x", "no line 'Caught by"),
        ("Fault: x\nCaught by: fast plan X*", "invalid suite 'fast'"),
        ("Fault: x\nCaught by: plain reducer X*", "the module one of"),
        ("Fault: x\nCaught by: python -k x", "no path"),
    ],
)
def test_a_header_that_lacks_something_is_named(header, named, tmp_path):
    patch = tmp_path / "p.patch"
    patch.write_text(f"{header}\n\n--- a/csrc/x.cc\n+++ b/csrc/x.cc\n")
    with pytest.raises(mutants.BadPatch, match=named):
        mutants.parse(patch)


def test_a_patch_of_tests_is_refused(tmp_path):
    (tmp_path / "p.patch").write_text("Fault: x\nCaught by: plain plan X*\n--- a/tests/x.py\n+++ b/tests/x.py\n")
    with pytest.raises(mutants.BadPatch, match="below csrc/ or python/"):
        mutants.load(tmp_path)
    with pytest.raises(mutants.BadPatch, match="no mutant 'q'"):
        mutants.load(tmp_path, ["q"])


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (Outcome(3, ["Ring.Order"]), "caught"),
        (Outcome(3), "missed"),
        (Outcome(0), "broken"),  # nothing was run
        (Outcome(broken="does not compile"), "broken"),
        (Outcome(hung=True), "hung"),
    ],
)
def test_verdicts(outcome, word):
    assert judge(outcome).word == word
    assert bool(why_not_clean(outcome)) == (word != "missed")


def test_what_sanitizers_say_has_the_name_of_the_test():
    said = "[ RUN      ] Ring.Order\nSUMMARY: ThreadSanitizer: data race ring.cc:3 in x (ring_test)\n"
    said += "[ RUN      ] Ring.End\na.cc:1:2: runtime error: shift exponent 64 is too large\n"
    assert reports(said) == [
        "Ring.Order: ThreadSanitizer: data race ring.cc:3 in x",
        "Ring.End: shift exponent 64 is too large",
    ]


def test_the_suites_of_make_are_called_as_they_are_there(monkeypatch, capsys):
    """What runs in the copy, with suites that build nothing."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(".ci")
    suites = importlib.import_module("suites")
    monkeypatch.setattr(suites, "JOBS", suites.JOBS)
    built = []
    monkeypatch.setattr(suites, "build_programs", lambda kind, modules, **_: built.append((kind, modules)) or ROOT)
    monkeypatch.setattr(suites, "run_program", lambda *_: 0)
    monkeypatch.setattr(suites, "add_program", lambda *_: None)  # there is no report
    monkeypatch.setattr(sys, "argv", ["-c", "address", "comm", "3"])
    exec(SUITES_OF_MAKE, {})
    assert capsys.readouterr().out.splitlines()[-1] == "[0, 0]"
    assert built == [("address", ["comm"])] and suites.JOBS == 3


class FakeBench(Bench):
    """Needs no build; `python <path>` runs that file, which is given up soon where it waits without end."""

    def test(self, selection, log, mutant=None) -> Outcome:
        command = [sys.executable, "-S", selection.words[0]]
        log_file = self.folder / "logs" / f"{log}.log"
        environment = {"PYTHONDONTWRITEBYTECODE": "1"}
        limit_s = 0.4 if mutant and selection.words[0] == "tests/waits.py" else 60
        ended = run_command(command, cwd=self.copy.tree, env=environment, limit_s=limit_s, log=log_file)
        if ended.status is None:
            return Outcome(hung=True)
        return Outcome(1, [] if ended.status == 0 else [ended.output.splitlines()[-1]])


@pytest.fixture
def tree(tmp_path) -> Path:
    """A repository of one function, with tests that see when it is wrong, or look at nothing, or wait without end."""
    (tmp_path / "python").mkdir()
    (tmp_path / "python/one.py").write_text("ONE = 1\n")
    (tmp_path / "tests/mutants").mkdir(parents=True)
    head = "import sys\nsys.path.insert(0, 'python')\nfrom one import ONE\n"
    (tmp_path / "tests/sees.py").write_text(f"{head}assert ONE == 1, ONE\n")
    (tmp_path / "tests/blind.py").write_text(head)
    (tmp_path / "tests/waits.py").write_text(f"{head}import time\ntime.sleep(60 * (ONE - 1))\n")
    (tmp_path / "tests/fails.py").write_text("assert False\n")
    (tmp_path / ".gitignore").write_text("/build/\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def plant(tree: Path, name: str, by: str, *, old: str = "ONE = 1") -> None:
    text = PATCH.format(by=f"python tests/{by}.py", file="python/one.py", old=old, new="ONE = 2")
    (tree / f"tests/mutants/{name}.patch").write_text(text)


def test_each_kind_of_mutant_is_told(tree, capsys):
    plant(tree, "a-caught", "sees")
    plant(tree, "b-missed", "blind")
    plant(tree, "c-hung", "waits")
    plant(tree, "d-stale", "sees", old="ONE = 0")
    plant(tree, "e-unfit", "fails")
    status = runner.main(["--json", str(tree / "rows.json")], root=tree, make_bench=FakeBench)
    said = capsys.readouterr().out
    assert status == 1
    assert said.splitlines()[-1] == "1 caught, 2 missed, 2 broken"
    assert "[1/5] a-caught ... caught by python tests/sees.py: AssertionError: 2" in said
    rows = json.loads((tree / "rows.json").read_text())["mutants"]
    assert [row["verdict"] for row in rows] == ["caught", "missed", "hung", "broken", "broken"]
    assert "does not apply" in rows[3]["reason"] and "without the fault" in rows[4]["reason"]
    assert (tree / "build/mutants/tree/python/one.py").read_text() == "ONE = 1\n"


def test_all_caught_is_success_and_the_first_miss_can_end_it(tree, capsys):
    plant(tree, "b-caught", "sees")
    assert runner.main([], root=tree, make_bench=FakeBench) == 0
    plant(tree, "a-missed", "blind")
    assert runner.main(["--no-keep-going"], root=tree, make_bench=FakeBench) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 caught, 1 missed, 0 broken"
    assert runner.main(["absent"], root=tree, make_bench=FakeBench) == 2


def test_what_a_killed_run_left_is_mended(tree):
    copy = WorkingCopy(tree, tree / "build/mutants")
    copy.update()
    left = copy.tree / "python/one.py"
    before = left.stat().st_mtime_ns
    assert copy.update() == 0 and left.stat().st_mtime_ns == before
    left.write_text("ONE = 2\n")
    (tree / "tests/blind.py").unlink()
    assert copy.update() == 1
    assert left.read_text() == "ONE = 1\n" and not (copy.tree / "tests/blind.py").exists()


def test_only_one_run_has_the_copy(tree, capsys):
    plant(tree, "a", "sees")
    with WorkingCopy(tree, tree / "build/mutants").locked():
        assert runner.main([], root=tree, make_bench=FakeBench) == 2
    assert "another run" in capsys.readouterr().err


def test_a_limit_ends_what_was_started_elsewhere(tmp_path):
    """Launchers of ranks put them into sessions of their own."""
    code = "import subprocess; p = subprocess.Popen(['/bin/sleep', '60'], start_new_session=True); "
    code += "print(p.pid, flush=True); p.wait()"
    command = [sys.executable, "-S", "-c", code]
    for limit_s in (0.4, 4, 40):  # until it came as far as to print
        ended = run_command(command, cwd=tmp_path, env={}, limit_s=limit_s, log=tmp_path / "log")
        assert ended.status is None
        if ended.output:
            break
    stat = Path(f"/proc/{ended.output.strip()}/stat")
    for _ in range(100):  # until init has reaped it
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    pytest.fail("it lives on")
