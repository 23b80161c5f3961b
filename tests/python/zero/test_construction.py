"""From whole models and from the meta device to shards: the same bits, at most one unit at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.sharded_model import Construction
from ringdp.zero.unit_storage import bucket_plans
from ringdp.zero.units import units_of
from small_models import fresh
from torch import nn
from unit_models import MODELS, WIDTH, Block
from zero_rig import same


def on_meta(kind: Any) -> nn.Module:
    with torch.device("meta"):
        return kind()


class Learned(nn.Module):
    """Its root, a recurrent layer and a BatchNorm begin in their own ways; a weight is shared, and a layer frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.empty(WIDTH))
        self.reset_parameters()
        self.table = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.recurrent = nn.GRU(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.back = nn.Linear(WIDTH, 11)
        self.back.weight = self.table.weight
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.table(x) + self.place
        for block in self.blocks:
            h = block(h)
        return self.back(self.norm(self.recurrent(h)[0].flatten(0, 1)))


def from_meta(init_sync: bool) -> list[str]:
    """On a rank: names whose values are not those of the model built whole with this seed."""
    torch.manual_seed(5)
    whole = Learned()
    expected, after = whole.state_dict(), torch.get_rng_state()
    module = on_meta(Learned)
    torch.manual_seed(5 if init_sync is False or HERE.rank == 0 else 77)
    ddp = DistributedDataParallel(module, zero_stage=3, init_sync=init_sync)
    assert HERE.rank != 0 or torch.equal(after, torch.get_rng_state())
    found = ddp.full_state_dict()
    assert list(found) == list(expected) and module.back.weight is module.table.weight
    assert not module.frozen.weight.requires_grad
    wrong = [name for name in expected if not same(found[name], expected[name])]
    x = torch.arange(12).view(3, 4) % 11
    return wrong + ([] if same(ddp(x), whole(x)) else ["output"])


@pytest.mark.parametrize("init_sync", [True, False])
def test_a_meta_model_begins_as_if_it_had_been_built_whole(trio, init_sync):
    assert trio.run(from_meta, init_sync) == [[]] * 3


def begun_by_function() -> list[Any]:
    seen: list[str] = []

    def init(module: nn.Module) -> None:
        seen.append(type(module).__name__)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensor.fill_(3)

    ddp = DistributedDataParallel(on_meta(MODELS["frozen"]), zero_stage=3, init=init)
    return [seen.count("Linear"), seen[0], all(bool((v == 3).all()) for v in ddp.full_state_dict().values())]


def test_a_function_may_give_the_first_values(pair):
    assert pair.run(begun_by_function) == [[8, "Frozen", True]] * 2


def peak_of(meta: bool) -> list[int]:
    """On a rank: the most units that had memory at a time while the model became shards, and how many there are."""
    most = 0

    class Counted(Construction):
        def _take(self, module: nn.Module) -> None:
            nonlocal most
            super()._take(module)
            most = max(most, len(self._open))

    module = on_meta(MODELS["stack"]) if meta else fresh(MODELS["stack"])
    units = units_of(module)
    plans = bucket_plans(units, dict(module.named_parameters()), HERE.size)

    def zeros(part: nn.Module) -> None:
        for parameter in part.parameters(recurse=False):
            parameter.zero_()

    Counted(module, units, plans, dist.group.WORLD, torch.device("cpu"), root=0, init=zeros).run()
    return [most, len(units)]


@pytest.mark.parametrize("meta", [True, False])
def test_at_most_one_unit_is_whole_at_a_time(pair, meta):
    """A block is open from its first parameter to its last."""
    assert pair.run(peak_of, meta) == [[1, 6]] * 2


def from_other_seeds() -> list[str]:
    ddp = DistributedDataParallel(fresh(MODELS["types"], seed=HERE.rank), zero_stage=3)
    expected = fresh(MODELS["types"], seed=0).state_dict()
    return [n for n, v in ddp.full_state_dict().items() if not same(v, expected[n])]


def test_rank_0_gives_the_values(trio):
    assert trio.run(from_other_seeds) == [[]] * 3


def kept_apart() -> bool:
    ddp = DistributedDataParallel(fresh(MODELS["stack"], seed=3), zero_stage=3, init_sync=False)
    expected = fresh(MODELS["stack"], seed=3).state_dict()
    return all(same(v, expected[n]) for n, v in ddp.full_state_dict().items())


def test_equal_values_need_no_rank_0(pair):
    assert pair.run(kept_apart) == [True] * 2


def nobody_knows() -> None:
    module = on_meta(MODELS["frozen"])  # its root has parameters and buffers, and no reset_parameters()
    DistributedDataParallel(module, zero_stage=3)


def test_a_module_without_first_values_is_refused(pair):
    for outcome in pair.attempt(nobody_knows):
        assert "reset_parameters" in outcome.error and "Frozen" in outcome.error


def at_stage_2() -> None:
    DistributedDataParallel(on_meta(MODELS["stack"]), zero_stage=2)


def test_other_stages_refuse_meta_models(pair):
    for outcome in pair.attempt(at_stage_2):
        assert "parameter scale is on the meta device" in outcome.error
