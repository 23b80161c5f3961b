"""Every snippet of docs/ runs and prints what stands below it; every command is one that ringdp understands.

The script in the README runs as it stands; with the two lines for ZeRO its ranks end with the same bits.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable
from importlib import metadata

import pytest
import shell_lines
from pages import ROOT, Block, all_blocks, blocks_of, normal, preamble
from ranks import World

LIMIT_S = 60.0
BLOCKS = all_blocks()
SNIPPETS = [block for block in BLOCKS if block.language == "python"]
COMMANDS = [(block, line) for block in BLOCKS if block.language == "sh" for line in shell_lines.commands_of(block.text)]


def play(before: str, code: str, name: str) -> tuple[str, bool]:
    """On a rank: what a snippet prints, with the error it ends with, if any; whether it ended with one."""
    printed = io.StringIO()
    names: dict[str, object] = {"__name__": "snippet"}
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(before, "preamble", "exec"), names)
            exec(compile(code, name, "exec"), names)
    except Exception as error:
        return f"{printed.getvalue()}{type(error).__name__}: {error}", True
    return printed.getvalue(), False


def check(block: Block, world: World) -> None:
    """Runs a snippet on all ranks and compares; a rank of which nothing is shown may end with rank 0's error only."""
    world.begin(play, preamble(), block.text, str(block))
    for rank in range(world.size):
        shown = [output for output in block.outputs if output.number("rank", 0) == rank]
        if "fresh" in block.words and rank and not shown:
            continue  # it may be gone
        outcome = world.finish([rank], LIMIT_S)[0]
        assert not outcome.error, outcome.trace
        printed, failed = outcome.value
        wanted = {normal(output.text) for output in (shown or block.outputs) if "stderr" not in output.words}
        if shown or failed or rank == 0:
            assert normal(printed) in (wanted or {""}), f"rank {rank} printed\n{printed}"
        for output in (output for output in shown if "stderr" in output.words):
            written = normal(world.stderr(rank))
            assert all(line in written for line in normal(output.text).splitlines()), written


@pytest.mark.parametrize("block", SNIPPETS, ids=str)
def test_a_snippet_prints_what_is_below_it(
    block: Block, world_of: Callable[..., World], run_on_fresh_ranks: Callable[..., World]
):
    if block.missing:
        pytest.skip(f"{block.missing} is not installed")
    ranks = block.number("ranks", 1)
    if "fresh" not in block.words:
        check(block, world_of(ranks))
        return
    world = run_on_fresh_ranks(ranks, **block.settings)
    world.join(block.number("timeout", 60))
    check(block, world)


@pytest.mark.parametrize(("block", "line"), COMMANDS, ids=lambda value: str(value))
def test_a_command_is_understood(block: Block, line: str):
    assert shell_lines.problem(line) is None


def block_of(text: str) -> Block:
    return next(blocks_of("page.md", text))


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1)\n```\n```output\n2\n```\n",
        "```python\nprint(1)\n```\n",
        "```python\n1 / 0\n```\n",
        "```python\n1 / 0\n```\n```output\nZeroDivisionError: by one\n```\n",
        "```python ranks=2\nif rank == 1:\n    raise ValueError\n```\n",
        "```python ranks=2\nprint(rank)\n```\n```output\n0\n```\n```output rank=1\n2\n```\n",
    ],
)
def test_a_wrong_snippet_is_caught(text, world_of):
    block = block_of(text)
    with pytest.raises(AssertionError):
        check(block, world_of(block.number("ranks", 1)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```python\nx\n", "is not closed"),
        ("```bash\nls\n```\n", "not checked by any test"),
        ("```output\n1\n```\n", "output of no snippet"),
    ],
)
def test_a_page_that_cannot_be_checked_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        list(blocks_of("page.md", text))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ringdp fly", "invalid choice"),
        ("ringdp ring --wings 2", "unrecognized arguments"),
        ("torchrun --nproc-per-node 2 -m ringdp.examples.nothing", "No module named"),
        ("torchrun --nproc-per-node 2 -m ringdp.examples.replicas --how fast", "invalid choice"),
        ("torchrun --nproc-per-nod 2 other.py", "there is no other.py"),
        ("python -m ringdp.examples.train_gpt --ddp none", "must be one of"),
        ("python benchmarks/gone.py", "there is no benchmarks/gone.py"),
        ("python benchmarks/collectives.py --fly", "has no --fly"),
        ("make coffee", "the Makefile has no coffee"),
        ("make demo SUGAR=1", "the Makefile has no SUGAR"),
        ("RINGDP_ORDER=random ringdp info", "invalid value 'random' for order"),
        ("RINGDP_NOTHING=1 ringdp info", "RINGDP_NOTHING is no setting"),
        ("rm -r x", "'rm' is none of"),
    ],
)
def test_a_wrong_command_is_caught(line, said):
    assert said in (shell_lines.problem(line) or "")


def test_messages_of_two_runs_are_equal():
    one = "rank 0 gave up: rank 0 called a(x), rank 1 called b(y). rank 1 (pid 12 on host-1) waited 1.5 s"
    two = "rank 1 called b(y), rank 0 called a(x). rank 1 (pid 345 on other) waited 22.0 s"
    assert normal(one) == normal(two)
    assert normal(one) != normal(two.replace("b(y)", "b(z)"))


README = (ROOT / "README.md").read_text()
README_BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SCRIPT = next(text for language, text in README_BLOCKS if language == "python")
DIFFS = [text for language, text in README_BLOCKS if language == "diff"]
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


@pytest.mark.long
def test_the_script_runs_under_torchrun(run_warm, tmp_path):
    if not any(point.name == "ringdp" for point in metadata.entry_points(group="torch.backends")):
        pytest.skip("ringdp is not installed here, so torch cannot find its entry point")
    script = tmp_path / "train.py"
    script.write_text(f"import os\n\nos.chdir({str(tmp_path)!r})\n{SCRIPT}")
    result = run_warm("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script))
    assert result.returncode == 0, result.stderr
    printed = dict(re.findall(r"rank (\d): ([0-9a-f]{64})", result.stdout))  # two ranks may write into one line
    assert set(printed) == {"0", "1"}
    assert printed["0"] == printed["1"]


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 160
