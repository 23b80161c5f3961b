"""What needs no trainer: Meter's figures, and optimizers inside those that trainers put around them."""

from __future__ import annotations

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.innermost import innermost
from ringdp.integrations import Meter
from ringdp.tools.observe.run_log import memory_of
from ringdp.tools.planner.fake_memory import state_bytes
from torch.nn.parallel import DistributedDataParallel as Stock


class Outer(torch.optim.Optimizer):
    """As Accelerate's: an Optimizer whose constructor is not torch's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def __getattr__(self, name: str) -> object:
        if name in ("state", "param_groups", "defaults"):
            return getattr(self.optimizer, name)
        raise AttributeError(name)

    def step(self, closure: object = None) -> None:
        self.optimizer.step()


def test_the_innermost_optimizer_is_found():
    plain = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    assert innermost(Outer(Outer(plain))) is innermost(plain) is plain


def recorded(folder: str, stage: int) -> tuple[bool, int, int]:
    """On a rank: a step by an outer optimizer, with what takes it; it is saved, and loaded by a plain one."""

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(3)
        ddp = ringdp.DistributedDataParallel(torch.nn.Linear(40, 10), zero_stage=stage)
        kind = ringdp.ZeroOptimizer if stage else torch.optim.AdamW
        return ddp, kind(ddp.parameters(), **({"optimizer_class": torch.optim.AdamW} if stage else {}), lr=0.1)

    ddp, plain = made()
    outer = Outer(plain)
    log = ringdp.RunLog(ddp, outer)
    ddp(torch.ones(2, 40)).sum().backward()
    outer.step()
    log.step(1.0)
    ringdp.checkpoint.save(folder, ddp, outer)
    other, optimizer = made()
    ringdp.checkpoint.load(folder, other, optimizer)
    same = ringdp.testing.parameters_hash(other) == ringdp.testing.parameters_hash(ddp)
    return same, log.memory.state, memory_of(other, optimizer).state


@pytest.mark.parametrize("stage", [0, 2])
def test_an_optimizer_in_another_is_recorded_and_saved(pair, tmp_path, stage):
    for same, counted, of_a_plain_one in pair.run(recorded, str(tmp_path), stage):
        assert same and counted == of_a_plain_one > 0


def test_an_optimizer_in_another_is_counted():
    parameters = [torch.nn.Parameter(torch.ones(100))]
    plain = torch.optim.AdamW(parameters)
    assert state_bytes(Outer(plain), parameters) == state_bytes(plain, parameters) > 800


def metered(stock: bool) -> tuple[dict[str, float], dict[str, float], dict[str, float], float]:
    """On a rank: two readings with a step between them, where rank 1 is late; delays and bytes of the group."""
    ddp = (Stock if stock else ringdp.DistributedDataParallel)(torch.nn.Linear(64, 64))
    meter = Meter(ddp)
    (group,) = [g for g in ringdp.stats()["groups"] if g["name"] == ddp.process_group.group_name]
    for _ in range(3):
        ddp(torch.ones(2, 64)).sum().backward()
    found = meter.read()
    (after,) = [g for g in ringdp.stats()["groups"] if g["name"] == ddp.process_group.group_name]
    names = ("collectives", "wire_bytes_sent", "memory_bytes_written")
    counted = {name: after["counters"][name] - group["counters"][name] for name in names}
    delays = {str(rank): b - a for rank, (a, b) in enumerate(zip(group["delays"], after["delays"], strict=True))}
    dist.barrier()
    return found, counted, delays, ddp.times().overlap if not stock else -1.0


@pytest.mark.parametrize("stock", [False, True])
def test_a_meter_reads_rates_of_the_group(pair, stock):
    for found, counted, delays, overlap in pair.run(metered, stock):
        seconds = counted["collectives"] / found["ringdp/collectives_per_s"]
        assert counted["collectives"] >= 3 and seconds > 0
        assert found["ringdp/MiB_per_s"] * seconds * 2**20 == pytest.approx(counted["wire_bytes_sent"])
        assert found["ringdp/memory_MiB_per_s"] * seconds * 2**20 == pytest.approx(counted["memory_bytes_written"])
        assert counted["memory_bytes_written"] > 3 * 4 * 64 * 64
        for rank, waited in delays.items():
            assert found[f"ringdp/late/rank_{rank}"] * seconds == pytest.approx(waited)
        assert found.get("ringdp/overlap", -1.0) == overlap
        assert ("ringdp/backward_ms" in found) == (not stock)


def over_gloo() -> dict[str, float]:
    """On a rank: of another backend's group, only what ringdp's wrapper knows."""
    ddp = ringdp.DistributedDataParallel(torch.nn.Linear(4, 4), process_group=dist.new_group(backend="gloo"))
    meter = Meter(ddp)
    before = meter.read()
    ddp(torch.ones(2, 4)).sum().backward()
    return {**before, **meter.read(), "before": len(before), "rank": HERE.rank}


def test_a_meter_over_another_backend_knows_the_wrapper_s_times(pair):
    times = {f"ringdp/{name}" for name in ("forward_ms", "backward_ms", "exposed_ms", "overlap")}
    for rank, found in enumerate(pair.run(over_gloo)):
        assert set(found) == {*times, "before", "rank"} and found["before"] == 0 and found["rank"] == rank


def test_a_meter_of_something_else_is_refused():
    with pytest.raises(TypeError, match="Linear is not a DistributedDataParallel"):
        Meter(torch.nn.Linear(1, 1))
