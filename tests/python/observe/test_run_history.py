"""A history is plain numbers: JSON gives back what went in."""

from __future__ import annotations

import json
from dataclasses import asdict

from ringdp.observe.run_history import History


def test_a_history_survives_json() -> None:
    history = History([1.0, 2.0], [(0, 3.0)], [0.1, 0.2], [(0.1, 0.2, 0.3), None])
    again = History(**json.loads(json.dumps(asdict(history))))
    assert asdict(again) == json.loads(json.dumps(asdict(history)))


def test_histories_do_not_share_lists() -> None:
    History().losses.append(1.0)
    assert History().losses == []
