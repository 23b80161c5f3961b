"""The plan, the verdicts on claims, and the report of gpu-check; what documents say of devices is what it has shown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from devices.findings import CUT_OFF, FAILED, HUNG, PASSED, SKIPPED, Finding

from gpu_check import __main__ as program
from gpu_check import report
from gpu_check.claims import CLAIMS, NOT_REACHED, README, REFUTED, SHOWN, Claim, verdict_of
from gpu_check.parts import LIMIT_S, ROOT, TESTS, chosen, parts
from gpu_check.runner import GRACE_S, Outcome, Part

PLAN = parts("python", ["VENV=none"], Path("/out"))
GPU_TESTS = ROOT / "tests/device/gpu"
COMMITTED = ROOT / "benchmarks/results/gpu_check.json"


def test_all_parts_end_within_eight_minutes():
    assert LIMIT_S + 3 * GRACE_S < 8 * 60  # the last part is asked to end twice, and killed
    assert len({part.name for part in PLAN}) == len(PLAN) and all(part.limit_s < LIMIT_S / 2 for part in PLAN)


def test_parts_need_what_comes_before_them():
    for number, part in enumerate(PLAN):
        assert set(part.needs) <= {before.name for before in PLAN[:number]}


def test_every_file_of_tests_on_a_gpu_is_a_part_and_every_module_exists():
    assert {file for _, file, *_ in TESTS} == {path.stem for path in GPU_TESTS.glob("test_*.py")}
    words = [(part, word) for part in PLAN for word in part.command]
    for _, word in words:
        if word.startswith(("tests/", "benchmarks/")):
            assert (ROOT / word).exists(), word
        if word.startswith("devices."):
            assert (ROOT / "benchmarks" / word.replace(".", "/")).with_suffix(".py").exists(), word


def test_the_options_of_two_parts_of_one_file_leave_no_test_out():
    options = {name: "".join(options[1:]) for name, file, *_, options in TESTS if file == "test_plans"}
    assert options == {"plans": "not STREAM", "plans-stream": "STREAM"}
    assert all(not options for _, file, *_, options in TESTS if file != "test_plans")


def test_chosen_parts_bring_what_they_need_and_unknown_ones_are_refused_with_the_list():
    assert [part.name for part in chosen(PLAN, ["plans", "probe"])] == ["probe", "build", "plans"]
    with pytest.raises(ValueError, match=r"invalid part 'plan' \(expected some of: device, probe, .*speed\)"):
        chosen(PLAN, ["probe", "plan"])


# Claims.


def outcomes(**verdicts: str) -> list[Outcome]:
    """A part with one finding for each, of that name."""
    return [
        Outcome("part", PASSED, findings=[Finding(name, verdict, part="part") for name, verdict in verdicts.items()])
    ]


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({"a1": PASSED, "b": PASSED}, SHOWN),
        ({"a1": PASSED, "a2": SKIPPED, "b": PASSED}, NOT_REACHED),  # it may need more GPUs than there are
        ({"a1": SKIPPED, "b": PASSED}, NOT_REACHED),
        ({"a1": PASSED}, NOT_REACHED),
        ({"a1": PASSED, "a2": CUT_OFF, "b": PASSED}, NOT_REACHED),
        ({"a1": PASSED, "a2": FAILED, "b": PASSED}, REFUTED),
        ({"a1": HUNG}, REFUTED),
        ({}, NOT_REACHED),
    ],
)
def test_a_claim_is_shown_by_all_its_findings_and_refuted_by_one(found, verdict):
    assert verdict_of(Claim("page", "text", (("part", "a"), ("part", "b"))), outcomes(**found)) == verdict
    assert verdict_of(Claim("page", "text"), outcomes(**found)) == NOT_REACHED


def functions_of(file: str) -> list[str]:
    """How findings of a file of tests begin."""
    return [
        f"{file}.py::{name}" for name in re.findall(r"^def (test_\w+)", (GPU_TESTS / f"{file}.py").read_text(), re.M)
    ]


def test_claims_name_findings_that_there_are():
    import gpu
    from devices import facts, probe

    names = {name: functions_of(file) for name, file, *_ in TESTS}
    names |= {
        "probe": list(probe.PROBES),
        "facts": list(facts.FACTS),
        "speed": [f"zero_step by {name}" for name in gpu.STEPS],
    }
    for claim in CLAIMS:
        for part, prefix in claim.by:
            assert any(name.startswith(prefix) for name in names[part]), (claim.text, prefix)


def emulated_rows() -> dict[str, str]:
    """Of README's table: the first cell of a row, and the last where it speaks of devices."""
    table = (ROOT / README).read_text().partition("| | CPU, shared memory | CPU, TCP | CUDA |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0]: row[-1] for row in rows if row[-1] != "not supported"}


def test_every_row_of_the_readme_that_devices_have_is_a_claim():
    assert set(emulated_rows()) == {claim.text for claim in CLAIMS if claim.page == README}


def test_the_readme_says_so_when_device_code_has_changed_since_the_report():
    assert report.is_of_this_code(COMMITTED) != ("what has [changed since]" in (ROOT / README).read_text())


def test_documents_say_emulated_until_a_committed_report_shows_more():
    known = report.outcomes_in(COMMITTED)
    shown = {claim.text for claim in CLAIMS if verdict_of(claim, known) == SHOWN}
    for row, cell in emulated_rows().items():
        assert cell.startswith("tested" if row in shown else "emulated"), (row, cell)
    if not known:
        for page in ("docs/devices.md", "docs/support.md", "csrc/device/README.md"):
            text = " ".join((ROOT / page).read_text().split())
            assert re.search(r"emulat[^.]*not yet run on a GPU|None of it has run on a GPU yet", text, re.IGNORECASE), (
                page
            )


# The report.

FOUND = [
    Outcome(
        "probe", PASSED, 2.0, findings=[Finding("driver", PASSED, facts={"version": 13000, "a|b": "c"}, part="probe")]
    ),
    Outcome(
        "plans",
        FAILED,
        3.0,
        "test_plans.py::test_in_place[SPIN] failed",
        "the end of the log",
        [
            Finding("test_plans.py::test_in_place[SPIN]", FAILED, text="assert 1 == 2", part="plans"),
            Finding("test_plans.py::test_in_place[STREAM]", HUNG, text="Timeout (0:00:15)!", part="plans"),
            Finding("test_plans.py::test_far", SKIPPED, text="needs 2 GPUs\nin all", part="plans"),
        ],
    ),
    Outcome("build", FAILED, 1.0, "status 2", "make: nvcc"),
]


def test_the_report_is_written_whole_and_read_again(tmp_path):
    report.write(FOUND, tmp_path)
    assert report.outcomes_in(tmp_path / report.JSON) == FOUND
    assert {path.name for path in tmp_path.iterdir()} == {report.JSON, report.MARKDOWN}
    assert report.outcomes_in(tmp_path / "none.json") == []


def test_the_report_tells_verdicts_facts_and_what_failed_in_its_own_words(tmp_path):
    row = {"op": "all_reduce", "ranks": 2, "size": 4096, "candidate": "threads", "microseconds": 9.5, "wrong": 0}
    speed = {"rows": [{**row, "GB/s of the device": 1.0, "x": {}}], "left_out": {"nccl, 2 ranks": "no NCCL"}}
    speed["bars"] = [{"what": "threads, 256 MiB: share", "measured": 0.75, "least": 0.8, "held": False}]
    (tmp_path / "gpu.json").write_text(json.dumps(speed))
    report.write(FOUND, tmp_path)
    text = (tmp_path / report.MARKDOWN).read_text()
    lines = [
        "| plans | failed | 3 s | 1 failed, 1 hung, 1 skipped | test_plans.py::test_in_place[SPIN] failed |",
        "| driver | a\\|b | c |",
        "| all_reduce | 2 | 4096 | threads | 9.5 | 1.0 | - | 0 |",
        "| threads, 256 MiB: share | 0.75 | 0.8 | no |",
        "| nccl, 2 ranks | no NCCL |",
        "| plans | test_plans.py::test_far | needs 2 GPUs |",
        "### plans: test_plans.py::test_in_place[STREAM]: hung",
        "assert 1 == 2",
        "make: nvcc",
    ]
    for line in lines:
        assert line in text.splitlines(), line
    assert f"Digest of csrc/{{base,device,kernels,plan}}: {report.digest_of_device_code()}." in text
    for claim in CLAIMS:
        assert f"| {claim.text} | {claim.page} | {verdict_of(claim, FOUND)} | {', '.join(claim.parts)}" in text
    assert "the end of the log" not in text  # the findings say it already


# The program.


def run_program(*arguments: str, status: int, **variables: str) -> str:
    """What it prints."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}/tests:{ROOT}/benchmarks", **variables}
    command = [sys.executable, "-m", "gpu_check", *arguments]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_bad_input_is_refused_and_parts_are_listed():
    assert "invalid part 'plan' (expected some of: device, " in run_program("--parts", "plan", status=2)
    assert "--hang is 0" in run_program("--hang", "0", status=2)
    assert [line.split()[0] for line in run_program("--list", status=0).splitlines()] == [part.name for part in PLAN]


def test_a_later_run_of_a_part_keeps_the_verdicts_of_others(tmp_path, monkeypatch, capsys):
    def run_parts(arguments: list[str], *codes: str) -> int:
        plan = [Part(f"part-{k}", "", [sys.executable, "-c", code], 30) for k, code in enumerate(codes)]
        monkeypatch.setattr(program, "parts", lambda *_: plan)
        monkeypatch.setattr(program, "adopt_orphans", lambda: None)  # it is for good, and this is a process of tests
        return program.main(arguments)

    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    monkeypatch.setattr(program.os, "chdir", lambda _: None)
    assert run_parts([], "exit(1)", "pass") == 1
    assert run_parts(["--parts", "part-0"], "pass", "exit(1)") == 0
    assert "2 of 2 parts passed or were skipped" in capsys.readouterr().out
    assert [one.verdict for one in report.outcomes_in(tmp_path / report.JSON)] == [PASSED, PASSED]
    assert run_parts(["--parts", "part-1", "--json"], "exit(1)", "exit(1)") == 1
    written = json.loads(capsys.readouterr().out)
    assert [one["verdict"] for one in written["outcomes"]] == [PASSED, FAILED]
    of_other_code = json.dumps({**json.loads((tmp_path / report.JSON).read_text()), "device_code": "another"})
    (tmp_path / report.JSON).write_text(of_other_code)
    assert run_parts(["--parts", "part-1"], "pass", "pass") == 0
    assert [one.part for one in report.outcomes_in(tmp_path / report.JSON)] == ["part-1"]
    (tmp_path / report.SPEED).write_text("{}")
    assert run_parts([], "pass") == 0  # all: nothing is kept
    assert len(report.outcomes_in(tmp_path / report.JSON)) == 1 and not (tmp_path / report.SPEED).exists()
