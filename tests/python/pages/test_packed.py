"""Packed traces: nothing is lost that a page shows."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from ringdp.pages.packed import packed
from ringdp.playback.play import play


def test_a_trace_by_its_scheme_and_size() -> None:
    book = packed([play("direct", 2, 2), play("direct", 3, 3), play("tree", 2, 2)])
    assert {name: sorted(sizes) for name, sizes in book.items()} == {"direct": ["2x2", "3x3"], "tree": ["2x2"]}


def test_frames_word_for_word() -> None:
    trace = json.loads(json.dumps(packed([play("direct", 2, 2)])))["direct"]["2x2"]
    assert trace == {
        "bytes": 4,
        "rounds": 2,
        "inputs": [[10, 11], [20, 21]],
        "frames": [
            [
                1,
                "sums",
                [[0, 1, "link", [1], [0], 4], [1, 0, "link", [0], [1], 4]],
                [[0, 0, [0, 1], 30], [1, 1, [0, 1], 32]],
                [4, 4],
                [12, 12],
            ],
            [
                2,
                "results",
                [[0, 1, "link", [0], [0, 1], 4], [1, 0, "link", [1], [0, 1], 4]],
                [[0, 1, [0, 1], 32], [1, 0, [0, 1], 30]],
                [8, 8],
                [12, 12],
            ],
        ],
    }


def test_fractions_stay() -> None:
    trace = play("direct", 2, 2)
    trace.inputs[0][0] = 0.5
    assert packed([trace])["direct"]["2x2"]["inputs"][0] == [0.5, 11]
