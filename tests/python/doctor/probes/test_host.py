"""ringdp/doctor/probes/host.py: cores and threads, when the script has set them."""

from __future__ import annotations

import os

import torch
from ringdp.doctor.probes import host


def test_the_place_is_looked_at_once_in_the_second_step(rig, rows, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    host.install(rig)
    for _ in range(3):
        for look in rig.before_step:
            look()
        rig.next_step()
    (row,) = rows
    assert row["cores"] == sorted(os.sched_getaffinity(0)) and row["host_cores"] == os.cpu_count()
    assert (row["threads"], row["openmp"]) == (torch.get_num_threads(), "3")
