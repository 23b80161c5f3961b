"""What groups have counted, and the same for Prometheus."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import urllib.error
import urllib.request

import pytest
from ringdp.tools.observe import stats


def work():
    import ringdp
    import torch
    import torch.distributed as dist

    for number in range(5):
        if dist.get_rank() == 1 and number < 4:
            time.sleep(0.1)
        dist.all_reduce(torch.ones(1000))
    return ringdp.stats()


def fail():
    import ringdp
    import torch
    import torch.distributed as dist

    with contextlib.suppress(dist.DistBackendError):
        dist.all_reduce(torch.ones(3 + dist.get_rank()))
    return ringdp.stats()["groups"]


def nothing():
    import ringdp

    return ringdp.stats()


def test_groups_counters_delays_and_errors(run_on_fresh_ranks):
    world = run_on_fresh_ranks(2)
    assert world.run(nothing)[0]["groups"] == []
    world.join()
    for rank, found in enumerate(world.run(work)):
        (group,) = found["groups"]
        assert (group["rank"], group["world"], group["error"]) == (rank, 2, None)
        assert group["submitted"] == group["counters"]["collectives"] >= 5
        assert len(group["delays"]) == 2 and group["delays"][1] > group["delays"][0]
        assert found["trace"]["written"] >= 4 * 5 and found["trace"]["lost"] == 0
        assert found["trace"]["kept"] == 16384
    for (group,) in world.run(fail):
        assert "Mismatch" in group["error"] or "ranks disagree" in group["error"]


STATS = {
    "groups": [
        {
            "name": 'odd "name"\n',
            "rank": 1,
            "world": 2,
            "submitted": 3,
            "counters": {"collectives": 3, "steps": 12, "rounds": 6, "wire_bytes_sent": 64},
            "delays": [0.0, 0.25],
            "error": None,
        }
    ],
    "trace": {},
}
SAMPLE = re.compile(r'[a-z_]+\{([a-z_]+="(\\.|[^"\\])*",?)*\} \S+')


def test_every_line_is_a_comment_or_a_sample():
    text = stats.render(STATS)
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in samples)
    assert r'ringdp_delay_seconds_total{group="odd \"name\"\n",rank="1",by="1"} 0.25' in samples
    assert any(line.startswith("ringdp_wire_bytes_sent_total") and line.endswith(" 64") for line in samples)
    assert any(line.startswith("ringdp_failed") and line.endswith(" 0") for line in samples)
    assert not any("steps" in line for line in samples)
    for name in {line.partition("{")[0] for line in samples}:
        kind = "counter" if name.endswith("_total") else "gauge"
        assert f"# TYPE {name} {kind}\n" in text and f"# HELP {name} " in text


def test_it_is_served_on_loopback(monkeypatch):
    monkeypatch.setattr(stats, "stats", lambda: STATS)
    server = stats.serve_prometheus(0)
    try:
        assert server.server_address[0] == "127.0.0.1"
        address = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert answer.read().decode() == stats.render(STATS)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/other", timeout=10)
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{server.server_port}.*RINGDP_PROMETHEUS_PORT"):
            stats.serve_prometheus(server.server_port)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("port", ["http", "0", "65536", "-1", "٣"])
def test_a_bad_port_is_named(monkeypatch, port):
    monkeypatch.setenv(stats.VARIABLE, port)
    with pytest.raises(ValueError, match=f"invalid value '{port}' for RINGDP_PROMETHEUS_PORT"):
        stats.serve_if_asked()


def test_each_rank_of_a_host_has_a_port_of_its_own(monkeypatch):
    asked = []
    monkeypatch.setattr(stats, "serve_prometheus", lambda port: asked.append(port))
    monkeypatch.setattr(stats, "_served", [])
    stats.serve_if_asked()
    assert asked == []
    monkeypatch.setenv(stats.VARIABLE, "9400")
    monkeypatch.setenv("LOCAL_RANK", "3")
    stats.serve_if_asked()
    stats.serve_if_asked()
    assert asked == [9403]


def test_a_taken_port_is_a_warning_and_training_goes_on(monkeypatch):
    monkeypatch.setattr(stats, "_served", [])
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv(stats.VARIABLE, str(taken.getsockname()[1]))
        with pytest.warns(RuntimeWarning, match="give another port .* the training goes on without"):
            stats.serve_if_asked()
        stats.serve_if_asked()  # the next group of the process: said once


def test_a_forked_child_does_not_keep_the_port():
    server = stats.serve_prometheus(0)
    waits, release = os.pipe()
    child = os.fork()
    if not child:
        os.close(release)
        os.read(waits, 1)
        os._exit(0)
    try:
        os.close(waits)
        server.shutdown()
        server.server_close()
        again = stats.serve_prometheus(server.server_port)
        again.shutdown()
        again.server_close()
    finally:
        os.close(release)
        os.waitpid(child, 0)


def test_a_client_that_says_nothing_is_let_go(monkeypatch):
    assert stats._Handler.timeout <= 10  # and sooner here
    monkeypatch.setattr(stats._Handler, "timeout", 0.01)
    server = stats.serve_prometheus(0)
    try:
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as silent:
            assert silent.recv(1) == b""
    finally:
        server.shutdown()
        server.server_close()


def fetch(port):
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(4))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_a_rank_that_was_asked_serves_from_its_first_group_on(run_on_fresh_ranks):
    port = free_port()
    world = run_on_fresh_ranks(1, prometheus_port=port)
    world.join()
    (text,) = world.run(fetch, port)
    assert re.search(r'ringdp_collectives_total\{group="\w+",rank="0"\} 1\n', text)
