"""The usual script: over ringdp and over gloo, two ranks learn the same to the bit."""

from __future__ import annotations

import pytest
import torch
from ringdp.examples import train_ddp

SHORT = ["--epochs", "1", "--sequences", "808"]  # 101 steps of 4 sequences on each of 2 ranks


def test_two_ranks_learn_the_same_over_ringdp_and_gloo(on_two_ranks):
    ours, theirs = (on_two_ranks(train_ddp.MODULE, "--backend", name, *SHORT) for name in ("ringdp", "gloo"))
    assert (ours["backend"], theirs["backend"]) == ("ringdp", "gloo")
    assert [(entry["epoch"], entry["step"]) for entry in ours["log"]] == [(0, 0), (0, 100)]
    assert ours["loss"] < 0.8 * ours["log"][0]["loss"]
    # Two addends have one order, so gloo has the same bits here.
    assert ours["log"] == theirs["log"] and ours["loss"] == theirs["loss"]


def test_a_step_returns_its_loss_and_moves_the_parameters():
    torch.manual_seed(0)
    model = train_ddp.CountingTransformer()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=train_ddp.RATE)
    x, y = train_ddp.counting(4).tensors
    expected = torch.nn.functional.cross_entropy(model(x).transpose(1, 2), y)
    loss = train_ddp.one_step(model, (x, y), optimizer, torch.nn.CrossEntropyLoss())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6) and not loss.requires_grad
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_the_next_token_follows():
    x, y = train_ddp.counting(50).tensors
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert set(((y - x) % train_ddp.VOCABULARY).unique().tolist()) == {1, 2, 3}


def test_no_token_sees_those_after_it():
    model = train_ddp.CountingTransformer().eval()
    x = train_ddp.counting(1).tensors[0]
    changed = x.clone()
    changed[0, -1] = (changed[0, -1] + 1) % train_ddp.VOCABULARY
    here, there = model(x)[0], model(changed)[0]
    assert torch.allclose(here[:-1], there[:-1], atol=1e-6) and not torch.allclose(here[-1], there[-1], atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--epochs", "0"], "--epochs is 0, must be at least 1"),
        (["--sequences", "7"], "--sequences is 7, must be at least 4 for each of 2 ranks"),
    ],
)
def test_bad_numbers_are_named_before_any_rank_starts(arguments, said, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as ended:
        train_ddp.main(arguments)
    assert ended.value.code == 2 and said in capsys.readouterr().err
