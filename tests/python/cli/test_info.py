"""The report, for people and for programs, with and without a usable extension."""

from __future__ import annotations

import json
import os
import platform
import socket
import types
from pathlib import Path

import pytest
import ringdp
from ringdp import _native
from ringdp.cli import info as module
from ringdp.cli import main as command_line


def by_name(choice):
    return {row["name"]: row for row in module.transports(choice)}


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(("forced", "other"), [("shm", "tcp"), ("tcp", "shm")])
def test_a_forced_transport_switches_the_other_off(forced, other):
    free, rows = by_name("auto"), by_name(forced)
    assert rows[forced] == free[forced]
    assert not rows[other]["available"]
    assert f"transport={forced} is forced" in rows[other]["why"]


def test_shared_memory_is_really_tried(monkeypatch):
    before = open_descriptors()
    assert module.probe_shm()[0]

    def refuse(*arguments):
        raise OSError(28, "No space left")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    available, why = module.probe_shm()
    assert not available and "No space left" in why
    monkeypatch.setattr(os, "memfd_create", refuse)
    available, why = module.probe_shm()
    assert not available and "memfd_create" in why
    assert open_descriptors() == before


def test_tcp_names_the_interfaces(monkeypatch):
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth7")])
    available, why = module.probe_tcp()
    assert available and "lo, eth7" in why
    monkeypatch.setattr(socket, "if_nameindex", list)
    assert module.probe_tcp() == (False, "this machine has no network interface")


ROW = {
    "field": "transport",
    "variable": "RINGDP_TRANSPORT",
    "value": "tcp",
    "source": "environment",
    "default": "auto",
    "accepts": "auto|shm|tcp",
    "help": "how bytes reach a peer",
}
BUILT = {"torch": "2.13.0", "python": "3.11.7", "compiler": "g++ 12", "cuda": "13.0", "date": "2026-01-01"}
DEVICE = {
    "name": "H9000",
    "multiprocessors": 132,
    "architecture": "9.0",
    "memory_bytes": 141 << 30,
    "waits_on_streams": True,
    "shares_fds": False,
}
CUDA = {
    "library": "/x/gpu.so",
    "why_none": None,
    "devices": [DEVICE],
    "kernels": "plan float32: 99 registers\n",
    "nccl": 22809,
}


@pytest.fixture
def report_of_cuda():
    return dict(CUDA)


@pytest.fixture
def usable(monkeypatch, report_of_cuda):
    core = types.SimpleNamespace(
        instruction_set=lambda: "avx9", setting_table=lambda: [ROW], gpu_report=lambda: report_of_cuda
    )
    monkeypatch.setattr(_native, "load", lambda: core)
    monkeypatch.setattr(_native, "built_for", lambda: BUILT)


@pytest.fixture
def unusable(monkeypatch):
    def refuse():
        raise ImportError("ringdp was built for torch 2.13 but torch 2.14.1 is installed: run this")

    monkeypatch.setattr(_native, "load", refuse)


def test_text_has_every_part(usable, capsys):
    assert command_line.main(["info", "--all"]) == 0
    text = capsys.readouterr().out
    for part in [*BUILT.values(), ringdp.__version__, platform.python_version(), "avx9"]:
        assert part in text
    for part in ("RINGDP_TRANSPORT (transport)", "tcp [environment]", "auto|shm|tcp", "transport=tcp is forced"):
        assert part in text


def test_json_has_the_same_parts(usable, capsys):
    assert command_line.main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ringdp"] == ringdp.__version__
    assert report["built_for"] == BUILT
    assert report["instruction_set"] == "avx9"
    assert report["settings"] == [ROW]
    assert [row["name"] for row in report["transports"]] == ["shm", "tcp"]
    assert report["cuda"] == CUDA
    assert report["error"] is None


def test_text_tells_what_the_cuda_part_has(usable, capsys):
    assert command_line.main(["info", "--all"]) == 0
    text = capsys.readouterr().out
    for part in ("/x/gpu.so, of CUDA 13.0", "2.28.9", "H9000, sm_90, 132 multiprocessors, 141 GiB", "99 registers"):
        assert part in text
    assert "can wait on streams" in text and "run on devices whose memory all ranks share" in text


@pytest.mark.parametrize("library", [None, "/x/gpu.so"])
def test_text_tells_why_there_is_no_device(usable, report_of_cuda, capsys, library, monkeypatch):
    report_of_cuda.update(library=library, why_none="build it or buy one", devices=[], kernels="", nccl=0)
    monkeypatch.setattr(module, "_DEVICE_FILES", (Path("/dev/null"),))
    assert command_line.main(["info", "--all"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "build it or buy one" in line)
    assert line.startswith("CUDA part        not built" if library is None else "  devices")


@pytest.mark.parametrize("how", [[], ["--all"]])
def test_a_machine_without_a_gpu_is_not_told_of_its_driver(usable, report_of_cuda, capsys, monkeypatch, how):
    report_of_cuda.update(why_none="CUDA driver version is insufficient (35)", devices=[], kernels="", nccl=0)
    monkeypatch.setattr(module, "_DEVICE_FILES", (Path("/dev/no-such"),))
    assert command_line.main(["info", *how]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "no NVIDIA GPU" in text and "35" not in text


def test_the_summary_fits_a_terminal_and_names_what_is_set(usable, monkeypatch, capsys):
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(n, f"interface{n}") for n in range(40)])
    assert command_line.main(["info"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for part in ("RINGDP_TRANSPORT=tcp (environment)", "0 settings as by default", "H9000, sm_90", "--all"):
        assert part in text


def test_an_unusable_extension_is_said_and_status_1(unusable, capsys):
    assert command_line.main(["info"]) == 1
    last = capsys.readouterr().out.partition("cannot run")[2]
    assert "torch 2.14.1" in " ".join(last.split())
    assert command_line.main(["info", "--json"]) == 1
    captured = capsys.readouterr()
    assert "torch 2.14.1" in json.loads(captured.out)["error"]
    assert "torch 2.14.1" in captured.err


def test_the_real_command(run_warm):
    result = run_warm("-m", "ringdp", "info", "--json", RINGDP_TRANSPORT="tcp")
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    transport = next(row for row in report["settings"] if row["field"] == "transport")
    assert (transport["value"], transport["source"]) == ("tcp", "environment")
    assert {row["variable"] for row in report["settings"]} >= {"RINGDP_AUTOLOAD", "RINGDP_LOG", "RINGDP_CUDA"}
    assert report["instruction_set"]
