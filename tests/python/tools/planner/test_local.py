"""What workers that step alone send: figures against the formula by hand."""

from __future__ import annotations

from functools import partial

import pytest
from ringdp.tools.planner.local import KINDS
from ringdp.tools.planner.question import Answer, InputError

(LOCAL,) = KINDS
near = partial(pytest.approx, rel=1e-3)  # but for padding to whole blocks
# Per element, the mean of both halves of the way.
BYTES = {
    "none": 4,
    "int8": 1 + 4 / 256,
    "int4": 0.5 + 4 / 256,
    "topk": (12 + 12 * 8) / 2 / 256,
    "topk-2bit": (4 + 96 + 16 + 4 + 512 + 16 * 8) / 2 / 4096,
}


def asked(**given: str) -> Answer:
    return LOCAL.ask({"params": "128M", "workers": "8", "every": "100", **given})


def rows(**given: str) -> dict[str, tuple]:
    (table,) = asked(**given).tables
    return {row[0]: row for row in table.rows}


def test_one_worker_on_each_rank_sends_an_all_reduce_of_codes():
    for name, row in rows().items():
        assert row[1] == near(2 * 7 / 8 * BYTES[name] * 128e6 / 100)
        assert row[2] == near(BYTES[name] / 4 / 100)
        assert row[3:] == (None,) * 6
    assert asked()["bytes_per_step_int8"] == rows()["int8"][1]


def test_several_workers_on_each_rank():
    """Whole subtrees are one sum in float32; codes are one each, and the mean."""
    for name, row in rows(ranks="2").items():
        if name.startswith("topk"):
            continue
        sent = 2 if name == "none" else 4 + 1
        assert row[1] == near(sent * 1 / 2 * BYTES[name] * 128e6 / 100)


def test_alone_nothing_is_sent():
    assert all(row[1] == 0 and row[2] is None for row in rows(ranks="1").values())


def test_rates_and_times():
    found = rows(fragments="4", delay="10", bandwidth="10MB/s", step_seconds="2s")
    apart = rows(fragments="4", delay="10", bandwidth="10MB/s", step_seconds="2s", rtt="3s")
    for name, row in found.items():
        fragment = 2 * 7 / 8 * BYTES[name] * 32e6
        assert apart[name][:5] == row[:5] and apart[name][5] == pytest.approx(row[5] + 3)
        assert row[3] == near(4 * fragment / 100 / 2)
        assert row[4] == near(fragment / (10 * 2))
        assert row[5] == near(fragment / 10e6)
        least_delay, least_every, ratio = row[6:]
        # Both halves are hidden, each by half of the steps; in one step less they are not.
        assert rows_with(least_delay)[name][8] == 1 < rows_with(least_delay - 1)[name][8]
        assert ratio == 1 if least_delay <= 10 else ratio > 1
        # In so many steps all fragments pass the link, and in one less they do not, or none could be that late.
        assert least_every * 2 >= 4 * row[5] * 0.999 and least_every > least_delay
        assert (least_every - 1) * 2 < 4 * row[5] or least_every == least_delay + 1


def rows_with(delay: int) -> dict[str, tuple]:
    """Of test_rates_and_times with another delay."""
    return rows(fragments="4", bandwidth="10MB/s", step_seconds="2s", **({"delay": str(delay)} if delay else {}))


def test_what_is_not_hidden_is_waited_for():
    """8 MB to the owners and as much from them in 0.8 s each, and 0.1 s of half a round trip; 4 times in 20 s."""
    link = {"params": "16M", "workers": "2", "every": "40", "fragments": "4", "bandwidth": "10MB/s", "rtt": "200ms"}
    waited = {"": 1.8, "1": 1.3, "2": 0.8, "3": 0.4, "4": 0.0}
    for delay, exposed in waited.items():
        given = {**link, "step_seconds": "500ms", **({"delay": delay} if delay else {})}
        row = rows(**given)["none"]
        assert (row[5], row[6]) == (near(1.8), 4) and row[7] == 13
        assert row[8] == near(1 + 4 * exposed / 20)


def test_advice():
    said = " ".join(asked(delay="4", bandwidth="10MB/s", step_seconds="5s").advice)
    assert "delay=4 hides the way with compress int4, topk, topk-2bit" in said
    said = " ".join(asked(delay="1", bandwidth="1MB/s", step_seconds="1s").advice)
    assert "delay=1 hides the way with compress of none of these" in said
    assert "ranks wait while a fragment is on its way" in " ".join(asked().advice)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ranks": "9"}, "workers=8 on 9 ranks"),
        ({"fragments": "101"}, "fragments=101 with every=100"),
        ({"delay": "100"}, "delay=100 with every=100"),
        ({"workers": "5000"}, "up to 4096 workers"),
    ],
)
def test_what_a_diloco_refuses_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        asked(**given)
