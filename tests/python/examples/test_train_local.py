"""train_local: workers on two ranks, and the process that plays them all."""

from __future__ import annotations

import argparse

import pytest
from ringdp.examples import train_local

MODULE = "ringdp.examples.train_local"
SHORT = ("--steps", "4", "--every", "2", "--workers", "3")


def test_it_ends_with_the_bits_of_one_process(on_two_ranks):
    report = on_two_ranks(MODULE, *SHORT, "--fragments", "2", "--delay", "1", "--compress", "int8")
    assert report["equal"] and report["ranks"] == 2
    assert len(report["losses"]) == 2
    before, after = report["held_out"]
    assert after < before
    # Every second step, as codes of 1 + 4 / 256 bytes instead of 4; rank 0 plays one worker.
    assert report["bytes_per_step_of_ddp"] / report["bytes_per_step"] == pytest.approx(2 * 4 / (1 + 4 / 256), rel=0.01)
    text = train_local.render(report)
    assert text.startswith("3 workers on 2 ranks\n") and text.endswith("bits of one process         yes")
    assert "times less than DDP's 482.30 kB" in text
    assert train_local.render({**report, "equal": False}).endswith("NO")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workers", "1"], "workers=1 on 2 ranks"),
        (["--delay", "10"], "delay=10 with every=10"),
        (["--fragments", "11"], "fragments=11 with every=10"),
    ],
)
def test_what_does_not_fit_is_said_before_ranks_start(arguments, said, capsys, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert train_local.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_other_bits_are_an_exit_status(monkeypatch):
    def on_ranks(module: str, options: argparse.Namespace, work, *_: object) -> int:
        return 0 if work() else 1

    monkeypatch.setattr(train_local.launch, "on_ranks", on_ranks)
    monkeypatch.setattr(train_local, "work", lambda options: {"equal": False})
    assert train_local.main([]) == 1
    monkeypatch.setattr(train_local, "work", lambda options: {"equal": True})
    assert train_local.main([]) == 0
