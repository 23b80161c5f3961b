"""Python's parsers of files that others have written, as targets: real files to begin with, and what may come of one.

A target takes a file's bytes as a user's command or call would, and lets out what is a finding: any exception but the
error that is named there. `mended` puts hashes right, so that changes get past them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

for helpers in ("observe", "pages", "planner", "feed"):
    sys.path.append(str(Path(__file__).resolve().parent.parent / "python/tools" / helpers))

import example_run  # noqa: E402
import invented  # noqa: E402
import made_up  # noqa: E402
import play  # noqa: E402
import torch  # noqa: E402
from ringdp import checkpoint  # noqa: E402
from ringdp.checkpoint.blocks import INDEX  # noqa: E402
from ringdp.checkpoint.manifest import FILE  # noqa: E402
from ringdp.checkpoint.piece import CheckpointError  # noqa: E402
from ringdp.cli import main as command_line  # noqa: E402
from ringdp.elastic import Leaves  # noqa: E402
from ringdp.tools.planner.local_ranks import ProbeJob  # noqa: E402
from ringdp.tools.planner.prediction import calibrated  # noqa: E402
from ringdp.tools.tune import cache  # noqa: E402
from ringdp.tools.watch.figures import Row, packed  # noqa: E402
from ringdp.tools.watch.judge import Judge  # noqa: E402
from ringdp.tools.watch.reports import Report  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

Mend = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Target:
    """`take` gives what was said of a file; `modules`: whose lines are counted."""

    name: str
    seeds: list[bytes]
    take: Callable[[bytes], str]
    modules: tuple[str, ...]
    mended: Mend = lambda content, choose: content


def _command(*arguments: object) -> str:
    """Runs `ringdp ...` and gives what it says on stderr: nothing, or the one line by which it refuses."""
    said, complaint = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complaint):
        try:
            status = command_line.main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = end.code
    if status not in (0, 1, 2) or (status == 2 and len(complaint.getvalue().splitlines()) != 1):
        raise AssertionError(f"status {status}: {complaint.getvalue()[-1000:]!r}")
    return complaint.getvalue()


def _trace(folder: Path) -> Target:
    dumps = made_up.Run(ranks=2, steps=3, full=lambda rank, peer: 1.0).dumps()
    seeds = [made_up.as_file(dump, folder).read_bytes() for dump in dumps]
    output = folder / "trace.json"

    def take(content: bytes) -> str:
        (folder / "rank_0").write_bytes(content)
        return _command("trace", folder, "-o", output) + _command("blame", folder)

    return Target("trace", seeds[:1], take, ("tools.observe",))


def _run(folder: Path) -> Target:
    file, page = folder / "run.json", folder / "run.html"

    def take(content: bytes) -> str:
        file.write_bytes(content)
        return _command("report", file, "--html", page) + _command("report", file, "--json")

    seeds = [json.dumps(made()).encode() for made in (example_run.run, example_run.plain_run)]
    return Target("run", seeds, take, ("tools.pages",))


def _records(folder: Path) -> Target:
    def draw(rank: int) -> None:
        play.epochs_of(play.sharded(play.numbered(32), rank, 2), epochs=2, told=False)
        leaves = Leaves(32, micro_batch=3, micro_batches=4, remainder="carry", rank=rank, ranks=2)
        play.epochs_of(DataLoader(play.numbered(32), batch_sampler=leaves))

    leaf_rows = [
        {"kind": "leaves", "number": 0, "dataset_len": 32, "micro_batch": 3, "micro_batches": 4, "seed": 0}
        | {"remainder": "carry"},
        {"kind": "leaf_step", "step": 0, "of": 4, "leaves": [[0, 0, [0, 0, 0, 0, True]], [1, 0, None]]},
        {"kind": "leaf_step", "step": None, "of": 4, "leaves": []},
    ]
    head = {"kind": "rank", "world": 2, "restart": 0, "pid": 7, "host": "here", "time": 1.0}
    seeds = []
    for rank, rows in play.played(draw, 2).items():
        lines = [{**head, "rank": rank}, *rows, *leaf_rows]
        seeds.append("".join(json.dumps(line, default=str) + "\n" for line in lines).encode())
    (folder / "rank1-0-8.jsonl").write_bytes(seeds[1])

    def take(content: bytes) -> str:
        (folder / "rank0-0-7.jsonl").write_bytes(content)
        return _command("audit", "--records", folder)

    return Target("records", seeds[:1], take, ("tools.attach", "tools.feed"))


def _plan(folder: Path) -> Target:
    def take(content: bytes) -> str:
        file = folder / ("plan.json" if content[:1] == b"{" else "plan.toml")
        file.write_bytes(content)
        return _command("plan", "--file", file, "--json")

    batch = {"micro-batch": 2, "ranks": 8, "global-tokens": "4M"}
    tables = {"fit": {"params": "70B", "device-gb": 80}, "batch": batch}
    toml = "[batch]\n" + "".join(f'{key} = "{value}"\n' for key, value in batch.items())
    return Target("plan", [json.dumps(tables).encode(), toml.encode()], take, ("tools.planner",))


def _calibration(folder: Path) -> Target:
    file = folder / "calibration.json"
    calibrated([invented.report(2)] * 2, ProbeJob("mlp", 8, 2, ()), 2, 100e6).save(file)
    seed = file.read_bytes()

    def take(content: bytes) -> str:
        file.write_bytes(content)
        return _command("plan", "predict", "--calibration", file, "--json")

    return Target("calibration", [seed], take, ("tools.planner",))


def _tuned(folder: Path) -> Target:
    file = folder / "tuned.json"
    os.environ[cache.VARIABLE] = str(file)
    cache.save({"spin_us": 17, "slot_bytes_of_two": 8192})

    def take(content: bytes) -> str:
        file.write_bytes(content)
        cache._warned.clear()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            cache.load()
        return "".join(str(warning.message) for warning in said)

    return Target("tuned", [file.read_bytes()], take, ("tools.tune",))


def _report(_: Path) -> Target:
    seed = Report(7, packed([Row(5, 1, 0.25), Row(6, 2, 0.5, 0.125)]), [(5, 0, 1), (6, 0, 2)]).pack()

    def take(content: bytes) -> str:
        judge = Judge((0, 1), lambda block: "a block")
        try:
            report = Report.unpack(content)
            for rank in (0, 1):
                judge.add(rank, report.rows, report.sums)
        except ValueError as error:
            return str(error)
        return "".join(finding.seen for finding in judge.findings((0, 1)))

    return Target("report", [seed], take, ("tools.watch",))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _mended_manifest(content: bytes, choose: random.Random) -> bytes:
    """With the hashes of its content and of its tensors, mostly."""
    if choose.random() < 0.1:
        return content
    try:
        whole = json.loads(content)
        if choose.random() < 0.8:
            for tensor in whole["content"]["tensors"]:
                tensor["sha256"] = _sha256("".join(digest for *_, digest in tensor["pieces"]))
        whole["sha256"] = _sha256(json.dumps(whole["content"], sort_keys=True, separators=(",", ":")))
        return json.dumps(whole).encode()
    except Exception:  # no manifest any more
        return content


def _checkpoint(folder: Path, part: str) -> Target:
    """The target for a checkpoint whose file `part` is another one, with its length and hash in the manifest."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    extra = {"step": 3, "tuple": (1, 2.5), "tensor": torch.ones(2)}
    saved = checkpoint.save(folder, model, optimizer, extra=extra)
    file = saved / part if part != "shard" else next(saved.glob("*.distcp"))
    manifest = (saved / FILE).read_bytes()
    seed = file.read_bytes()

    def take(content: bytes) -> str:
        file.write_bytes(content)
        if part != FILE:
            whole = json.loads(manifest)
            whole["content"]["files"][file.name] = len(content)
            if part == INDEX:
                whole["content"]["index_sha256"] = hashlib.sha256(content).hexdigest()
            (saved / FILE).write_bytes(_mended_manifest(json.dumps(whole).encode(), random.Random(1)))
        try:
            checkpoint.read(saved)
            return ""
        except CheckpointError as error:
            return str(error)

    name = {FILE: "manifest", INDEX: "index"}.get(part, part)
    mended = _mended_manifest if part == FILE else Target.mended
    return Target(name, [seed], take, ("checkpoint",), mended)


MAKERS: dict[str, Callable[[Path], Target]] = {
    "manifest": lambda folder: _checkpoint(folder, FILE),
    "index": lambda folder: _checkpoint(folder, INDEX),
    "shard": lambda folder: _checkpoint(folder, "shard"),
    "trace": _trace,
    "run": _run,
    "records": _records,
    "plan": _plan,
    "calibration": _calibration,
    "tuned": _tuned,
    "report": _report,
}


@contextlib.contextmanager
def made(name: str) -> Iterator[Target]:
    """The target of this name, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix=f"ringdp-fuzz-{name}-") as folder, mock.patch.dict(os.environ):
        yield MAKERS[name](Path(folder))
