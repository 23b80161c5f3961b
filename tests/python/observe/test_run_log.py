"""RunLog in loops as users write them: what it keeps, what it writes, what it refuses; and that a page comes of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import ringdp
import torch
import torch.distributed as dist
from ringdp.observe.run_log import RunLog
from ringdp.pages import report_figures, report_page, run_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Stock


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


def beside_another_hook():
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


def test_other_hooks_and_a_loss_that_is_used_again_do_not_matter(pair):
    assert pair.run(beside_another_hook) == [[0.0, 1.0]] * 2


@pytest.mark.parametrize("backend", ["ringdp", "gloo"])
@pytest.mark.parametrize("stock", [False, True])
def test_a_run_becomes_a_page(pair, tmp_path, stock, backend):
    file = Path(pair.run(written, str(tmp_path), stock, backend)[0])
    run = run_file.read(file)
    found = report_figures.figures(run)
    assert (found["backend"], found["ranks"], found["steps"]) == (backend, 2, 3)
    assert run["history"]["losses"] == [0.5, 1.5, 2.5]  # means over the ranks
    assert found["validation"]["first"] == 7.0 and run["history"]["validation"] == [[3, 7.0]]
    assert found["throughput"]["unit"] == "samples" and found["throughput"]["per_second"] > 0
    assert found["memory"]["ratio"] == 1  # gradients too, which the loop has dropped by now
    assert (found["split"] is None) == (found["overlap"] is None) == stock
    assert any(line.startswith("plan: ") for line in found["links"]) == (backend == "ringdp")
    assert "A run of 3 steps on 2 ranks" in report_page.page(run)
    assert [path.name for path in file.parent.iterdir()] == ["run.json"]


def own_times():
    log = logged(accumulate=2)
    split = log.history
    return split.step_seconds, split.phases, log.report()["observed"]["overlap"]


def test_phases_are_parts_of_their_step(pair):
    for seconds, phases, overlap in pair.run(own_times):
        assert len(seconds) == len(phases) == 3
        for taken, parts in zip(seconds, phases, strict=True):
            assert all(part >= 0 for part in parts) and 0 < sum(parts) <= taken
        assert (overlap["forward"], overlap["backward"], overlap["wait"]) == phases[-1]
        assert overlap["step"] == 3 and len(overlap["buckets"]) == 1


def a_step_without_exchange():
    log = logged(steps=1)
    log.step(1.0)
    return log.history.phases


def test_a_step_without_exchange_has_no_phases_of_its_own(pair):
    for first, second in pair.run(a_step_without_exchange):
        assert first is not None and second is None


def left_out():
    log = logged(steps=0)
    for pause in (log.leave_out, lambda: log.validation(1.0)):
        time.sleep(0.3)
        pause()
        log.step(0.0)
    time.sleep(0.3)
    log.step(0.0)
    return log.history.step_seconds


def test_validation_and_checkpoints_belong_to_no_step(pair):
    for first, second, third in pair.run(left_out):
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


def not_finite():
    log = logged(steps=1)
    log.step(float("nan"))
    log.validation(float("inf"))
    report = log.report()
    json.dumps(report, allow_nan=False)
    return report["history"]["losses"], report["history"]["validation"]


def test_a_loss_that_is_no_number_is_json_s_null(pair):
    assert pair.run(not_finite) == [([0.5, None], [(2, None)])] * 2


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
    with pytest.raises(TypeError, match="Linear is no DistributedDataParallel"):
        RunLog(model, torch.optim.SGD(model.parameters()))


def nothing_a_step():
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"items_per_step={wrong}, must be a number above 0"):
            logged(steps=0, items_per_step=wrong)


def test_nothing_a_step_is_refused(pair):
    pair.run(nothing_a_step)
