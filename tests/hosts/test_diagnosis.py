"""A slow network between hosts is named: a throttled cable by its rank, a contended link by `ringdp doctor`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest
from jobs import PORT
from planted import ARGUMENTS, script
from ringdp.tools.observe.blame import judge
from ringdp.tools.observe.evidence import table_of_folder


def verdict(job, folder):
    job.run("sums", trace=folder)
    return [(finding.cause, finding.ranks) for finding in judge(table_of_folder(folder)) if finding.cause == "link"]


@pytest.mark.long
@pytest.mark.parametrize("slow", [0, 2])
def test_a_throttled_cable_is_its_rank_s(make_job, tmp_path, slow):
    job = make_job(3, 1)
    job.network.hosts[slow].throttle(25)  # its bytes take longer than those of the others on a busy machine
    assert verdict(job, tmp_path / "traces") == [("link", (slow,))]


def test_cables_that_are_all_alike_are_not_blamed(make_job, tmp_path):
    job = make_job(3, 1)
    for host in job.network.hosts:
        host.throttle(200)
    assert verdict(job, tmp_path / "traces") == []


def launcher(network, train):
    """A shell's line that runs torchrun on every host."""
    lines = []
    for node, host in enumerate(network.hosts):
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(network.hosts)}"]
        command += [f"--node-rank={node}", "--nproc-per-node=1", f"--master-addr={network.hosts[0].address}"]
        lines.append(shlex.join(host.command([*command, f"--master-port={PORT}", str(train), *ARGUMENTS])))
    return ["bash", "-c", " & ".join(lines) + " & wait"]


@pytest.mark.long
@pytest.mark.parametrize(("megabits", "found"), [(40, {"link"}), (None, set())])
def test_a_contended_link_is_named(make_job, tmp_path, megabits, found):
    network = make_job(2, 1).network
    for host in network.hosts:
        if megabits:
            host.throttle(megabits)
    doctor = [sys.executable, "-m", "ringdp", "doctor", "--json", "--", *launcher(network, script(tmp_path, "wide"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(doctor, capture_output=True, text=True, timeout=240, env=environment)
    assert result.returncode in (0, 1), result.stderr
    findings = json.loads(result.stdout)["findings"]
    assert {f["check"] for f in findings if f["check"] in ("link", "straggler")} == found, findings
