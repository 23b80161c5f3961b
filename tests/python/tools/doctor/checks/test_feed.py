"""The audit's problems, without its notes."""

from __future__ import annotations

from ringdp.tools.doctor.checks.feed import check, not_judged
from synthetic import evidence

FACTS = {"loader": 0, "dataset": "D", "part": "", "hidden": False, "sampler": "S", "batch_size": 2}
FACTS |= {"drop_last": False, "replacement": False}
FACTS |= dict.fromkeys(("replicas", "sampler_rank", "seed", "shuffle"))


def hashes(batch):
    """All ranks have the same data."""
    return {"contents": [f"sample {index}" for index in batch], "labels": [""] * len(batch)}


def with_draws(batches, length, epochs=1, pads=None):
    """batches[rank], drawn to the end in each epoch."""

    def rows(rank):
        drawn = [
            {"loader": 0, "epoch": epoch, "size": len(batch), "indices": batch, **hashes(batch)}
            for epoch in range(epochs)
            for batch in batches[rank]
        ]
        each = [{"loader": 0, "epoch": epoch, "sampler_epoch": None} for epoch in range(epochs)]
        loader = [{**FACTS, "length": length, "pads": pads}]
        return {"loader": loader, "batch": drawn, "epoch": each, "end": each, "trained": each}

    return evidence(more=rows)


def test_duplicates_are_problems():
    assert [f.check for f in check(with_draws([[[0, 1]], [[0, 1]]], 2, pads=False))] == ["duplicates"]


def test_padding_is_none():
    assert list(check(with_draws([[[0, 1]], [[2, 0]]], 3))) == []


def test_how_many_steps_would_show_the_second_epoch():
    first = with_draws([[[0, 1]], [[2, 3]]], 101)
    for records in first.ranks.values():
        records.of("loader")[0]["replicas"] = 2
        records.kinds["set_epoch"] = [{"epoch": 0}]
    said = next(not_judged(first))
    assert "set_epoch() was called" in said and "--steps above 26, the batches" in said  # 51 samples by 2


def test_what_one_epoch_cannot_show_is_said():
    said = next(not_judged(with_draws([[[0, 1]], [[2, 3]]], 4)))
    assert "set_epoch() was not called yet" in said and "--steps above those of an epoch" in said
    assert list(not_judged(with_draws([[[0, 1]], [[2, 3]]], 4, epochs=2))) == []
    assert "no DataLoader" in next(not_judged(evidence()))
