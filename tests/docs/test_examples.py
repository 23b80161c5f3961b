"""The files of docs/examples: what they start is understood by the parsers that would read it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ringdp.tools.hosts.launch import launch_of
from shell_lines import problem

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples"
HOSTS = ("node-a", "node-b")
JOB = {"SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "2"}


def commands_of_slurm(folder: Path) -> list[str]:
    """What the script hands to srun, in order: the script runs, with a scontrol and an srun of our own."""
    programs = {"scontrol": f"printf '%s\\n' {' '.join(HOSTS)}", "srun": f'echo "$@" >> {folder}/started'}
    for name, line in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    environment = {**os.environ, **JOB, "SLURM_CPUS_PER_TASK": "16", "PATH": f"{folder}:{os.environ['PATH']}"}
    script = ["bash", str(EXAMPLES / "slurm.sbatch"), "train.py"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return (folder / "started").read_text().splitlines()


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_slurm_checks_hosts_and_starts_the_job(tmp_path):
    check, job = commands_of_slurm(tmp_path)
    assert [problem(check), problem(job)] == [None, None]
    assert check == f"ringdp check-hosts -- {job}"
    launch = launch_of(job.split())
    assert (launch.hosts, launch.ranks_per_host, launch.address, launch.host) == (2, 8, HOSTS[0], None)


def test_kubernetes_checks_hosts_and_starts_the_job(monkeypatch):
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((EXAMPLES / "pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    # What the operator sets for the second pod.
    pods = sum(replica["replicas"] for replica in replicas.values())
    given = {"NNODES": pods, "NPROC_PER_NODE": job["spec"]["nprocPerNode"], "NODE_RANK": 1}
    for name, value in {**given, "MASTER_ADDR": "ringdp-master-0", "MASTER_PORT": 23456}.items():
        monkeypatch.setenv(f"PET_{name}", str(value))
    for replica in replicas.values():
        [container] = replica["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        *shell, line = container["command"]
        assert shell == ["sh", "-c"]
        check, start = line.split(" && exec ")
        assert [problem(check), problem(start)] == [None, None]
        launch = launch_of(check.partition(" -- ")[2].split())
        assert (launch.hosts, launch.ranks_per_host, launch.host) == (2, 8, 1)
        assert (launch.address, launch.port) == ("ringdp-master-0", 23456)
