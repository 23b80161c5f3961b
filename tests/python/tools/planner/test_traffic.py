"""Bytes by algorithm, elements by stage, buckets; the worked example against a ring played here."""

from __future__ import annotations

import pytest
from ringdp import _native
from ringdp.tools.planner.question import InputError
from ringdp.tools.planner.traffic import KINDS, ring

COMM, VOLUME, BUCKET, _ = KINDS


def test_seconds_through_a_server():
    """E5: 143 TB at 400 GB/s are minutes, and both directions twice that."""
    answer = COMM.ask({"params": "70B", "ranks": "1024", "bandwidth": "400GB/s"})
    assert answer["server_seconds_one_way"] == pytest.approx(358, rel=1e-3)
    assert answer["server_seconds"] == pytest.approx(716, rel=1e-3)
    assert answer["ring_seconds"] == pytest.approx(0.6993, rel=1e-3)


def test_latency_adds_a_round_at_a_time():
    common = {"params": "1M", "ranks": "5", "bandwidth": "1GB/s"}
    plain, late = (COMM.ask({**common, **extra}) for extra in ({}, {"latency_us": "10"}))
    assert late["ring_seconds"] - plain["ring_seconds"] == pytest.approx(8 * 10e-6)
    with pytest.raises(InputError, match="needs --bandwidth"):
        COMM.ask({"params": "1M", "ranks": "5", "latency_us": "10"})


def test_narrower_wires_save_twice_the_buffer():
    """B29, E15: what is saved on the wire is 2(N-1)/N of what the buffer shrinks by."""
    bf16, fp8 = (COMM.ask({"params": "70B", "ranks": "1024", "wire": wire}) for wire in ("bf16", "fp8"))
    assert bf16["gradient_bytes"] - fp8["gradient_bytes"] == 70e9
    assert bf16["ring_bytes_per_rank"] - fp8["ring_bytes_per_rank"] == pytest.approx(140e9, rel=2e-3)
    assert bf16["ring_bytes_saved_against_fp32"] == pytest.approx(bf16["ring_bytes_per_rank"])


def test_volume_of_micro_batches_and_bytes():
    """E16, E18."""
    answer = VOLUME.ask({"params": "1B", "micro_batches": "4", "wire": "fp32"})
    assert [answer[f"stage{s}_elements"] for s in range(4)] == [2e9, 2e9, 5e9, 12e9]
    assert answer["stage3_bytes_sent"] == 4 * answer["stage3_elements"]
    assert (answer["stage3_gathered_elements"], answer["stage2_reduced_elements"]) == (8e9, 4e9)
    assert answer["no_sync_share"] == 0.25
    assert any("reduce-scatters all 4" in sentence for sentence in answer.advice)


def test_a_bucket_s_best_size_is_the_cheapest_row():
    answer = BUCKET.ask({"bandwidth": "100Gb/s", "params": "1B", "launch_us": "50"})
    (table,) = answer.tables
    cheapest = min(table.rows, key=lambda row: row[-1])
    assert cheapest[0] == pytest.approx(answer["suggested_bucket_mb"])
    assert any(row[0] == 25 for row in table.rows)


def test_a_wire_without_a_model_is_refused():
    with pytest.raises(InputError, match="needs --params together with --wire"):
        BUCKET.ask({"bandwidth": "100Gb/s", "wire": "fp8"})


def played(ranks):
    """(after round 1, chunk and sum owned by each rank) of the textbook's schedule: rank r sends chunk (r-s) mod N."""
    held = [[(r + 1) * 10 + c for c in range(ranks)] for r in range(ranks)]
    first = None
    for step in range(ranks - 1):
        moving = [(r, (r - step) % ranks, held[r][(r - step) % ranks]) for r in range(ranks)]
        for sender, chunk, value in moving:
            held[(sender + 1) % ranks][chunk] += value
        first = first or [list(row) for row in held]
    return first, [[(r + 1) % ranks, held[r][(r + 1) % ranks]] for r in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_the_real_ring_does_what_the_textbook_says(ranks):
    answer = ring(ranks)
    assert (answer["after_round_1"], answer["owned_after_reduce_scatter"]) == played(ranks)
    assert answer["result"] == [sum((r + 1) * 10 + c for r in range(ranks)) for c in range(ranks)]
    assert answer["rounds"] == 2 * (ranks - 1) and answer["bytes_per_rank"] == 2 * (ranks - 1) * 4


def test_too_many_ranks_are_sent_elsewhere():
    with pytest.raises(InputError, match="at most 64; ringdp plan comm takes more"):
        ring(65)


def test_an_extension_that_cannot_be_used_is_one_line(monkeypatch):
    def refuse():
        raise ImportError("not built: do this")

    monkeypatch.setattr(_native, "load", refuse)
    with pytest.raises(InputError, match="not built: do this"):
        ring(4)
