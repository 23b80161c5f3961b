"""Cores and threads, when the script has set them."""

from __future__ import annotations

import os

import torch
from ringdp.tools.doctor.probes import host


def test_the_place_is_looked_at_once_in_the_second_step(context, rows):
    host.install(context)
    for _ in range(3):
        for look in context.before_step:
            look()
        context.next_step()
    (row,) = rows
    assert row["cores"] == sorted(os.sched_getaffinity(0)) and row["host_cores"] == os.cpu_count()
    assert (row["threads"], row["paths"]) == (torch.get_num_threads(), [])


def paths_here():
    return host._paths()


def test_how_the_backend_reaches_the_others(run_on_fresh_ranks):
    for transport, said in ((None, "shm: same boot id"), ("tcp", "tcp: asked for with transport=tcp")):
        world = run_on_fresh_ranks(2, **({"transport": transport} if transport else {}))
        world.join()
        for rank, found in enumerate(world.run(paths_here)):
            assert [path["peer"] for path in found] == [1 - rank] and found[0]["why"].startswith(said)
        world.leave()


def test_a_backend_that_does_not_say(alone):
    assert host._paths() == []
