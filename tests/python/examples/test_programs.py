"""The small programs: sampler, scratch_ring, split_batch and train_ddp."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from ranks import HERE, on_ranks
from ringdp.examples import sampler, scratch_ring, split_batch, train_ddp


@pytest.fixture(scope="module")
def rows() -> dict:
    return sampler.report_of(4096, 8, 64)["feeds"]


def test_one_seed_feeds_every_rank_the_same(rows):
    row = rows["plain loader, one seed"]
    assert row["distinct_in_a_step"] == row["seen_in_an_epoch"] == 0.125


def test_own_seeds_overlap_and_miss_a_third(rows):
    row = rows["plain loader, own seeds"]
    assert row["expected_distinct_in_a_step"] == pytest.approx(0.9469885, abs=1e-6)
    assert row["expected_seen_in_an_epoch"] == pytest.approx(0.6563911, abs=1e-6)
    assert row["distinct_in_a_step"] == pytest.approx(row["expected_distinct_in_a_step"], abs=0.01)
    assert row["seen_in_an_epoch"] == pytest.approx(row["expected_seen_in_an_epoch"], abs=0.01)


@pytest.mark.parametrize("name", ["DistributedSampler", "DistributedSampler, no set_epoch"])
def test_a_distributed_sampler_deals_out_everything_once(rows, name):
    assert rows[name]["distinct_in_a_step"] == rows[name]["seen_in_an_epoch"] == 1.0


def test_only_a_forgotten_set_epoch_repeats_the_order(rows):
    assert [name for name, row in rows.items() if not row["fresh_order"]] == ["DistributedSampler, no set_epoch"]


def test_a_planted_duplicate_is_counted():
    def feed(rank: int, epoch: int) -> list[int]:
        return list(range(500 * rank, 500 * rank + 500)) if rank == 0 else [0, *range(501, 1000)]

    shares = sampler.count(feed, 1000, 2, 250)
    assert shares.seen_in_an_epoch == 999 / 1000
    assert shares.distinct_in_a_step == 999 / 1000 and not shares.fresh_order


def test_the_command_prints_a_table_and_json(capsys):
    assert sampler.main([]) == 0
    assert "12.5% (~12.5%)" in capsys.readouterr().out
    assert sampler.main(["--json", "--samples", "64", "--ranks", "2", "--batch", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["feeds"]["plain loader, one seed"]["distinct_in_a_step"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--ranks", "0"], "must be at least 1"), (["--samples", "100"], "--samples is 100, must be a multiple")],
)
def test_bad_numbers_are_named(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        sampler.main(arguments)
    assert ended.value.code == 2 and said in capsys.readouterr().err


LENGTHS = [0, 1, 2, 3, 4, 5, 7, 8, 1001]
# Of 4 ranks, in float64; textbooks print (-24.4438, -10.2058), 2.4444 and 1.0206.
GRADIENT, W, B = (-24.443813250224323, -10.205812899383586), 2.44438132502, 1.02058128994


def sums_by_hand() -> list[bool]:
    """On a rank: whether the ring gives the sums, for every length; whole numbers, so every order is exact."""
    equal = []
    for length in LENGTHS:
        parts = [torch.arange(length).float() * (rank + 1) + rank for rank in range(HERE.size)]
        mine = parts[HERE.rank].clone()
        total = scratch_ring.ring_all_reduce(mine)
        equal.append(torch.equal(total, sum(parts)) and torch.equal(mine, parts[HERE.rank]))
    return equal


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_ring_sums_any_length(world_of, ranks):
    for equal in world_of(ranks).run(sums_by_hand):
        assert equal == [True] * len(LENGTHS)


@on_ranks(4)
def test_four_ranks_take_six_rounds_of_a_quarter() -> None:
    rounds, pass_on = [], scratch_ring.pass_on

    def counting(leaving: torch.Tensor, arriving: torch.Tensor) -> torch.Tensor:
        rounds.append((leaving.numel(), arriving.numel()))
        return pass_on(leaving, arriving)

    scratch_ring.pass_on = counting
    try:
        total = scratch_ring.ring_all_reduce(torch.tensor([(HERE.rank + 1) * 10.0 + c for c in range(4)]))
    finally:
        scratch_ring.pass_on = pass_on
    assert rounds == [(1, 1)] * 6  # elements sent and received: 24 bytes of 16
    assert total.tolist() == [100.0, 104.0, 108.0, 112.0]


def on_a_rank() -> dict:
    return scratch_ring.work()


def test_the_step_has_the_figures_of_the_whole_batch(world_of):
    reports = world_of(4).run(on_a_rank)
    for report in reports:
        assert report == reports[0]
        assert report["mean_gradient"] == pytest.approx(GRADIENT, rel=1e-6)
        assert report["big_batch_gradient"] == pytest.approx(GRADIENT, rel=1e-14)
        assert (report["w"], report["b"]) == pytest.approx((W, B), rel=1e-6)
        assert np.mean(report["local_gradients"], axis=0) == pytest.approx(GRADIENT, rel=1e-14)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_by_hand_and_by_ringdp_have_the_same_bits(world_of, ranks):
    for report in world_of(ranks).run(on_a_rank):
        assert report["equal_to_ringdp_ring"]
        assert report["gap_to_rank_order"] <= (0.0 if ranks == 2 else 1e-5)  # two addends have one order


def test_on_ranks_it_prints_json(on_two_ranks):
    report = on_two_ranks(scratch_ring.MODULE)
    assert report["ranks"] == 2 and report["mean_gradient"] == pytest.approx(report["big_batch_gradient"], rel=1e-6)
    assert "mean over the ring" in scratch_ring.render(report)


def test_another_sum_would_be_shown():
    report = {"local_gradients": [[1.0, 2.0]], "mean_gradient": [1.0, 2.0], "big_batch_gradient": [1.0, 3.0]}
    report |= {"w": 1.0, "b": 1.0, "equal_to_ringdp_ring": False, "gap_to_rank_order": 0.0}
    assert "same bits    NO" in scratch_ring.render(report)


def on_a_rank_split_batch() -> dict:
    return split_batch.work()


@pytest.mark.parametrize(("ranks", "rows"), [(2, 2560), (4, 1280)])
def test_parts_are_the_whole_and_forward_sends_nothing(world_of, ranks, rows):
    for report in world_of(ranks).run(on_a_rank_split_batch):
        assert report["rows_per_rank"] == rows
        assert report["concatenation_equals_whole"]
        assert report["bytes_moved_in_forward"] == 0
        assert report["gradient_gap"] <= 1e-6


def counted_around_a_sum() -> int:
    """On a rank: what the counter adds for 4 KiB."""
    before = split_batch.counted_bytes()
    torch.distributed.all_reduce(torch.ones(1024))
    return split_batch.counted_bytes() - before


def test_the_counter_sees_communication(world_of):
    assert all(moved >= 4096 for moved in world_of(2).run(counted_around_a_sum))


def test_products_are_exact_in_float32():
    rows = split_batch.whole_numbers(8, split_batch.INPUTS, 1)
    weights = split_batch.whole_numbers(split_batch.INPUTS, 3, 2)
    assert torch.equal(split_batch.multiply(rows, weights).double(), rows.double() @ weights.double())
    assert split_batch.INPUTS * split_batch.LARGEST**2 < 2**24


def test_uneven_parts_are_refused():
    assert split_batch.problem_of(2) is None and split_batch.problem_of(5) is None
    assert "5120 rows do not come out even on 3 ranks" in split_batch.problem_of(3)


def test_the_text_has_the_figures():
    report = {"ranks": 2, "rows": 5120, "rows_per_rank": 2560, "bytes_moved_in_forward": 0}
    text = split_batch.render({**report, "concatenation_equals_whole": False, "gradient_gap": 2e-9})
    assert "2560 of 5120" in text and "NO" in text and "2.0e-09" in text


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
