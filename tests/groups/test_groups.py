"""Several groups at once: nested, crossed, many, in flight together, ended in any order."""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import HERE

MANY = 100
ORDINARY_LIMIT = 1024  # descriptors of a process, unless it has been raised


def total_of(group: dist.ProcessGroup, count: int = 10) -> float:
    """On a rank: the sum of the members' world ranks, by an all_reduce."""
    tensor = torch.full((count,), float(HERE.rank))
    dist.all_reduce(tensor, group=group)
    return float(tensor[-1])


def size_of_process() -> dict[str, int]:
    status = Path("/proc/self/status").read_text()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "rss_mib": int(status.split("VmRSS:")[1].split()[0]) >> 10,
    }


def many() -> tuple[list[bool], dict[str, int], dict[str, int]]:
    """On a rank: a hundred groups under the ordinary limit of descriptors, all used, twice, in any order."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(ORDINARY_LIMIT, hard), hard))
    total_of(dist.group.WORLD)  # threads start with the first call
    before = size_of_process()
    groups = [dist.new_group(range(HERE.size)) for _ in range(MANY)]
    order = random.Random(1).sample(range(MANY), MANY)
    right = [total_of(groups[i]) == sum(range(HERE.size)) for i in [*range(MANY), *order]]
    during = size_of_process()
    for i in order:
        dist.destroy_process_group(groups[i])
    dist.barrier()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return right, before, during


def test_a_hundred_groups_fit_into_an_ordinary_process(make_world):
    for right, before, during in make_world(4).run(many):
        assert all(right)
        assert during["threads"] == before["threads"]
        assert during["rss_mib"] - before["rss_mib"] < 2 * MANY


def nested() -> dict[str, float]:
    """On a rank of 8: data parallel groups inside tensor and pipeline parallel ones, dp x pp x tp = 2 x 2 x 2."""
    found = {}
    for name, stride in (("tp", 1), ("pp", 2), ("dp", 4)):
        for first in range(HERE.size):
            if (first // stride) % 2:
                continue
            group = dist.new_group([first, first + stride])
            if HERE.rank in (first, first + stride):
                found[name] = total_of(group)
    found["world"] = total_of(dist.group.WORLD)
    return found


def test_dimensions_nest(make_world):
    for rank, found in enumerate(make_world(8).run(nested)):
        pairs = {name: float(rank + (rank ^ stride)) for name, stride in (("tp", 1), ("pp", 2), ("dp", 4))}
        assert found == {**pairs, "world": 28.0}


def in_flight_together() -> bool:
    """On a rank: an expert all_to_all and a data-parallel all_reduce at once, started in crossed order."""
    experts, data = dist.new_group(range(HERE.size)), dist.new_group(range(HERE.size))
    n, right = HERE.size, True
    for step in range(20):
        sent = torch.arange(n * 5000.0) + HERE.rank
        got, gradient = torch.empty_like(sent), torch.full((200_000,), float(HERE.rank + step))
        calls = [
            lambda got=got, sent=sent: dist.all_to_all_single(got, sent, group=experts, async_op=True),
            lambda gradient=gradient: dist.all_reduce(gradient, group=data, async_op=True),
        ]
        if (HERE.rank + step) % 2:
            calls.reverse()
        work = [call() for call in calls]
        random.Random(100 * step + HERE.rank).shuffle(work)
        for each in work:
            each.wait()
        wanted = torch.cat([torch.arange(HERE.rank * 5000.0, (HERE.rank + 1) * 5000.0) + rank for rank in range(n)])
        right &= torch.equal(got, wanted) and bool((gradient == sum(range(n)) + n * step).all())
    return right


def test_two_groups_in_flight_do_not_deadlock(make_world):
    assert make_world(4).run(in_flight_together) == [True] * 4


def ended_in_any_order() -> list[float]:
    """On a rank: groups that share ranks; every rank ends them in an order of its own and goes on with the others."""
    members = [[0, 1, 2, 3], [0, 1], [2, 3], [1, 2, 3], [0, 3]]
    groups = [(ranks, dist.new_group(ranks)) for ranks in members]
    mine = [group for ranks, group in groups if HERE.rank in ranks]
    totals = [total_of(group) for group in mine]
    for group in random.Random(HERE.rank).sample(mine, len(mine)):
        dist.destroy_process_group(group)
    return [*totals, total_of(dist.group.WORLD)]


def test_groups_end_in_any_order(make_world):
    totals = [6.0, 1.0, 5.0, 6.0, 3.0]
    members = [[0, 1, 2, 3], [0, 1], [2, 3], [1, 2, 3], [0, 3]]
    for rank, found in enumerate(make_world(4).run(ended_in_any_order)):
        wanted = [total for total, ranks in zip(totals, members, strict=True) if rank in ranks]
        assert found == [*wanted, 6.0]


def sequences() -> list[int]:
    """On a rank: sequence numbers count the collectives of each group, not its messages."""
    cpu, group = torch.device("cpu"), dist.new_group(range(HERE.size))
    backend = group._get_backend(cpu)
    seen = [backend._get_sequence_number_for_group()]
    for _ in range(3):
        dist.all_reduce(torch.ones(2), group=group)
    work = dist.isend(torch.ones(1), (HERE.rank + 1) % HERE.size, group=group)
    dist.recv(torch.ones(1), (HERE.rank - 1) % HERE.size, group=group)
    work.wait()
    seen.append(backend._get_sequence_number_for_group())
    dist.barrier(group=group)
    return [*seen, backend._get_sequence_number_for_group()]


def test_sequence_numbers_count_collectives(make_world):
    assert make_world(3).run(sequences) == [[0, 3, 4]] * 3


def own_options() -> tuple[str, str]:
    """On a rank: a group with options of its own, made of a deep copy as split_group makes one."""
    import copy

    options = copy.deepcopy(ringdp.Options(algorithm="ring", segment_bytes=4096))
    group = dist.new_group(range(HERE.size), pg_options=options)
    assert total_of(group, 10_000) == sum(range(HERE.size))
    described = [each._get_backend(torch.device("cpu")).describe() for each in (group, dist.group.WORLD)]
    return tuple(text.splitlines()[-1].split(" (")[0] for text in described)


def test_options_are_the_groups_own(make_world):
    world = make_world(2)
    [first, second] = world.run(own_options)
    assert first == second and first[0] == "plan: ring" and first[1] != "plan: ring"


@pytest.mark.parametrize("roots", [[0, 1], [1, 0]])
def test_object_collectives_in_subgroups(make_world, roots):
    assert make_world(3).run(objects_in_pairs, roots) == [[None], [[1, 2]], [[1, 2]]]


def objects_in_pairs(roots: list[int]) -> list[object]:
    """On a rank: ranks 1 and 2 gather objects in a group of their own."""
    group = dist.new_group([1, 2])
    if HERE.rank == 0:
        return [None]
    gathered: list[object] = [None, None]
    dist.all_gather_object(gathered, HERE.rank, group=group)
    for root in roots:
        said = [HERE.rank]
        dist.broadcast_object_list(said, group=group, group_src=root)
        assert said == [root + 1]
    return [gathered]
