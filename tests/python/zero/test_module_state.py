"""state_dict() and load_state_dict() of models whose parameters are in shards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import fresh, loss_of
from unit_models import MODELS
from zero_rig import ADAMW, same


def made(kind: str = "types", **arguments: Any) -> Any:
    return DistributedDataParallel(fresh(MODELS[kind]), zero_stage=3, **arguments)


def said(call: Any) -> str:
    try:
        call()
    except (RuntimeError, NotImplementedError) as error:
        return str(error)
    return "nothing"


def saved() -> list[str]:
    ddp = made()
    whole = []
    with ddp.gathered():
        whole = [n for n, v in ddp.module.state_dict().items() if not same(v, fresh(MODELS["types"]).state_dict()[n])]
    return [said(ddp.state_dict), said(ddp.module.state_dict), str(whole)]


def test_saving_names_the_way_out(pair):
    for wrapped, plain, whole in pair.run(saved):
        assert "full_state_dict()" in wrapped and "full_state_dict()" in plain and whole == "[]"


def loaded(kind: str, prefix: str) -> list[str]:
    """On a rank: names that are not as in the dict, of other dtype and strides, that was loaded."""
    ddp = made(kind)
    other = fresh(MODELS[kind], seed=99).state_dict()
    given = {prefix + n: v.double() if v.dtype == torch.float32 else v for n, v in other.items()}
    (ddp if prefix else ddp.module).load_state_dict(given)
    found = ddp.full_state_dict()
    return [n for n in other if not same(found[n], other[n])]


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("kind", ["types", "frozen", "tied", "strided"])
def test_every_rank_takes_its_part(trio, kind, prefix):
    assert trio.run(loaded, kind, prefix) == [[]] * 3


def strictly() -> list[Any]:
    """On a rank: what torch says about dicts that do not fit, and that nothing else has changed."""
    ddp = made("stack")
    before, other = ddp.full_state_dict(), fresh(MODELS["stack"], seed=99).state_dict()
    short = {n: v for n, v in other.items() if n != "first.bias"}
    words = [
        said(lambda: ddp.module.load_state_dict(short)),
        said(lambda: ddp.module.load_state_dict({**other, "x": 0})),
    ]
    ddp.module.load_state_dict(before)
    missing = ddp.module.load_state_dict(short, strict=False).missing_keys
    after = ddp.full_state_dict()
    right = [same(after[n], before[n] if n == "first.bias" else other[n]) for n in other]
    ddp.module.load_state_dict(before)
    words.append(said(lambda: ddp.module.load_state_dict({**before, "last.weight": before["last.weight"].t()})))
    unchanged = all(same(v, before[n]) for n, v in ddp.full_state_dict().items())
    words.append(said(lambda: ddp.module.load_state_dict(before, assign=True)))
    with ddp.gathered():
        words.append(said(lambda: ddp.module.load_state_dict(before)))
    return [words, missing, all(right), unchanged]


def test_what_does_not_fit_is_said_as_ever(pair):
    for words, missing, right, unchanged in pair.run(strictly):
        for text, word in zip(words, ["first.bias", "x", "size mismatch", "assign", "gathered()"], strict=True):
            assert word in text
        assert missing == ["first.bias"] and right and unchanged


def trained_on() -> list[bool]:
    """On a rank: masters follow what was loaded."""
    ddp = DistributedDataParallel(fresh(MODELS["stack"]).bfloat16(), zero_stage=3)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, master_dtype=torch.float32, **ADAMW)
    ddp.module.load_state_dict({n: torch.full_like(v, 2) for n, v in ddp.full_state_dict().items()})
    for group in optimizer.param_groups:
        group.update(lr=0.0, weight_decay=0.0)
    x = torch.ones(2, 12).bfloat16()
    ddp(x).sum().backward()
    optimizer.step()
    masters = [t for flat in optimizer._flats for t in flat.tensors]
    return [
        all(bool((t == 2).all()) for t in masters),
        all(bool((v == 2).all()) for v in ddp.full_state_dict().values()),
    ]


def test_masters_follow(pair):
    assert pair.run(trained_on) == [[True, True]] * 2


def copied() -> list[str]:
    import copy
    import io

    ddp = made("stack")
    loss_of(ddp, HERE.rank, 0, 0).backward()
    return [said(lambda: copy.deepcopy(ddp)), said(lambda: torch.save(ddp, io.BytesIO()))]


def test_copies_and_pickles_are_refused(pair):
    for words in pair.run(copied):
        assert all("full_state_dict()" in text for text in words)


class Named(torch.nn.Module):
    """One parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(40, 40))
        self.v = self.w

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w + self.v.sum()


def twice_named() -> bool:
    ddp = DistributedDataParallel(Named(), zero_stage=3)
    ddp.module.load_state_dict({"w": torch.full((40, 40), 3.0), "v": torch.full((40, 40), 3.0)})
    return all(same(value, torch.full((40, 40), 3.0)) for value in ddp.full_state_dict().values())


def test_a_parameter_under_two_names_is_loaded(trio):
    assert trio.run(twice_named) == [True] * 3
