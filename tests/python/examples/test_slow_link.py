"""slow_link: two trainings over wall time, on hosts that are far apart and on this one; its table and picture."""

from __future__ import annotations

import json
import math
import sys

import pytest
from ringdp.examples import slow_link
from ringdp.examples.over_time import Run, run_of
from ringdp.tools.netns.far import why_not_far

MODULE = "ringdp.examples.slow_link"
SHORT = ("--steps", "8", "--every", "4", "--fragments", "2", "--delay", "1")
LINK = {"bandwidth": 100e6 / 8, "rtt": 0.05}


def run_that(losses: dict[int, float], step_s: float, step_bytes: int) -> dict:
    return vars(Run(losses, [step_s * n for n in range(9)], [step_bytes * n for n in range(9)], 1))


REPORT = {
    "ranks": 2,
    "parameters": 834432,
    "loopback": False,
    "link": LINK,
    "systems": {
        "DDP": run_that({0: 5.5, 4: 3.0, 8: 2.0}, 0.5, 3_000_000),
        "DiLoCo": run_that({0: 5.5, 4: 3.5, 8: 2.5}, 0.1, 0),
    },
}


def test_the_table_is_at_a_loss_that_both_have_reached():
    lines = slow_link.render(REPORT).splitlines()
    assert lines[0] == "2 hosts at 100 Mb/s, 50 ms apart; a GPT of 834,432 parameters"
    cells = {line[:26].strip(): line[26:].split("  ") for line in lines[1:]}
    found = {name: [cell.strip() for cell in row if cell.strip()] for name, row in cells.items()}
    assert found[""] == ["DDP", "DiLoCo"]
    assert found["a step"] == ["500 ms", "100 ms"]
    assert found["sent by rank 0 in a step"] == ["3.00 MB", "nothing"]
    assert found["held-out loss after them"] == ["2.0000", "2.5000"]
    assert found["at a loss of 2.5000 after"] == ["4.00 s", "800 ms"]
    here = slow_link.render({**REPORT, "link": None, "loopback": True})
    assert here.startswith("2 ranks, without a link of this program between them; ") and "sent" not in here


def test_a_run_is_as_slow_as_its_slowest_rank():
    first = {"seconds": [0.0, 1.0, 3.0], "sent": [0, 5, 9], "losses": {"0": 5.0}, "period": 1}
    run = run_of([first, {**first, "seconds": [0.0, 2.0, 2.5], "sent": [0, 1, 1], "losses": {"2": 4.0}}])
    assert (run.seconds, run.sent, run.losses) == ([0.0, 2.0, 3.0], [0, 5, 9], {0: 5.0, 2: 4.0})
    assert run.curve == [(0.0, 5.0), (3.0, 4.0)] and run.last_loss == 4.0
    assert (run.time_to(4.5), run.time_to(3.0)) == (3.0, math.inf)


def test_on_this_host_both_are_trained(on_two_ranks):
    report = on_two_ranks(MODULE, "--loopback", *SHORT)
    assert report["link"] is None and list(report["systems"]) == ["DDP", "DiLoCo"]
    for run in report["systems"].values():
        copies = ["0", "6"] if run["period"] == 2 else ["0", "5"]  # whole periods
        assert len(run["seconds"]) == 9 and sorted(run["losses"]) == copies
        first, last = (run["losses"][step] for step in copies)
        assert last < first
    starts = {run["losses"]["0"] for run in report["systems"].values()}
    assert len(starts) == 1


def test_the_picture_has_both(tmp_path):
    pytest.importorskip("matplotlib")
    slow_link.draw(REPORT, tmp_path / "r.png")
    assert (tmp_path / "r.png").stat().st_size > 10_000


def test_the_line_moves_in_a_terminal_only(capsys, monkeypatch):
    line = slow_link.ProgressLine("DDP", 20)
    line.show(5, 1.5, 3.25)
    line.end()
    said = capsys.readouterr().err
    assert said.startswith("DDP     step  5 of 20     1.5 s  loss 3.2500  ") and said.endswith(" s left\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    line = slow_link.ProgressLine("DDP", 20)
    line.show(5, 1.5, 3.25)
    line.show(10, 3.0, 3.0)
    line.end()
    said = capsys.readouterr().err
    assert said.count("\r") == 2 and said.count("\n") == 1


@pytest.fixture
def refused(monkeypatch, capsys):
    """What is said before ranks start."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def refuse(*arguments: str) -> str:
        assert slow_link.main(arguments) == 2
        return capsys.readouterr().err

    return refuse


def test_without_root_the_loopback_is_offered(refused, monkeypatch):
    monkeypatch.setattr(slow_link, "why_not_far", lambda: "several hosts need root, to make network namespaces")
    said = refused()
    assert "slow_link: several hosts need root" in said and "--loopback trains on this host instead" in said


def test_what_does_not_fit_is_said_before_ranks_start(refused, monkeypatch, tmp_path):
    monkeypatch.setattr(slow_link, "why_not_far", lambda: "")
    assert "delay=20 with every=20" in refused("--delay", "20")
    assert "two rounds of --every 20" in refused("--steps", "30")
    assert "--nproc is 17" in refused("--nproc", "17")
    for place in ([], ["--loopback"]):
        assert f"there is no folder {tmp_path}/none" in refused(*place, "--plot", f"{tmp_path}/none/r.png")
    assert "leave them out with --loopback" in refused("--loopback", "--rtt", "20ms")
    monkeypatch.setattr(slow_link.importlib.util, "find_spec", lambda name: None)
    assert "--plot needs matplotlib: pip install matplotlib" in refused("--plot", f"{tmp_path}/r.png")


@pytest.mark.parametrize("given", [["--bandwidth", "100"], ["--rtt", "50"]])
def test_a_link_has_units(given, capsys):
    with pytest.raises(SystemExit) as ended:
        slow_link.main(given)
    assert ended.value.code == 2 and given[0] in capsys.readouterr().err


@pytest.mark.long
def test_over_a_slow_link_diloco_sends_less_and_is_sooner_done(run_python):
    if reason := why_not_far():
        pytest.skip(reason)
    done = run_python("-m", MODULE, *SHORT, "--bandwidth", "20Mb/s", "--rtt", "40ms", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    ddp, local = (Run(**run) for run in report["systems"].values())
    assert report["link"] == {"bandwidth": 2.5e6, "rtt": 0.04}
    # An all-reduce of float32 gradients in every step; the same in four. TCP sends again what the link has dropped.
    assert 1 <= ddp.per_step(ddp.sent) / (4 * report["parameters"]) < 1.5
    assert local.per_step(local.sent) == pytest.approx(report["parameters"], rel=0.3)
    assert local.seconds[-1] < ddp.seconds[-1]
    assert "DiLoCo  step 6 of 8" in done.stderr
