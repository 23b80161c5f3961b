"""The command line: defaults, --quick below explicit values, and bad values named."""

from __future__ import annotations

from pathlib import Path

import pytest
from ringdp.examples.options import QUICK, parse


def test_the_default_run_trains_over_ringdp_on_the_standard_library():
    options = parse([])
    assert options.backend == "ringdp"
    assert (options.corpus / "argparse.py").is_file()
    assert options.last_step == options.steps


def test_quick_changes_defaults_only():
    options = parse(["--quick", "--steps", "7"])
    assert options.steps == 7
    assert options.dim == QUICK["dim"] != parse([]).dim


def test_stop_at_ends_early_but_never_late():
    assert parse(["--steps", "9", "--stop-at", "4"]).last_step == 4
    assert parse(["--steps", "9", "--stop-at", "40"]).last_step == 9


def test_paths_and_dashes():
    options = parse(["--out", "a/b", "--save-every", "3"])
    assert options.out == Path("a/b")
    assert options.save_every == 3


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (["--steps", "0"], "--steps is 0, must be above 0"),
        (["--ddp", "horovod"], "--ddp is 'horovod', must be one of ringdp, stock"),
        (["--batch", "-2"], "--batch is -2, must be above 0"),
        (["--lr", "nan"], "--lr is nan"),
        (["--clip", "-1"], "--clip is -1.0, must be at least 0"),
        (["--save-every", "-1"], "--save-every is -1"),
        (["--nproc", "9"], "--nproc is 9, must be 1..8"),
        (["--nproc", "0"], "--nproc is 0, must be 1..8"),
        (["--zero-stage", "4"], "--zero-stage is 4, must be one of 0, 1, 2, 3"),
        (["--zero-stage", "2", "--ddp", "stock"], "--zero-stage is 2, which needs --ddp ringdp"),
        (["--stop-at", "0"], "--stop-at is 0"),
        (["--heads", "3"], "--heads is 3, which does not divide --dim 256"),
        (["--dropout", "1"], "--dropout is 1.0, must be below 1"),
        (["--corpus", "/no/such/folder"], "/no/such/folder, which is not a folder"),
        (["--step", "3"], "unrecognized arguments: --step"),
    ],
)
def test_bad_values_are_named(bad, named, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(bad)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err
