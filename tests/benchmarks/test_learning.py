"""Programs of benchmarks/ about what is learned, and how soon, with less communication: on tiny models."""

from __future__ import annotations

import argparse
from contextlib import suppress

import local_steps
import pytest
import quality
import time_to_loss
from programs import read, refusal, run
from runner.hosts import why_not_far

# benchmarks/time_to_loss.py: its arithmetic, bad input, and one run.


def run_that(losses: dict[int, float], step_s: float, step_bytes: int, period: int = 1) -> time_to_loss.Run:
    return time_to_loss.Run(losses, [step_s * n for n in range(9)], [step_bytes * n for n in range(9)], period)


def test_the_target_is_reached_by_the_first_copy_that_is_as_good():
    gloo = run_that({0: 5.0, 4: 3.0, 8: 2.0}, 1.0, 1000)
    local = run_that({0: 5.0, 3: 2.4, 6: 2.6}, 0.1, 100, period=3)
    never = run_that({0: 5.0, 8: 2.6}, 0.1, 255)
    rounds = [{"gloo": gloo, "diloco": local, "ringdp-int8": never}]
    rows = {row.system: row for row in time_to_loss.rows_of(rounds, 2.5, 0.1, 50)}
    assert (rows["gloo"].seconds, rows["gloo"].at_step, rows["gloo"].x_gloo) == (8.0, 8, 1.0)
    assert rows["diloco"].seconds == pytest.approx(0.3) and rows["diloco"].x_gloo == pytest.approx(8 / 0.3)
    assert (rows["ringdp-int8"].seconds, rows["ringdp-int8"].at_step, rows["ringdp-int8"].x_gloo) == (None, None, 0.0)
    assert rows["diloco"].of_gloo == pytest.approx(0.1) and rows["diloco"].last_loss == 2.6
    bars = time_to_loss.bars_of(rounds, list(rows.values()), 2.5)
    assert [bar.held for bar in bars] == [True, False, True], "bytes, int8 that never gets there, DiLoCo"


def test_bytes_are_those_of_whole_rounds_of_the_second_half():
    sent = [0, 0, 0, 6, 6, 6, 12, 12, 12]  # in every third step
    assert time_to_loss.Run({}, sent, sent, 3).per_step(sent) == 2


def test_bad_input_of_time_to_loss_is_refused():
    assert "'100': write bits per second" in refusal(time_to_loss.parse, "--rate", 100)
    assert "gloo must be one of them" in refusal(time_to_loss.parse, "--systems", "ringdp")
    assert "'nccl' is none of gloo," in refusal(time_to_loss.parse, "--systems", "nccl")
    assert "--target-step 200 is more than --steps 160" in refusal(time_to_loss.parse, "--target-step", 200)
    assert "--every is 4, must be above the delay" in refusal(time_to_loss.parse, "--every", 4)
    absent = ("--systems", "all", "--torchft-python", "/no/such/python")
    assert "--torchft-python /no/such/python: No such file" in refusal(time_to_loss.parse, *absent)


@pytest.mark.long
def test_loss_is_noted_over_time(tmp_path):
    if reason := why_not_far():
        pytest.skip(reason)
    out, picture = tmp_path / "r.json", tmp_path / "r.png"
    tiny = ("--layers", 1, "--dim", 32, "--context", 32, "--steps", 16, "--target-step", 4, "--note", 2, "--every", 6)
    systems = ("gloo", "ringdp-int8", "diloco")
    run("time_to_loss.py", *tiny, "--systems", ",".join(systems), "--rounds", 1, "--json", out, "--plot", picture)
    rows = {row["system"]: row for row in read(out)["rows"]}
    assert tuple(rows) == systems and picture.stat().st_size > 10_000
    assert rows["gloo"]["at_step"] == 4
    assert rows["gloo"]["last_loss"] == pytest.approx(rows["ringdp-int8"]["last_loss"], abs=0.05)
    assert rows["ringdp-int8"]["of_gloo"] < 0.35 and rows["diloco"]["of_gloo"] < 0.25
    assert all(row["curve"][-1][1] < row["curve"][0][1] for row in rows.values()), "loss falls"


# benchmarks/quality.py: a run of each part, its choice of rates, bad input.


def test_quality_takes_the_best_rate_and_compares_by_seed(monkeypatch):
    options, _ = two_seeds(monkeypatch)
    record = quality.Record(options, "", {})
    first, local = quality.rows_of(options, quality.Trainer(1, record, 11))
    assert (first.method, first.rate, first.losses, first.ratio) == ("ddp", 2e-3, [2.0, 4.0], 1.0)
    assert (local.rate, local.outer, local.losses) == (1e-3, "0.7:0.5", [2.0, 5.0])
    assert (local.least, local.ratio, local.most) == (1.0, 1.125, 1.25)
    (bar,) = quality.bars_of([first, local])
    assert bar.measured == pytest.approx(1.01 / 1.125) and not bar.held


def two_seeds(monkeypatch, *arguments: str) -> tuple[argparse.Namespace, list[quality.Case]]:
    """DDP and diloco-10 with two rates, the latter with two outer ones; what is trained, to losses of a table."""
    chosen = {("ddp", 1e-3): 3.0, ("ddp", 2e-3): 2.5, ("diloco-10", 1e-3): 2.6, ("diloco-10", 2e-3): 2.8}
    results = {("ddp", 2e-3, 1): 2.0, ("ddp", 2e-3, 2): 4.0, ("diloco-10", 1e-3, 1): 2.0, ("diloco-10", 1e-3, 2): 5.0}
    trained = []

    def train(case: quality.Case) -> quality.Outcome:
        trained.append(case)
        outer = 0.1 * (dict(case.outer).get("momentum") == 0)
        loss = results[case.method, case.rate, case.seed] if case.seed else chosen[case.method, case.rate] + outer
        return quality.Outcome(loss, 0.0)

    monkeypatch.setattr(quality, "train", train)
    few = ["--methods", "diloco-10", "--seeds", "2", "--rates", "0.001,0.002", "--outers", "1:0,0.7:0.5"]
    return quality.parse(["local", *few, *arguments]), trained


def test_quality_trains_nothing_twice(tmp_path, monkeypatch):
    """What was interrupted goes on; the seed that chooses is none of the results."""
    out = tmp_path / "r.json"
    options, trained = two_seeds(monkeypatch, "--json", str(out))
    for at_once in (3, 4, 99):
        record = quality.Record(options, "", {})
        missing = sum(quality.ahead(options, record.known).values())
        assert missing == 10 - len(trained)
        rows = quality.rows_of(options, quality.Trainer(1, record, missing))
        before = len(trained)
        with suppress(KeyboardInterrupt):
            monkeypatch.setattr(record, "add", interrupted_after(at_once, record))
            list(rows)
        assert len(trained) == min(10, before + at_once)
    assert len(set(trained)) == 2 + 2 + 4 + 2
    assert len(read(out)["trainings"]) == 10


def interrupted_after(count: int, record: quality.Record):
    """Record.add, of so many trainings."""
    left, add = iter(range(count - 1)), record.add

    def adds(case: quality.Case, outcome: quality.Outcome) -> None:
        add(case, outcome)
        if next(left, None) is None:
            raise KeyboardInterrupt

    return adds


def test_quality_ends_with_an_outer_step():
    """What workers walk after it would be lost."""
    assert [quality.parse(["local", "--steps", n]).start for n in ("1000", "400", "60", "50")] == [200, 100, 10, 0]


@pytest.mark.parametrize(
    ("part", "method", "steps"),
    [
        pytest.param("compress", "powersgd-1", 12, marks=pytest.mark.long),
        pytest.param("adam", "one-bit", 12, marks=pytest.mark.long),
        pytest.param("local", "diloco-10", 50, marks=pytest.mark.long),
        ("local", "diloco-50", 50),
    ],
)
def test_quality_trains_a_method_of_each_part(tmp_path, part, method, steps):
    out, tiny = tmp_path / "r.json", ("--seeds", 1, "--steps", steps, "--ranks", 2, "--batch", 1)
    which = ("--methods", method, "--problems", "gpt", "--rates", 0.001, *(("--outers", "1:0") * (part == "local")))
    said = run("quality.py", part, *which, *tiny, "--json", out)
    first, other = read(out)["rows"]
    assert other["method"] == method and first["losses"] != other["losses"]
    assert all(3 < row["loss"] < 6 for row in (first, other)) and "4 trainings, about" in said
    if method == "diloco-50":
        assert "0 trainings, about" in run("quality.py", part, *which, *tiny, "--json", out)
        assert read(out)["rows"] == [first, other]


def test_on_a_quadratic_signs_need_feedback():
    def loss(method: str, rate: float) -> float:
        return quality.train(quality.Case("compress", "quadratic", method, rate, 0, 400, 4, 1)).loss

    whole = loss("float32", 0.01)
    assert loss("sign", 0.01) == pytest.approx(whole, rel=0.02)
    assert loss("sign-no-feedback", 0.01) > 1.1 * whole


def test_bad_input_of_quality_is_refused():
    assert "--methods: 'zip' is none of float32, int8" in refusal(quality.parse, "compress", "--methods", "zip")
    assert "--problems: 'quadratic' is none of gpt" in refusal(quality.parse, "local", "--problems", "quadratic")
    assert "--rates: above 0" in refusal(quality.parse, "adam", "--rates", 0)
    assert "--seeds is 0, must be at least 1" in refusal(quality.parse, "adam", "--seeds", 0)
    assert "--steps is 12, must be at least 50" in refusal(quality.parse, "local", "--steps", 12)
    assert "730 steps are no rounds of 50 each" in refusal(quality.parse, "local", "--start", 270)
    assert "'0.7': write LR:MOMENTUM" in refusal(quality.parse, "local", "--outers", "0.7")
    assert "of the part local only" in refusal(quality.parse, "adam", "--outers", "1:0")


def test_quality_does_not_overwrite_another_programs_file(tmp_path):
    other = tmp_path / "r.json"
    other.write_text('{"rows": []}')
    assert f"--json {other} is there, and has no trainings" in run("quality.py", "local", "--json", other, status=2)
    assert other.read_text() == '{"rows": []}'


# benchmarks/local_steps.py: its arithmetic, bad input, and one run.


def test_a_turn_is_compared_with_its_round():
    plan = {"on the way": 0.1, "least H": 9, "step, of one alone": 1.5}
    report = {"predicted": {"delay 0": plan, "delay 4": {**plan, "step, of one alone": 1.0}}, "step": 0.1, "least": 4}
    first = {"inner steps": [1.0, 1.0, 2.0], "alone": [1.1, 1.0, 2.0], "delay 0": [2.0, 2.0, 4.0]}
    second = {"inner steps": [1.0, 1.0, 1.0], "alone": [1.2, 1.0, 2.0], "delay 0": [1.8, 2.4, 4.0]}
    first["delay 4"] = second["delay 4"] = [1.2, 1.2, 2.1]
    reports = [{**report, "parameters": 7, "seconds": seconds} for seconds in (first, second)]
    rows = {row.candidate: row for row in local_steps.rows_of(reports)}
    assert (rows["alone"].ratio, rows["alone"].predicted) == (1.0, None)
    slow = rows["delay 0"]
    assert (slow.ratio, slow.least, slow.most) == pytest.approx((2.0, 2 / 1.2, 2.4)) and slow.predicted == 1.5
    assert rows["delay 4"].step == 1.2 and rows["delay 4"].of_inner == pytest.approx(1.2)
    (bar,) = local_steps.bars_of(list(rows.values()), least=4)
    assert bar.measured == pytest.approx(1.05 / 1.05) and "delay 4" in bar.what
    assert local_steps.bars_of(list(rows.values()), least=6) == []
    assert "delay 4 hides it, from H = 9 on" in local_steps.plan_of(reports[0])


def test_bad_input_of_local_steps_is_refused():
    assert "'-1': write numbers of steps" in refusal(local_steps.parse, "--delays", "-1")
    assert "'soon': write numbers of steps" in refusal(local_steps.parse, "--delays", "soon")
    assert "take --every 52 or more" in refusal(local_steps.parse, "--delays", "0,12")
    assert "--fragments is 4, must be at most --every" in refusal(local_steps.parse, "--every", 3)
    assert "one rate above 0" in refusal(local_steps.parse, "--rate", "1G,2G")


@pytest.mark.long
def test_communication_is_compared_with_none(tmp_path):
    if reason := why_not_far():
        pytest.skip(reason)
    out = tmp_path / "r.json"
    tiny = ("--layers", 1, "--dim", 32, "--context", 32, "--rtt", 10, "--every", 16, "--delays", "0,3", "--rounds", 2)
    said = run("local_steps.py", *tiny, "--compress", "int8", "--json", out)
    rows = {row["candidate"]: row for row in read(out)["rows"]}
    assert list(rows) == ["inner steps", "alone", "delay 0", "delay 3"] and "ringdp plan local: " in said
    assert rows["delay 0"]["predicted"] >= rows["delay 3"]["predicted"] >= 1
    assert all(row["step"] > 0 and row["least"] <= row["ratio"] <= row["most"] for row in rows.values())
