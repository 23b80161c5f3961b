"""The script's own calls, once each."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ringdp.tools.doctor.probes import collectives


def calls(rows):
    return [(row["number"], row["op"], row["group"], row["count"]) for row in rows if row["kind"] == "call"]


def test_calls_in_order_with_group_and_count(context, rows, alone):
    collectives.install(context)
    group = dist.new_group([0])
    rows.clear()
    dist.all_reduce(torch.ones(3))
    dist.all_gather([torch.ones(2)], torch.ones(2), group=group)
    dist.all_gather_object([None], {"text": "x"})  # two gathers within
    assert [call[1] for call in calls(rows)] == ["all_reduce", "all_gather", "all_gather", "all_gather"]
    assert [call[2:] for call in calls(rows)[:2]] == [("0", 3), ("0", 2)]
    names = [row["name"] for row in rows if row["kind"] == "call"]
    assert names[0] != names[1] == group.group_name
    assert [row["number"] for row in rows if row["kind"] == "back"] == [call[0] for call in calls(rows)]
    assert context.called > 0


def test_one_row_where_torch_calls_itself(context, rows, alone):
    collectives.install(context)
    dist.all_gather_into_tensor(torch.empty(2), torch.ones(2))  # calls all_gather_single in some releases
    assert [call[1] for call in calls(rows)] == ["all_gather_into_tensor"]


def test_every_collective_is_watched():
    wanted = "all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter"
    more = "reduce_scatter_tensor all_to_all all_to_all_single barrier"
    assert {*wanted.split(), *more.split()} <= set(collectives.functions())
    assert not {"send", "new_group", "all_gather_object"} & set(collectives.functions())


def test_a_call_that_fails_does_not_come_back(context, rows, alone):
    collectives.install(context)
    with pytest.raises(TypeError):
        dist.all_reduce("no tensor")
    assert [row["kind"] for row in rows] == ["call"]


def test_a_call_on_a_group_of_others_is_none(context, rows, alone):
    collectives.install(context)
    with pytest.warns(UserWarning, match="does not belong to the given group"):
        dist.all_reduce(torch.ones(1), group=dist.GroupMember.NON_GROUP_MEMBER)
    assert rows == []


def test_after_many_calls_only_signs_of_life(context, rows, alone, monkeypatch):
    monkeypatch.setattr(collectives, "_MOST", 2)
    monkeypatch.setattr(collectives, "_SIGN_EVERY_S", 0.0)
    collectives.install(context)
    for _ in range(4):
        dist.barrier()
    assert calls(rows)[-1][0] == 1
    assert [row["number"] for row in rows if row["kind"] == "calls"] == [2, 3]
    monkeypatch.setattr(collectives, "_SIGN_EVERY_S", 3600.0)
    rows.clear()
    for _ in range(4):
        dist.barrier()
    assert len(rows) == 1


def test_everything_comes_back(context):
    before = dist.all_reduce
    collectives.install(context)
    context.patches.undo()
    assert dist.all_reduce is before is dist.distributed_c10d.all_reduce
