"""`ringdp info [--all | --json]`: what this ringdp was built for, what it finds, and the settings in force."""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sys
import textwrap
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import ringdp
from ringdp import _native
from ringdp.text.units import counted
from ringdp.tools.tune import cache


def probe_shm() -> tuple[bool, str]:
    """Whether memory can be shared between processes: an anonymous, sealable memory file that can be sized."""
    try:
        fd = os.memfd_create("ringdp-probe", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    except (AttributeError, OSError) as error:
        return False, f"memfd_create does not work here: {error}"
    try:
        os.ftruncate(fd, 1 << 16)
        os.posix_fallocate(fd, 0, 1 << 16)
    except OSError as error:
        return False, f"shared memory cannot be sized: {error}"
    finally:
        os.close(fd)
    return True, "memfd works; used between ranks of one host that can map each other's memory"


def probe_tcp() -> tuple[bool, str]:
    """Whether there is an interface to bind to."""
    try:
        names = [name for _, name in socket.if_nameindex()]
    except OSError as error:
        return False, f"interfaces cannot be listed: {error}"
    if not names:
        return False, "this machine has no network interface"
    return True, f"interfaces {', '.join(names)}; used between hosts"


_PROBES: dict[str, Callable[[], tuple[bool, str]]] = {"shm": probe_shm, "tcp": probe_tcp}


def transports(choice: str) -> list[dict[str, object]]:
    """One row (name, available, why) per transport; `choice` is the setting `transport` in force."""
    rows: list[dict[str, object]] = []
    for name, probe in _PROBES.items():
        available, why = probe()
        if choice not in ("auto", name):
            available, why = False, f"off: transport={choice} is forced"
        rows.append({"name": name, "available": available, "why": why})
    return rows


def add_command(commands: Any) -> None:
    """Adds `info` to argparse's sub-commands."""
    command = commands.add_parser(
        "info", help="what was built, what is found, which settings are in force", epilog="example: ringdp info --all"
    )
    shown = command.add_mutually_exclusive_group()
    shown.add_argument("--all", action="store_true", help="every setting, its value and its meaning; wide lines")
    shown.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def _found() -> dict[str, str | None]:
    """The versions here. torch's comes from its metadata, so that a torch that cannot be imported is named too."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = None
    return {"torch": torch, "python": platform.python_version()}


def collect() -> dict[str, Any]:
    """Everything `ringdp info` prints.

    `error` is None, or why the extension cannot be used; then what only the extension knows (instruction_set,
    transports, cuda, settings) is empty.
    """
    report: dict[str, Any] = {
        "ringdp": ringdp.__version__,
        "built_for": _native.built_for(),
        "found": _found(),
        "instruction_set": None,
        "transports": [],
        "cuda": None,
        "settings": [],
        "error": None,
    }
    try:
        core = _native.load()
    except ImportError as error:
        report["error"] = str(error)
        return report
    report["instruction_set"] = core.instruction_set()
    report["settings"] = cache.in_force(core.setting_table())
    choice = next(row["value"] for row in report["settings"] if row["field"] == "transport")
    report["transports"] = transports(choice)
    report["cuda"] = core.gpu_report()
    return report


def _version(nccl: int) -> str:
    """22809 as 2.28.9, the way NCCL writes it since 2.9."""
    return f"{nccl // 10000}.{nccl % 10000 // 100}.{nccl % 100}" if nccl else "none"


_DEVICE_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))  # of NVIDIA's driver, and of its way through WSL


def _why_no_device(said: str) -> str:
    """What CUDA says of a machine without a GPU is about its driver."""
    if any(file.exists() for file in _DEVICE_FILES):
        return said
    return f"none: this machine has no NVIDIA GPU, or shows none here (there is no {_DEVICE_FILES[0]})"


def _device(device: dict[str, Any]) -> str:
    facts = f"{device['multiprocessors']} multiprocessors, {device['memory_bytes'] >> 30} GiB"
    return f"{device['name']}, sm_{device['architecture'].replace('.', '')}, {facts}"


def _cuda_lines(built_with: str | None, cuda: dict[str, Any]) -> list[str]:
    if cuda["library"] is None:
        return [f"CUDA part        not built or not found: {cuda['why_none']}"]
    lines = [f"CUDA part        {cuda['library']}" + (f", of CUDA {built_with}" if built_with else "")]
    lines.append(f"  NCCL           {_version(cuda['nccl'])}")
    if cuda["why_none"]:
        lines.append(f"  devices        {_why_no_device(cuda['why_none'])}")
    for number, device in enumerate(cuda["devices"]):
        waits = "can" if device["waits_on_streams"] else "cannot"
        lines.append(f"  device {number:<7} {_device(device)}")
        lines.append(f"                 {waits} wait on streams; shares memory by descriptor: {device['shares_fds']}")
    if cuda["devices"]:
        lines.append(
            "  collectives    run on devices whose memory all ranks share (one host, at most 8), else on the host;"
        )
        lines.append("                 a backend's describe() says which of a group and why")
    return lines + [f"  kernels        {line}" for line in cuda["kernels"].splitlines()]


def _setting_lines(settings: list[dict[str, str]]) -> list[str]:
    lines = [
        "settings in force (a call wins over ringdp.Options, Options over the environment, that over tuned values)"
    ]
    for row in settings:
        name = row["variable"] + (f" ({row['field']})" if row["field"] else "")
        value = f"{row['value'] or '-'} [{row['source']}]"
        lines.append(f"  {name:<40} {value:<24} {row['help']}; accepts {row['accepts']}")
    return lines


def _head(report: dict[str, Any]) -> list[str]:
    built, found = report["built_for"], report["found"]
    lines = [f"ringdp           {report['ringdp']}"]
    if built:
        lines.append(f"built for        torch {built['torch']}, Python {built['python']}")
        lines.append(f"built by         {built['compiler']}, {built['date']}")
    lines.append(f"found            torch {found['torch'] or 'none'}, Python {found['python']}")
    if report["error"]:
        return [*lines, f"cannot run       {report['error']}"]
    lines.append(f"instruction set  {report['instruction_set']}")
    lines.append("transports")
    for row in report["transports"]:
        lines.append(f"  {row['name']:<14} {'yes' if row['available'] else 'no'}: {row['why']}")
    return lines


def render(report: dict[str, Any]) -> str:
    """The whole report as text for a person."""
    if report["error"]:
        return "\n".join(_head(report))
    cuda = _cuda_lines(report["built_for"].get("cuda"), report["cuda"])
    return "\n".join([*_head(report), *cuda, *_setting_lines(report["settings"])])


_WIDTH, _INDENT = 80, 17


def summary(report: dict[str, Any]) -> str:
    """What fits a terminal: devices in a line each, and the settings that are not at their defaults."""
    lines = _head(report)
    if not report["error"]:
        cuda = report["cuda"]
        devices = [_device(device) for device in cuda["devices"]] or [_why_no_device(cuda["why_none"] or "none")]
        none = f"not built or not found: {cuda['why_none']}"
        lines += [f"CUDA devices     {text}" for text in (devices if cuda["library"] else [none])]
        changed = [row for row in report["settings"] if row["source"] != "default"]
        lines += [f"setting          {row['variable']}={row['value']} ({row['source']})" for row in changed]
        others = counted(len(report["settings"]) - len(changed), "setting")
        lines.append(f"settings         {others} as by default: ringdp info --all lists every one")
    return "\n".join(part for line in lines for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, subsequent_indent=" " * _INDENT)


def run(options: argparse.Namespace) -> int:
    """Prints the report; 1 when the extension cannot be used."""
    report = collect()
    text = render if options.all else summary
    print(json.dumps(report, indent=2) if options.json else text(report))
    if report["error"] and options.json:
        print(report["error"], file=sys.stderr)
    return 1 if report["error"] else 0
