"""The script in the README runs as it stands; with the two lines for ZeRO its ranks end with the same bits."""

from __future__ import annotations

import contextlib
import io
import os
import re
from importlib import metadata

import pytest
from pages import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SCRIPT = next(text for language, text in BLOCKS if language == "python")
DIFFS = [text for language, text in BLOCKS if language == "diff"]
CALLS = re.findall(r"`(ringdp\.checkpoint\.load\(.*?\))`", README)
JOIN, LEAVE = 'dist.init_process_group("ringdp")\n', "dist.destroy_process_group()\n"


def changed(script: str, diff: str) -> str:
    """`script` with the lines of `diff` instead of those that it takes away, which must follow one another."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line.startswith("-"))
    after = "".join(line[1:] for line in lines if line.startswith("+"))
    assert script.count(before) == 1, f"the script does not have\n{before}"
    return script.replace(before, after)


def played(folder: str, script: str, call: str) -> tuple[str, bool]:
    """On a rank: what the script prints in `folder`; whether the call after it gives the latest epoch."""
    printed, names, here = io.StringIO(), {}, os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(script, "README.md", "exec"), names)
            loaded = eval(call, names)
    finally:
        os.chdir(here)
    return printed.getvalue().partition(": ")[2], loaded.extra == {"epoch": 1}


def test_the_script_runs_with_and_without_shards(pair, tmp_path):
    in_the_group = changed(changed(SCRIPT, f"-{JOIN}"), f"-{LEAVE}")
    (call,) = CALLS
    hashes = set()
    for name, script in (("whole", in_the_group), ("sharded", changed(in_the_group, DIFFS[-1]))):
        folder = tmp_path / name
        folder.mkdir()
        for printed, has_extra in pair.run(played, str(folder), script, call):
            assert has_extra
            hashes.add(printed)
    assert len(hashes) == 1
    assert re.fullmatch(r"[0-9a-f]{64}\n", hashes.pop())


def test_the_script_runs_under_torchrun(run_warm, tmp_path):
    if not any(point.name == "ringdp" for point in metadata.entry_points(group="torch.backends")):
        pytest.skip("ringdp is not installed here, so torch cannot find its entry point")
    script = tmp_path / "train.py"
    script.write_text(f"import os\n\nos.chdir({str(tmp_path)!r})\n{SCRIPT}")
    result = run_warm("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script))
    assert result.returncode == 0, result.stderr
    first, second = sorted(result.stdout.splitlines())
    assert first.startswith("rank 0: ")
    assert second == first.replace("rank 0", "rank 1")


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 160
