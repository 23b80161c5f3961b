"""What ranks are fed: shares counted, expected, and what the textbooks quote."""

from __future__ import annotations

import json

import pytest
from ringdp.examples import sampler


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
