"""benchmarks/devices/probe.py and ladder.py over the driver interface of the stand-in; probes that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from devices.facts import instructions_in
from devices.findings import BEGUN, DIED, FAILED, HUNG, PASSED, SKIPPED, Finding, read, record
from devices.ladder import RUNGS
from devices.probe import PROBES
from stand_in import GPU_LIBRARY

LIMIT_S = 600
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def findings_of(tmp_path, stand_in) -> Callable[..., dict[str, Finding]]:
    """findings_of(module, *probes, NAME=value): what these probes find on a stand-in of one device, by name."""

    def run(module: str, *names: str, status: int = 0, **variables: str) -> dict[str, Finding]:
        file = tmp_path / "findings.jsonl"
        own = {"FINDINGS": str(file), "FINDINGS_PART": "part", "PYTHONPATH": f"{BENCHMARKS}:{tmp_path}"}
        own["PROBE_DEADLINE_S"] = "90"  # also where other tests have the cores
        driver = {"LIBCUDA": str(Path(stand_in).with_name(GPU_LIBRARY)), "STAND_IN_DEVICES": "1"}
        environment = {**os.environ, **own, **driver, **variables}
        command = [sys.executable, "-m", module, *names]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == status, done.stderr
        return {one.name: one for one in read(file)}

    return run


def verdicts(findings: dict[str, Finding]) -> dict[str, str]:
    return {name: one.verdict for name, one in findings.items()}


def test_every_probe_has_an_answer(findings_of):
    found = findings_of("devices.probe")
    assert verdicts(found) == dict.fromkeys(PROBES, PASSED), [one.text for one in found.values()]
    assert found["driver"].facts["device"] == "stand-in 0" and found["driver"].facts["devices"] == 1
    # As CUDA has it: memory lasts until the last process unmaps it, or is gone with the process that has exported it.
    assert found["killed exporter, descriptors"].facts == {"the context survives": True}
    legacy = found["killed exporter, legacy IPC"].facts
    assert not legacy["the context survives"] and "illegal memory access" in legacy["because"]
    beside = found["calls beside a copy to pageable memory"].facts
    waiting = {"event create", "event destroy", "allocation", "pinned allocation"}
    assert {name for name, what in beside.items() if what == "waits"} == waiting
    assert {what for name, what in beside.items() if name not in waiting} == {"goes on"}
    assert found["registered memfd"].facts == {"address on the device is the host's": False}
    assert found["batches of waits between processes"].facts["us per round trip"] > 0
    assert found["data behind batches of waits"].facts["a barrier in a batch"] == "taken"


@pytest.mark.long
def test_every_rung_has_a_figure(findings_of):
    found = findings_of("devices.ladder")
    assert verdicts(found) == dict.fromkeys(RUNGS, PASSED), [one.text for one in found.values()]
    for one in found.values():
        assert one.facts and all(0 < microseconds < 1e6 for microseconds in one.facts.values()), one


@pytest.mark.parametrize(
    ("lacks", "name", "said"),
    [
        ("ipc", "share legacy IPC", "cuIpcGetMemHandle"),
        ("fd", "share descriptors", "cuMemCreate: operation not supported"),
        ("fd", "killed exporter, descriptors", "cuMemCreate: operation not supported"),
        ("fd", "data behind batches of waits", "cuMemCreate: operation not supported"),
    ],
)
def test_what_a_device_lacks_is_a_skip_with_the_drivers_word(findings_of, lacks, name, said):
    found = findings_of("devices.probe", name, "registered memfd", STAND_IN_LACKS=lacks)
    assert verdicts(found) == {name: SKIPPED, "registered memfd": PASSED} and said in found[name].text


def test_without_a_driver_or_a_device_everything_is_a_skip(findings_of):
    found = findings_of("devices.probe", "driver", LIBCUDA="/nowhere/libcuda.so")
    assert (found["driver"].verdict, found["driver"].text) == (SKIPPED, "no /nowhere/libcuda.so")
    found = findings_of("devices.probe", "driver", STAND_IN_DEVICES="0")
    assert found["driver"].text.startswith("no device: cuInit: no CUDA-capable device")
    assert findings_of("devices.probe", "drivers", status=2) == {"driver": found["driver"]}


def test_kernels_that_are_not_on_the_device_at_once_are_told(findings_of):
    found = findings_of("devices.ladder", "flags between two kernels", STAND_IN_MULTIPROCESSORS="1")
    [one] = found.values()
    assert one.verdict == FAILED and "they do not run at once" in one.text


PLANTED = """
import ctypes, os, sys, time
from devices import probe
from devices.driver import BARRIER, WRITE, Driver

def alias():
    made = Driver.stream
    streams = []
    def stream(self, priority=0):
        streams.append(streams[len(streams) - 32] if len(streams) >= 32 else made(self, priority))
        return streams[-1]
    Driver.stream = stream
    return probe.aliases()

def wrong_word():
    Driver.word = lambda self, address: 76
    return probe.shared(probe.DESCRIPTORS)

def lost_write():
    Driver.write_value = lambda *_: None
    return probe.waits_between_processes()

def short_batch():
    batch = Driver.batch
    def without_a_write(self, stream, operations, value):
        [lost, *_] = [one for one in operations if one[0] == WRITE]
        batch(self, stream, [one for one in operations if one != lost], value)
    Driver.batch = without_a_write
    return probe.waits_between_processes(probe.one_call_a_turn)

def early_wait():
    batch = Driver.batch
    def without_waits(self, stream, operations, value):
        batch(self, stream, [one for one in operations if one[0] == WRITE] or [(BARRIER, 0)], value)
    Driver.batch = without_waits
    return probe.data_behind_batches()

calls = {"alias": alias, "wrong word": wrong_word, "lost write": lost_write}
calls |= {"short batch": short_batch, "early wait": early_wait}
calls |= {"stuck": lambda: time.sleep(60), "crash": lambda: ctypes.string_at(0), "exit": lambda: os._exit(3)}
sys.exit(probe.main("planted", {name: (call, {}) for name, call in calls.items()}, float(os.environ["DEADLINE_S"])))
"""


@pytest.mark.long
def test_faults_are_found_and_probes_that_hang_or_crash_cost_no_other(findings_of, tmp_path):
    (tmp_path / "planted.py").write_text(PLANTED)
    found = findings_of("planted", "stuck", "crash", "exit", DEADLINE_S="5")
    assert verdicts(found) == {"stuck": HUNG, "crash": DIED, "exit": FAILED}
    assert found["stuck"].text == "no answer in 5 s" and found["exit"].text == "ended with status 3"
    names = ("wrong word", "lost write", "short batch", "early wait", "alias")
    found = findings_of("planted", *names, DEADLINE_S="60", PROBE_DEADLINE_S="20")
    assert "77, and 76 is read" in found["wrong word"].text
    for name in ("lost write", "short batch"):
        assert found[name].verdict == FAILED and "round trips are not done" in found[name].text
    assert "words were others after the wait" in found["early wait"].text
    # torch's order is 4 priorities in turn, so every 32nd stream is every 8th of a priority.
    assert found["alias"].facts["wait behind -1/0 (priority/number)"] == "-1/8, -1/16, -1/24"


def test_a_finding_is_the_last_whole_line_of_its_name(tmp_path):
    file = tmp_path / "findings.jsonl"
    record(Finding("a", BEGUN, part="x"), file)
    record(Finding("a", PASSED, part="y"), file)
    record(Finding("b", BEGUN, part="x"), file)
    record(Finding("a", FAILED, 1.0, "why", {"us": 2}, part="x"), file)
    with file.open("a") as stream:
        stream.write(json.dumps({"name": "b", "verdict": "passed"})[:-5])
    assert [(one.part, one.name, one.verdict) for one in read(file)] == [
        ("x", "a", FAILED),
        ("y", "a", PASSED),
        ("x", "b", BEGUN),
    ]
    assert read(tmp_path / "none") == []


def test_instructions_of_plan_kernels_are_counted():
    listing = """
        Function : _ZN6ringdp3gpu11plan_kernelINS_4HalfEEE
        /*0010*/                   LDG.E.128.STRONG.SYS R4, [R2.64] ;
        /*0020*/                   LDG.E R4, [R2.64] ;
        /*0030*/                   STG.E.128.STRONG.SYS [R2.64], R4 ;
        /*0040*/                   STL [R1], R4 ;
        Function : _ZN6ringdp3gpu6poisonE
        /*0010*/                   LDG.E R4, [R2.64] ;
    """
    assert instructions_in(textwrap.dedent(listing)) == {
        "plan kernels": 1,
        "loads of 16 bytes, system scope": 1,
        "stores of 16 bytes, system scope": 1,
        "global loads without a scope": 1,
        "local loads and stores": 1,
    }


@pytest.mark.long
def test_two_ranks_say_how_they_communicate():
    code = "import json; from devices.facts import described; print(json.dumps(described('cpu')))"
    paths = os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    facts = json.loads(done.stdout)
    assert "all ranks share memory" in facts.pop("describe")
    assert len(facts) == 2 and all(0 < microseconds < 1e6 for microseconds in facts.values())
