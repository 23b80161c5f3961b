"""TLS between hosts: the same bits, nothing in plain text, and which ranks are let in."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from on_rank import values
from test_network import LEFT_S, TOLD_S

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def why_impossible() -> str:
    """Why this machine makes no certificates; empty when it does."""
    return "" if shutil.which("openssl") else "certificates need the command openssl"


class Certificates:
    """In `folder`: the authorities "ca" and "other"; "member" and "expired" are ca's, "stranger" is other's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for authority in ("ca", "other"):
            self._openssl("req", "-x509", "-days", "2", *self._new(authority), "-out", authority)
        for name, authority, days in (("member", "ca", 1), ("expired", "ca", -1), ("stranger", "other", 1)):
            self._openssl("req", "-new", *self._new(name), "-out", f"{name}.csr")
            by = ["-CA", authority, "-CAkey", f"{authority}.key", "-set_serial", "1", "-days", str(days)]
            self._openssl("x509", "-req", "-in", f"{name}.csr", *by, "-out", name)

    def settings(self, name: str, authority: str = "ca") -> dict[str, object]:
        """The settings of a rank that shows this certificate and asks for those of that authority."""
        files = {"tls_cert": name, "tls_key": f"{name}.key", "tls_ca": authority}
        return {setting: self.folder / file for setting, file in files.items()}

    @staticmethod
    def _new(name: str) -> list[str]:
        return [*KEY, "-keyout", f"{name}.key", "-subj", f"/CN={name}"]

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True, timeout=30)


LISTENER = Path(__file__).resolve().parent / "listen_in.py"
HELLO, CONTROL = b"ringdp\r\n", b"2cdr"  # transport/hello.cc, comm/watch.cc
SECRETS = [HELLO, CONTROL, values(0, 1000, torch.float32).numpy()[40:60].tobytes()]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    """Made once."""
    if why_impossible():
        pytest.skip(why_impossible())
    return Certificates(tmp_path_factory.mktemp("certificates"))


def heard(job, run):
    """What passes eth0 of the first host while `run` runs."""
    host, file = job.network.hosts[0], job.folder / "heard"
    listener = subprocess.Popen(host.command([sys.executable, str(LISTENER), "eth0", str(file)]))
    try:
        while not (file.exists() and file.stat().st_size):
            assert listener.poll() is None, "the listener has ended"
            time.sleep(0.01)
        run()
    finally:
        listener.kill()
        listener.wait()
    return file.read_bytes()


@pytest.mark.parametrize("tls", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_bits_are_those_of_plain_and_nothing_travels_in_plain(make_job, certificates, tls):
    job = make_job(2, 1)
    said = []
    passed = heard(job, lambda: said.extend(job.run("collectives", **(certificates.settings("member") if tls else {}))))
    for own in said:
        assert own["wrong"] == []
        assert tls == any("TLS 1.3" in line for line in own["described"])
    assert [secret in passed for secret in SECRETS] == [not tls] * len(SECRETS)


@pytest.mark.parametrize("culprit", [1, pytest.param(0, marks=pytest.mark.long)])
def test_a_certificate_of_another_authority(make_job, certificates, culprit):
    job = make_job(2, 1)
    stranger, member = certificates.settings("stranger", "other"), certificates.settings("member")
    job.begin("join", only=culprit, others=member, **stranger)
    job.wait()
    for own in job.said():
        assert re.search(r"TLS with rank 0 \(pid \d+ on \S+\) at 10\.77\.0\.1:", own["error"]), own["error"]
        for part in ("its certificate is not accepted here", "RINGDP_TLS_CA="):
            assert part in own["error"]


def test_a_rank_in_plain(make_job, certificates):
    job = make_job(2, 1)
    job.begin("join", only=1, **certificates.settings("member"))
    job.wait()
    for own in job.said():
        for part in ("settings differ", "tls=on", "tls=off"):
            assert part in own["error"]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"tls_cert": "", "tls_key": ""}, "RINGDP_TLS_CERT is not set"),
        ({"openssl": "/no/such/libssl"}, "/no/such/libssl: cannot open"),
        (None, "certificate has expired"),
    ],
)
def test_a_rank_that_cannot_is_named_on_both(make_job, certificates, change, part):
    """tests/cpp/transport/tcp/tls_test.cc has all that is wrong with files."""
    settings = certificates.settings("expired" if change is None else "member") | (change or {})
    job = make_job(2, 1)
    job.begin("join", only=1, others=certificates.settings("member"), **settings)
    job.wait()
    zero, one = (own["error"] for own in job.said())
    assert "InvalidArgument: " in one
    assert "Aborted: the rendezvous was given up by rank 1" in zero
    assert part in zero and part in one


def test_a_rank_killed_under_tls(make_job, certificates):
    job = make_job(2, 2)
    job.begin("train", **certificates.settings("member"))
    job.wait_until_running()
    killed = job.kill(3)
    job.wait(but=3)
    for own in job.said(but=3):
        assert "PeerLost: " in own["error"] and f"rank 3 (pid {job.ranks[3].pid} on " in own["error"]
        assert own["told"] - killed < TOLD_S
        assert own["left"] - own["told"] < LEFT_S
