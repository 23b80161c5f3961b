"""What a run did, as a file: its history, its memory against the formula, its links."""

from __future__ import annotations

import functools
import json
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import on_ranks
from ringdp.tools.observe.run_log import History, RunLog, formula_of, memory_of
from ringdp.tools.pages import report_page, run_file
from ringdp.tools.pages.run_file import IN_FORMULA
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Stock


def test_a_history_survives_json() -> None:
    history = History([1.0, 2.0], [(0, 3.0)], [0.1, 0.2], [(0.1, 0.2, 0.3), None])
    again = History(**json.loads(json.dumps(asdict(history))))
    assert asdict(again) == json.loads(json.dumps(asdict(history)))


def test_histories_do_not_share_lists() -> None:
    History().losses.append(1.0)
    assert History().losses == []


def stepped(wrapper, kind, **options):
    torch.manual_seed(0)
    ddp = wrapper(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    optimizer = kind(ddp.parameters(), lr=0.1, **options)
    ddp(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    return ddp, optimizer


def both(stage, kind):
    """Counted and predicted bytes by kind, of an optimizer at a stage (None: torch's wrapper)."""
    optimizer_class = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[kind]
    if stage is None:
        ddp, optimizer = stepped(Stock, optimizer_class)
    elif stage == 0:
        ddp, optimizer = stepped(ringdp.DistributedDataParallel, optimizer_class)
    else:
        wrapper = functools.partial(ringdp.DistributedDataParallel, zero_stage=stage)
        ddp, optimizer = stepped(wrapper, ringdp.ZeroOptimizer, optimizer_class=optimizer_class)
    held = memory_of(ddp, optimizer)
    formula = formula_of(ddp.module, optimizer, held, 2)
    return {name: getattr(held, name) for name in IN_FORMULA}, formula, held.buckets


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("stage", [None, 0, 1, 2, 3])
def test_counted_bytes_are_the_formula_s(pair, stage, kind):
    """Sums over both ranks: shares of a model as small as this one are not equal."""
    rows = pair.run(both, stage, kind)
    steps = 2 * 4 * 4 if kind == "adamw" else 0  # torch's step counts are no bytes per parameter, so nobody shares them
    for name in IN_FORMULA:
        assert sum(row[0][name] for row in rows) == pytest.approx(sum(row[1][name] for row in rows), abs=steps)
    assert rows[0][0]["parameters"] > 0 and rows[0][0]["gradients"] > 0


def test_stock_buckets_lie_beside_gradients_unless_those_are_views(pair):
    assert all(buckets == counted["gradients"] for counted, _, buckets in pair.run(both, None, "sgd"))
    assert pair.run(views)[0] == 0


def views():
    return memory_of(*stepped(functools.partial(Stock, gradient_as_bucket_view=True), torch.optim.SGD)).buckets


@on_ranks(2, None)
def test_state_that_torch_shares_is_not_guessed():
    from torch.distributed.optim import ZeroRedundancyOptimizer  # imports torch.jit, which is slow and warns

    return memory_of(*stepped(Stock, ZeroRedundancyOptimizer, optimizer_class=torch.optim.SGD))


class NeedsValues(torch.optim.SGD):
    """Its step reads a gradient's value."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.sum().item()
        return super().step(closure)


@on_ranks(2, None)
def test_an_optimizer_that_needs_values_has_no_formula():
    ddp, optimizer = stepped(Stock, NeedsValues)
    return formula_of(ddp.module, optimizer, memory_of(ddp, optimizer), 2)


def logged(wrapper=ringdp.DistributedDataParallel, steps=3, group=None, accumulate=1, **options):
    """A log after some steps; the loss of rank r in step s is r + s."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    ddp = wrapper(nn.Linear(64, 64), process_group=group)
    optimizer = torch.optim.AdamW(ddp.parameters())
    log = RunLog(ddp, optimizer, **options)
    for step in range(steps):
        for micro in range(accumulate):
            if micro < accumulate - 1:
                with ddp.no_sync():
                    ddp(torch.ones(2, 64)).sum().backward()
            else:
                ddp(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        log.step(torch.tensor(float(rank + step)))
    return log


def written(folder, stock, backend, **options):
    from ranks import group_of

    wrapper = Stock if stock else ringdp.DistributedDataParallel
    log = logged(wrapper, group=group_of(backend), items_per_step=4, unit="samples", settings={"lr": 1e-3}, **options)
    log.validation(torch.tensor(7.0))
    file = Path(folder) / "made" / "run.json"
    log.write(file)
    dist.barrier()
    return str(file)


@on_ranks(2, [0.0, 1.0])
def test_other_hooks_and_a_loss_that_is_used_again_do_not_matter():
    """The loss is one tensor, used again; another hook comes after the log's."""
    ddp = ringdp.DistributedDataParallel(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    log, loss = RunLog(ddp, optimizer), torch.zeros(())
    optimizer.register_step_post_hook(lambda *_: None)
    for step in range(2):
        ddp(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        log.step(loss.fill_(step))
    return log.history.losses


@pytest.mark.parametrize("backend", ["ringdp", "gloo"])
@pytest.mark.parametrize("stock", [False, True])
def test_a_run_becomes_a_page(pair, tmp_path, stock, backend):
    file = Path(pair.run(written, str(tmp_path), stock, backend)[0])
    run = run_file.read(file)
    found = run_file.figures(run)
    assert (found["backend"], found["ranks"], found["steps"]) == (backend, 2, 3)
    assert run["history"]["losses"] == [0.5, 1.5, 2.5]  # means over the ranks
    assert found["validation"]["first"] == 7.0 and run["history"]["validation"] == [[3, 7.0]]
    assert found["throughput"]["unit"] == "samples" and found["throughput"]["per_second"] > 0
    assert found["memory"]["ratio"] == 1  # gradients too, which the loop has dropped by now
    assert (found["split"] is None) == (found["overlap"] is None) == stock
    assert any(line.startswith("plan: ") for line in found["links"]) == (backend == "ringdp")
    assert "A run of 3 steps on 2 ranks" in report_page.page(run)
    assert [path.name for path in file.parent.iterdir()] == ["run.json"]


@on_ranks(2)
def test_phases_are_parts_of_their_step():
    log = logged(accumulate=2)
    seconds, phases, overlap = log.history.step_seconds, log.history.phases, log.report()["observed"]["overlap"]
    assert len(seconds) == len(phases) == 3
    for taken, parts in zip(seconds, phases, strict=True):
        assert all(part >= 0 for part in parts) and 0 < sum(parts) <= taken
    assert (overlap["forward"], overlap["backward"], overlap["wait"]) == phases[-1]
    assert overlap["step"] == 3 and len(overlap["buckets"]) == 1


@on_ranks(2)
def test_a_step_without_exchange_has_no_phases_of_its_own():
    log = logged(steps=1)
    log.step(1.0)
    first, second = log.history.phases
    assert first is not None and second is None


@on_ranks(2)
def test_validation_and_checkpoints_belong_to_no_step():
    log = logged(steps=0)
    for pause in (log.leave_out, lambda: log.validation(1.0)):
        time.sleep(0.3)
        pause()
        log.step(0.0)
    time.sleep(0.3)
    log.step(0.0)
    first, second, third = log.history.step_seconds
    assert max(first, second) < 0.3 <= third


def resumed():
    state = json.loads(json.dumps(logged(steps=2).state_dict()))
    log = logged(steps=0)
    log.load_state_dict(state)
    log.step(9.0)
    with pytest.raises(ValueError, match="a history has losses, validation, step_seconds, phases, not losses"):
        log.load_state_dict({"losses": []})
    return log.history.losses


def test_a_resumed_run_goes_on_with_its_history(pair):
    assert pair.run(resumed) == [[0.0, 1.0, 9.0], [1.0, 2.0, 9.0]]


@on_ranks(2, ([0.5, None], [(2, None)]))
def test_a_loss_that_is_no_number_is_json_s_null():
    log = logged(steps=1)
    log.step(float("nan"))
    log.validation(float("inf"))
    report = log.report()
    json.dumps(report, allow_nan=False)
    return report["history"]["losses"], report["history"]["validation"]


def uneven():
    with pytest.raises(ValueError, match=r"logged \[2, 3\] steps"):
        uneven_log().write("nowhere.json")
    with pytest.raises(ValueError, match=r"logged \[0, 0\] steps"):
        logged(steps=0).report()


def uneven_log():
    log = logged(steps=2)
    if dist.get_rank() == 1:
        log.step(1.0)
    return log


def test_ranks_that_logged_different_steps_are_told_so(pair):
    pair.run(uneven)


def test_another_wrapper_is_refused_by_name():
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="Linear is not a DistributedDataParallel"):
        RunLog(model, torch.optim.SGD(model.parameters()))


def nothing_a_step():
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"items_per_step={wrong}, must be a number above 0"):
            logged(steps=0, items_per_step=wrong)


def test_nothing_a_step_is_refused(pair):
    pair.run(nothing_a_step)
