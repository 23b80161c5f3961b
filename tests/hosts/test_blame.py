"""A cable that is throttled is blamed by its rank, from the traces of real hosts; cables that are all alike are not."""

from __future__ import annotations

import pytest
from ringdp.observe.blame import judge
from ringdp.observe.evidence import table_of_folder


def verdict(job, folder):
    job.run("sums", trace=folder)
    return [(finding.cause, finding.ranks) for finding in judge(table_of_folder(folder)) if finding.cause == "link"]


@pytest.mark.long  # a busy machine makes other ranks slow, too
@pytest.mark.parametrize("slow", [0, 2])
def test_a_throttled_cable_is_its_rank_s(make_job, tmp_path, slow):
    job = make_job(3, 1)
    job.network.hosts[slow].throttle(100)
    assert verdict(job, tmp_path / "traces") == [("link", (slow,))]


def test_cables_that_are_all_alike_are_not_blamed(make_job, tmp_path):
    job = make_job(3, 1)
    for host in job.network.hosts:
        host.throttle(200)
    assert verdict(job, tmp_path / "traces") == []
