"""Options of a group, and the stores that it is made over."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import HERE


def plan_of(options: object) -> str:
    """On a rank: the plan that a group with these options runs, once it has run one."""
    group = dist.new_group(range(HERE.size), pg_options=options)
    tensor = torch.ones(100)
    dist.all_reduce(tensor, group=group)
    assert float(tensor[0]) == HERE.size
    description = group._get_backend(torch.device("cpu")).describe()
    dist.destroy_process_group(group)
    return next(line for line in description.splitlines() if line.startswith("plan: ")).split()[1]


def plan_with(field: str | None = None, value: str = "", as_dict: bool = False) -> str:
    """On a rank: plan_of ringdp.Options(field=value), the same as a dict, or no options at all."""
    if field is None:
        return plan_of(None)
    return plan_of({field: value} if as_dict else ringdp.Options(**{field: value}))


def test_options_choose_the_plan_of_their_group(pair):
    assert pair.run(plan_with) == ["arena"] * 2
    assert pair.run(plan_with, "algorithm", "ring") == ["ring"] * 2
    assert pair.run(plan_with, "algorithm", "direct", True) == ["direct"] * 2
    assert pair.run(plan_with) == ["arena"] * 2


def test_options_outrank_the_environment(world_of):
    ring = world_of(2, algorithm="ring")
    assert ring.run(plan_with) == ["ring"] * 2
    assert ring.run(plan_with, "algorithm", "arena") == ["arena"] * 2
    assert ring.run(plan_with, "segment_bytes", "4096") == ["ring"] * 2


def test_a_bad_variable_is_refused_by_name(run_on_fresh_ranks):
    world = run_on_fresh_ranks(1, algorithm="rong")
    error = world.attempt(plan_with_join)[0].error
    assert (
        "RINGDP_ALGORITHM: invalid value 'rong' for algorithm (expected one of: auto, arena, direct, exchange, ring"
        in error
    ), error


def plan_with_join() -> None:
    """On a rank: init_process_group, as a user's script calls it."""
    from ranks import join

    join(10.0, {})


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("algorithm", "rong", "(expected one of: auto, arena, direct, exchange, ring"),
        ("segment_bytes", "12x", "a whole number from 64 to"),
        ("segment_bytes", "1", "a whole number from 64 to"),
        ("spin_us", "-1", "a whole number from 0 to"),
        ("transport", "", "(expected one of: auto, shm, tcp)"),
        ("algoritm", "ring", "ringdp has no setting 'algoritm'; it has transport, algorithm"),
    ],
)
def test_bad_fields_and_values_are_refused_with_what_is_accepted(field, value, named):
    options = ringdp.Options()
    before = dict(options.fields())
    with pytest.raises(dist.DistBackendError, match="InvalidArgument") as error:
        options.set(field, value)
    assert named in str(error.value)
    assert options.fields() == before


def test_what_is_set_can_be_read():
    options = ringdp.Options(segment_bytes=4096, order="rotated")
    assert options.get("segment_bytes") == "4096"
    assert options.get("order") == "rotated"
    assert options.fields() == {"segment_bytes": "4096", "order": "rotated"}


def test_attributes_are_fields():
    options = ringdp.Options(order="rotated")
    options.segment_bytes = 4096
    options._timeout = timedelta(seconds=5)
    assert options.fields() == {"segment_bytes": "4096", "order": "rotated"}
    assert (options.segment_bytes, options.order, options.transport) == ("4096", "rotated", "auto")
    assert options._timeout == timedelta(seconds=5)
    assert not hasattr(options, "is_high_priority_stream")
    with pytest.raises(dist.DistBackendError, match="no setting 'is_high_priority_stream'; it has transport"):
        options.is_high_priority_stream = True


def test_tuned_values_stand_in_for_defaults_only(monkeypatch):
    options = ringdp.Options(slot_bytes_of_two=4096)
    for field in ("slot_bytes_of_two", "slot_bytes_of_more", "tree_bytes"):
        options.set_tuned(field, "8192")
    monkeypatch.setenv("RINGDP_TREE_BYTES", "5")
    for each in (options, options.__copy__()):
        got = [each.get(field) for field in ("slot_bytes_of_two", "slot_bytes_of_more", "tree_bytes")]
        assert got == ["4096", "8192", "5"], "Options, tuned, environment"
        assert each.fields() == {"slot_bytes_of_two": "4096"}
    with pytest.raises(dist.DistBackendError, match="invalid value '1' for slot_bytes_of_two"):
        options.set_tuned("slot_bytes_of_two", "1")


def limits_described() -> str:
    """On a rank: what a new group's plan says of its limits; rank 1 was never tuned."""
    from ringdp.tools.tune import cache

    if HERE.rank == 0:
        cache.load = lambda: {"one_shot_bytes_of_two": 4321}
    group = dist.new_group(range(HERE.size))
    description = group._get_backend(torch.device("cpu")).describe()
    dist.destroy_process_group(group)
    return description.splitlines()[-1]


def test_all_ranks_use_what_rank_0_measured(run_on_fresh_ranks):
    world = run_on_fresh_ranks(2)
    world.join()
    described = world.run(limits_described)
    assert described[0] == described[1]
    assert "4321 bytes" in described[0]


def join_by_file(path: str) -> float:
    """On a rank: rendezvous through a FileStore."""
    store = dist.FileStore(path, HERE.size)
    dist.init_process_group("ringdp", store=store, rank=HERE.rank, world_size=HERE.size)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return float(tensor[0])


class Broken(dist.Store):
    """A store whose server is gone."""

    def add(self, key: str, amount: int) -> int:
        raise ConnectionError("the server hung up")


def join_broken() -> str:
    """On a rank."""
    with pytest.raises(dist.DistBackendError) as error:
        ringdp._C.Backend(Broken(), 0, 2, "name", ringdp.Options())
    return str(error.value)


def join_alone(timeout_s: float) -> str:
    """On a rank: a world of three of which this rank sees itself only."""
    start = time.monotonic()
    store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False)
    with pytest.raises(dist.DistBackendError) as error:
        dist.init_process_group("ringdp", store=store, rank=0, world_size=3, timeout=timedelta(seconds=timeout_s))
    assert time.monotonic() - start < timeout_s + 2
    return str(error.value)


def test_a_file_store(run_on_fresh_ranks, tmp_path):
    assert run_on_fresh_ranks(3).run(join_by_file, str(tmp_path / "store")) == [3.0] * 3


def test_a_store_that_fails_is_named_with_the_key(run_on_fresh_ranks):
    message = run_on_fresh_ranks(1).run(join_broken)[0]
    assert "the rendezvous store" in message and "'generation/0'" in message, message
    assert "the server hung up" in message


def test_ranks_that_never_come_are_named(run_on_fresh_ranks):
    message = run_on_fresh_ranks(1).run(join_alone, 1.0)[0]
    assert message.startswith("Timeout: "), message
    assert "for ranks 1 and 2 to publish peer_info" in message
