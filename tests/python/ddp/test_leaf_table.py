"""What ranks tell each other at the end of a step survives the numbers; weights are added up along the tree."""

from __future__ import annotations

import pytest
from ringdp.ddp.leaf_table import Told, agreed, number_of, told


@pytest.mark.parametrize(
    "one",
    [
        Told(used=[False, True]),
        Told(3, [0, 4, 4], {0: 2.5, 4: 0.0}, [True, True], 7),
        Told(1 << 40, [2, 9], {}, [False, False], 1),
        Told(-1, [-3], {}, [True, False], 0),
        Told(0, [1], {}, [True], 1, sent=False, changed=True, expected=number_of([[1], [0, 2, 3, 4]])),
    ],
)
def test_numbers_and_back(one):
    assert told(one.numbers(5), 5) == one


def test_numbers_of_ranks_have_one_length():
    assert len(Told(used=[True]).numbers(4)) == len(Told(1, [0, 1, 9], {0: 1.0}, [True], 3).numbers(4))


def test_ranks_agree():
    ranks = [Told(2, [1, 0], {}, [True, False]), Told(used=[False, False]), Told(2, [2], {}, [True, False])]
    result = agreed(ranks, 3)
    assert result.leaves == [[0, 1], [], [2]]
    assert (result.used, result.divisor, result.rank_of(2)) == ([True, False], 3.0, 2)
    assert (result.sent, result.changed) == (True, False)
    ranks[1].sent, ranks[2].changed = False, True
    assert (agreed(ranks, 3).sent, agreed(ranks, 3).changed) == (False, True)


def test_two_ideas_of_the_allotment_are_an_error():
    expected = [number_of(allotment) for allotment in ([[0], [1]], [[1], [0]], None)]
    assert len(set(expected)) == 3
    for other in expected[1:]:
        ranks = [Told(0, [0], {}, [True], expected=expected[0]), Told(0, [1], {}, [True], expected=other)]
        with pytest.raises(RuntimeError, match="by different allotments of micro-batches .rank 0: 0x"):
            agreed(ranks, 2)


def test_weights_have_one_order():
    weights = [1.0, 1e16, 1.0, 1.0, 1.0, 1.0]
    want = ((1 + 1e16) + 1) + ((1.0 + 1) + 1)
    for split in (1, 3, 6):
        ranks = [Told(0, list(range(split)), dict(enumerate(weights[:split])), [])]
        ranks.append(Told(0, list(range(split, 6)), {split + i: w for i, w in enumerate(weights[split:])}, []))
        if split == 6:
            ranks[1].step = None
        assert agreed(ranks, 6).divisor == want != sum(weights)
