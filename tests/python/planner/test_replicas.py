"""ringdp/planner/replicas.py: rank 0's values on all ranks, other shapes refused."""

import pytest
from ringdp.planner.replicas import built

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_have_rank_0s_values(ranks):
    found = built([torch.full((2, 3), float(rank + 1)) for rank in range(ranks)])
    assert all(torch.equal(taken, torch.ones(2, 3)) for taken in found)


def test_other_shapes_are_refused_where_they_are_other():
    _, refused = built([torch.zeros(3), torch.zeros(4)])
    assert "sizes [4] appears not to match" in refused


def test_an_interface_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nope0")
    with pytest.raises(ImportError, match="gloo does not start: .*nope0"):
        built([torch.zeros(3), torch.zeros(3)])
