"""The report: a function of outcomes, as JSON and as Markdown. It is written after every part, so it is always true."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devices.findings import BAD, CUT_OFF, SKIPPED

from .claims import CLAIMS, VERDICTS, verdict_of
from .runner import Outcome

JSON, MARKDOWN, SPEED = "report.json", "report.md", "gpu.json"
SHOWN_CHARACTERS = 4000  # of what a finding or a part has to say; all of it is in report.json
DEVICE_CODE = ("base", "device", "kernels", "plan")  # folders of csrc: devices' code, and what it is made of
SOURCES = {".cc", ".cu", ".h"}


def digest_of_device_code() -> str:
    """Of the sources in DEVICE_CODE: a report is of these and no others."""
    root = Path(__file__).resolve().parents[2] / "csrc"
    digest = hashlib.sha256()
    for path in sorted(path for name in DEVICE_CODE for path in (root / name).rglob("*") if path.suffix in SOURCES):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def as_json(outcomes: Sequence[Outcome], out: Path) -> dict[str, Any]:
    """Outcomes, verdicts on claims, and rows of the benchmark where there are any."""
    claims = [{"page": c.page, "claim": c.text, "verdict": verdict_of(c, outcomes), "by": c.parts} for c in CLAIMS]
    rows = out / SPEED
    return {
        "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "device_code": digest_of_device_code(),
        "claims": claims,
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "speed": json.loads(rows.read_text()) if rows.exists() else None,
    }


def outcomes_in(report: Path) -> list[Outcome]:
    """Those of a report from before; none where there is none."""
    return [Outcome.of(one) for one in json.loads(report.read_text())["outcomes"]] if report.exists() else []


def is_of_this_code(report: Path) -> bool:
    """Whether there is one, and no device code has changed since."""
    return report.exists() and json.loads(report.read_text()).get("device_code") == digest_of_device_code()


def write(outcomes: Sequence[Outcome], out: Path) -> None:
    """Replaces both files, each at once."""
    result = as_json(outcomes, out)
    for name, text in ((JSON, json.dumps(result, indent=1) + "\n"), (MARKDOWN, markdown(result))):
        fresh = out / f"{name}.new"
        fresh.write_text(text)
        os.replace(fresh, out / name)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of Markdown; bars in cells are masked."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def markdown(result: dict[str, Any]) -> str:
    """The report for people: verdicts first, then what was measured, then what did not pass."""
    outcomes = [Outcome.of(one) for one in result["outcomes"]]
    claims = result["claims"]
    numbers = [f"{sum(one['verdict'] == verdict for one in claims)} {verdict}" for verdict in VERDICTS]
    parts = [
        [
            one.part,
            one.verdict,
            f"{one.seconds:.0f} s",
            ", ".join(f"{number} {verdict}" for verdict, number in one.counts().items()),
            first_line(one.why),
        ]
        for one in outcomes
    ]
    rows = [[one["claim"], one["page"], one["verdict"], ", ".join(one["by"]) or "no part"] for one in claims]
    return "\n".join(
        [
            f"# gpu-check, {result['written']}\n",
            f"Of {len(claims)} claims about devices: {', '.join(numbers)}.",
            f"Digest of csrc/{{{','.join(DEVICE_CODE)}}}: {result['device_code']}.\n",
            table(["claim", "page", "verdict", "shown by"], rows),
            "## Parts\n",
            table(["part", "verdict", "time", "findings", "why"], parts),
            *facts(outcomes),
            *speed(result["speed"]),
            *skipped(outcomes),
            *failures(outcomes),
        ]
    )


def first_line(text: str) -> str:
    """Short enough for a table."""
    return text.partition("\n")[0][:200]


def facts(outcomes: Sequence[Outcome]) -> list[str]:
    """What was measured."""
    known = [one for outcome in outcomes for one in outcome.findings if one.facts]
    rows = [[one.name, name, value] for one in known for name, value in one.facts.items()]
    return ["## Facts\n", table(["finding", "fact", "value"], rows)] if rows else []


def speed(result: dict[str, Any] | None) -> list[str]:
    """The benchmark's rows and bars."""
    if not result or not result["rows"]:
        return []
    header = ["operation", "ranks", "bytes", "candidate", "us", "GB/s", "of the roofline", "wrong"]
    rows = [
        [
            row["op"],
            row["ranks"],
            row["size"],
            row["candidate"],
            f"{row['microseconds']:.1f}",
            f"{row['GB/s of the device']:.1f}",
            f"{row['x']['roofline']:.2f}" if "roofline" in row["x"] else "-",
            row["wrong"],
        ]
        for row in result["rows"]
    ]
    bars = [
        [bar["what"], f"{bar['measured']:.2f}", f"{bar['least']:g}", "yes" if bar["held"] else "no"]
        for bar in result.get("bars", ())  # written at the end alone
    ]
    left_out = [[name, why] for name, why in result["left_out"].items()]
    text = ["## Speed\n", table(header, rows)]
    if bars:
        text.append(table(["bar", "measured", "at least", "held"], bars))
    if left_out:
        text.append(table(["left out", "why"], left_out))
    return text


def skipped(outcomes: Sequence[Outcome]) -> list[str]:
    """What was not tried, and why."""
    rows = [
        [one.part, one.name, first_line(one.text)] for o in outcomes for one in o.findings if one.verdict == SKIPPED
    ]
    return ["## What was skipped\n", table(["part", "finding", "why"], rows)] if rows else []


def failures(outcomes: Sequence[Outcome]) -> list[str]:
    """Findings and parts that did not pass, in their own words."""
    text = []
    for outcome in outcomes:
        bad = [one for one in outcome.findings if one.verdict in (*BAD, CUT_OFF)]
        text += [_quoted(f"{outcome.part}: {one.name}: {one.verdict}", one.text) for one in bad]
        if outcome.said and not any(one.text for one in bad):
            text.append(_quoted(f"{outcome.part}: {outcome.verdict}", outcome.said))
    return ["## What failed\n", *text] if text else []


def _quoted(title: str, text: str) -> str:
    fence = "````"  # texts of pytest have no four in a row
    return f"### {title}\n\n{fence}\n{text[-SHOWN_CHARACTERS:]}\n{fence}\n"
