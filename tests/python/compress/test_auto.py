"""compress="auto:...": which steps are compressed, who decides it, and that decisions can be followed bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compress_runs import loss_of, made, train
from ranks import HERE, error_of, on_ranks
from ringdp.compress import auto as module
from ringdp.compress.auto import CHECK_EVERY, PROBE_STEPS, SETTLED_STEPS, Kind, Measured, Schedule
from ringdp.compress.methods import Auto, Codes, PowerSGD, TopK, method_of
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process, parameters_hash
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")
CODED, WHOLE, SETTLING = Kind.CODED, Kind.WHOLE, Kind.SETTLING
DECISIONS = ((0, "probe"), (3, "coded"), (5, "whole"), (7, "probe"), (10, "whole"))
STEPS = 12


def test_kinds_follow_from_decisions():
    schedule = Schedule(list(DECISIONS))
    found = [schedule.kind(step) for step in range(STEPS)]
    whole = [SETTLING, WHOLE]
    assert found == [CODED, WHOLE, CODED, CODED, CODED, *whole, CODED, WHOLE, CODED, *whole]


@on_ranks(2, [1, 1, 2])
def test_only_power_sgd_has_one_bucket() -> list[int]:
    """Buckets of a model whose two matrices are as large as those that are reduced in place."""
    methods = (PowerSGD(1), Auto(PowerSGD(1)), Auto(Codes("int8")))
    model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 1024, bias=False))
    return [len(DistributedDataParallel(model, compress=method).reducer.buckets()) for method in methods]


def test_rank_0_decides_after_a_probe_and_now_and_then():
    schedule = Schedule()
    probes = [step for step in range(1, 3 * PROBE_STEPS + 1) if schedule.decides(step)]
    assert probes == [PROBE_STEPS, 2 * PROBE_STEPS, 3 * PROBE_STEPS]
    schedule.append(60, "whole")
    schedule.append(160, "whole")  # says nothing new
    assert schedule.decisions == [(0, "probe"), (60, "whole")]
    assert [step for step in range(61, 400) if schedule.decides(step)] == [60 + CHECK_EVERY * n for n in (1, 2, 3)]


def probe(ratio: float, spread: float = 0.0) -> list[tuple[Kind, float]]:
    """Times of a probe; the first steps take long."""
    shifts = [spread * (pair % 3 - 1) for pair in range(PROBE_STEPS // 2)]
    times = [ratio + shifts[n // 2] if n % 2 == 0 else 1.0 for n in range(PROBE_STEPS)]
    return [(WHOLE if n % 2 else CODED, 50.0 if n < 2 else seconds) for n, seconds in enumerate(times)]


@pytest.mark.parametrize(("ratio", "spread", "pays"), [(0.9, 0.0, True), (0.99, 0.0, False), (0.9, 0.5, False)])
def test_a_probe_pays_if_steps_are_shorter_beyond_doubt(ratio, spread, pays):
    measured = Measured(times=probe(ratio, spread))
    mode, words = measured.after_probe(20)
    assert mode == ("coded" if pays else "probe")
    assert (f"{ratio:.2f} times as long" in words) == pays


def test_three_probes_in_a_row_that_do_not_pay_end_it():
    measured = Measured()
    modes = []
    for number in range(3):
        measured.times = probe(1.3)
        modes.append(measured.after_probe(20 * (number + 1)))
    assert [mode for mode, _ in modes] == ["probe", "probe", "whole"]
    assert modes[2][1] == "does not compress from step 60 on: a step takes 1.30 times as long with it (within 0.00)"
    assert measured.losses == 0


def test_it_asks_again_when_steps_have_changed_or_long_after():
    measured, decision = Measured(), (60, "whole")
    measured.times = [(WHOLE, 1.0)] * CHECK_EVERY
    assert measured.while_settled(160, decision) == ("whole", "")
    measured.times = [(WHOLE, 1.4)] * CHECK_EVERY
    assert measured.while_settled(260, decision) == ("whole", "")
    for changed in (1.6, 0.6):
        measured.times = [(WHOLE, changed)] * CHECK_EVERY
        mode, words = measured.while_settled(360, decision)
        assert mode == "probe" and f"takes {changed:.2f} times as long as before" in words
    measured.times = [(WHOLE, 1.0)] * CHECK_EVERY
    assert measured.while_settled(60 + SETTLED_STEPS, decision) == ("probe", "asks again from step 560 on")
    measured.times = []  # of a run that was loaded just before
    assert measured.while_settled(160, decision) == ("whole", "") and measured.after_probe(20) == ("probe", "")


def test_a_probe_may_begin_with_either_kind():
    measured = Measured(times=probe(0.9)[1:])
    assert measured.after_probe(20)[0] == "coded"


def trained(method: Any, steps: range, cap_mb: float | None, folder: str = "") -> tuple[str, list[tuple[int, str]]]:
    """On a rank."""
    model, optimizer = made("float32")
    given = {} if cap_mb is None else {"bucket_cap_mb": cap_mb}
    ddp = DistributedDataParallel(model, compress=method, **given)
    train(ddp, optimizer, steps, folder)
    return parameters_hash(model), ddp.ledger().decisions


def in_one_process(ranks: int, method: Any, steps: int = STEPS) -> str:
    model, optimizer = made("float32")
    one_process(model, optimizer, loss_of, ranks=ranks, steps=steps, compress=method)
    return parameters_hash(model)


@pytest.mark.parametrize("method", [Codes("int8"), Codes("sign"), TopK(0.05), PowerSGD(2)], ids=repr)
@pytest.mark.parametrize("ranks", [1, 3])
def test_decisions_that_are_given_are_followed_with_the_bits_of_one_process(world_of, method, ranks):
    auto = Auto(method, DECISIONS)
    want = (in_one_process(ranks, auto), list(DECISIONS))
    for cap_mb in (None, 0.004):
        assert world_of(ranks).run(trained, auto, range(STEPS), cap_mb) == [want] * ranks


def decided_by(rank_0_says: list[str]) -> tuple[str, list[tuple[int, str]]]:
    """On a rank: a run with short probes, of which rank 0 says this, and the others something else."""
    said = iter(rank_0_says if HERE.rank == 0 else ["coded"] * 9)
    module.PROBE_STEPS, module.CHECK_EVERY = 4, 2
    Measured.after_probe, probes = lambda self, step: (next(said), "says so"), Measured.after_probe
    Measured.while_settled, settled = lambda self, step, decision: (next(said), ""), Measured.while_settled
    try:
        return trained(method_of("auto:int8"), range(STEPS), None)
    finally:
        module.PROBE_STEPS, module.CHECK_EVERY = PROBE_STEPS, CHECK_EVERY
        Measured.after_probe, Measured.while_settled = probes, settled


def test_all_ranks_do_what_rank_0_decides_and_another_run_can_follow(world_of):
    found = world_of(3).run(decided_by, ["probe", "whole", "whole", "coded"])
    decisions = [(0, "probe"), (8, "whole"), (12, "coded")]
    want = (in_one_process(3, Auto(Codes("int8"), tuple(decisions[:2]))), decisions)
    assert found == [want] * 3


def test_a_checkpoint_has_the_decisions(world_of, tmp_path):
    auto = Auto(Codes("int8"), DECISIONS)
    world_of(2).run(trained, auto, range(6), None, str(tmp_path))
    want = in_one_process(2, auto)
    assert world_of(2).run(trained, auto, range(6, STEPS), 0.004, str(tmp_path)) == [(want, list(DECISIONS))] * 2
    # Without others they are those of the checkpoint, and the run goes on by itself.
    (_, decisions), _ = world_of(2).run(trained, "auto:int8", range(6, 7), None, str(tmp_path))
    assert decisions == list(DECISIONS)


def test_what_is_no_decision_is_refused_by_name():
    unordered = (((1, "coded"),), ((0, "coded"), (0, "whole")))
    for wrong in (*unordered, ((0, "sometimes"),), ((0, "probe"), 3), ((0, "probe"), (1.5, "coded")), 3):
        assert "decisions=" in error_of(Auto, Codes("int8"), wrong, kind=ValueError)
    assert "method='int8'" in error_of(Auto, "int8", kind=TypeError)
    assert "'sign', such a name after 'auto:'" in error_of(method_of, "auto:int9", kind=ValueError)
    assert Auto(Codes("int8"), [[0, "coded"]]) == Auto(Codes("int8"), ((0, "coded"),))  # as JSON has them
    model, optimizer = made("float32")
    said = error_of(
        lambda: one_process(model, optimizer, loss_of, ranks=2, steps=1, compress="auto:int8"), kind=ValueError
    )
    assert "give compress=Auto(method, decisions)" in said


@on_ranks(2)
def test_the_ledger_says_what_was_decided() -> None:
    model, _ = made("float32")
    ddp = DistributedDataParallel(model, compress=Auto(Codes("int8"), ((0, "probe"), (1, "whole"))))
    for step in range(3):
        loss_of(ddp, HERE.rank, step, 0).backward()
    text = str(ddp.ledger())
    assert "from step 0 on: probe" in text and "from step 1 on: whole" in text and "after 3 steps" in text


def large() -> nn.Module:
    """Its weights have buckets of their own where a bucket is reduced where it lies."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 400), nn.Linear(400, 400), nn.Linear(400, 400), nn.Linear(400, 20))


@pytest.mark.parametrize("as_view", [False, True])
@on_ranks(2)
def test_buckets_are_those_of_a_wrapper_without_it(as_view: bool) -> None:
    found, want = [], large()
    for compress in (None, Auto(Codes("int8"), DECISIONS)):
        ddp = DistributedDataParallel(large(), compress=compress, gradient_as_bucket_view=as_view)
        found.append(ddp.reducer.buckets())
    assert found[0] == found[1] and sum(bucket["memory_bytes"] == 0 for bucket in found[1]) == 2
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for step in range(STEPS):
        loss_of(ddp, HERE.rank, step, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
    auto = Auto(Codes("int8"), DECISIONS)
    one_process(want, torch.optim.SGD(want.parameters(), lr=0.01), loss_of, ranks=2, steps=STEPS, compress=auto)
    assert parameters_hash(ddp) == parameters_hash(want)
