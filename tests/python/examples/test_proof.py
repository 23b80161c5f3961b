"""The proof: it holds for an honest run and fails for one changed bit."""

from __future__ import annotations

import pytest
from ringdp.examples import proof
from ringdp.examples.corpus import read
from ringdp.examples.proof import Proof, promises_rank_order, prove


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("ddp", ["ringdp", "stock"])
def test_an_honest_run_equals_one_process(tiny, ddp):
    options = tiny("--ddp", ddp)
    found = prove(options, read(options.corpus).train)
    assert found.equal
    assert str(found) == f"equal (sha256 {found.of_one_process[:12]})"


@pytest.mark.usefixtures("alone")
def test_one_other_micro_batch_is_seen(tiny, monkeypatch):
    options = tiny()
    honest = proof._on_this_rank

    def other_order(options, windows, rank, world):
        windows._text = windows._text.clone()
        windows._text[0] ^= 1
        digest = honest(options, windows, rank, world)
        windows._text[0] ^= 1
        return digest

    monkeypatch.setattr(proof, "_on_this_rank", other_order)
    monkeypatch.setattr(proof, "TEXT_BYTES", 200)
    found = prove(options, read(options.corpus).train)
    assert not found.equal
    assert str(found).startswith("DIFFERENT")


def test_one_rank_that_differs_is_a_difference_and_named():
    found = Proof(["a" * 64, "b" * 64, "a" * 64], "a" * 64)
    assert not found.equal
    assert "rank 1 bbbbbbbbbbbb" in str(found)


@pytest.mark.parametrize(
    ("backend", "world", "ddp", "promised"),
    [
        ("ringdp", 8, "stock", True),
        ("cpu:ringdp", 3, "stock", True),
        ("gloo", 2, "stock", True),
        ("gloo", 3, "stock", False),
        ("gloo", 3, "ringdp", True),
    ],
)
def test_who_promises_rank_order(backend, world, ddp, promised):
    assert promises_rank_order(backend, world, ddp) is promised
