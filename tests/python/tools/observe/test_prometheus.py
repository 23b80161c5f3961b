"""What groups and watches have counted, for Prometheus; and the dashboard that shows it."""

from __future__ import annotations

import json
import os
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from ringdp.tools.observe import prometheus
from ringdp.tools.watch.figures import Row, packed
from ringdp.tools.watch.measures import BINS, Measures


def measures(steps=(0.02,)):
    found = Measures("0", 0, torch.nn.Linear(2, 2))
    found.ordinal = 7
    for seconds in steps:
        found.add_step(seconds)
    found.add_rows(packed([Row(1, 1, 0.02, exposed=0.25, communication=0.5)]))
    found.findings["drift"] += 2
    return found


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
    text = prometheus.render(STATS, [measures()])
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in samples)
    assert r'ringdp_delay_seconds_total{group="odd \"name\"\n",rank="1",by="1"} 0.25' in samples
    assert any(line.startswith("ringdp_wire_bytes_sent_total") and line.endswith(" 64") for line in samples)
    assert any(line.startswith("ringdp_failed") and line.endswith(" 0") for line in samples)
    assert not any(line.startswith("ringdp_steps") for line in samples)
    for name in {line.partition("{")[0] for line in samples}:
        kind = "counter" if name.endswith("_total") else "gauge"
        if name.startswith("ringdp_step_seconds"):
            name, kind = "ringdp_step_seconds", "histogram"
        assert text.count(f"# TYPE {name} {kind}\n") == text.count(f"# HELP {name} ") == 1


def test_steps_are_a_histogram_that_adds_up():
    seconds = [0.004, 0.005, 0.3, 0.3, 100.0]
    samples = dict(line.rsplit(" ", 1) for line in prometheus.render(STATS, [measures(seconds)]).splitlines())
    by_end = {
        float(end): int(samples[f'ringdp_step_seconds_bucket{{group="0",rank="0",model="7",le="{end}"}}'])
        for end in [*map(str, BINS), "+Inf"]
    }
    assert by_end == {end: sum(s <= end for s in seconds) for end in by_end}
    labels = '{group="0",rank="0",model="7"}'
    assert samples[f"ringdp_step_seconds_count{labels}"] == "5"
    assert float(samples[f"ringdp_step_seconds_sum{labels}"]) == pytest.approx(sum(seconds))
    assert samples[f"ringdp_exposed_seconds_total{labels}"] == "0.25"
    assert samples['ringdp_watch_findings_total{group="0",rank="0",model="7",finding="drift"}'] == "2"


DASHBOARD = json.loads(Path(prometheus.__file__).with_name("grafana.json").read_text())
USE = re.compile(r"(ringdp_\w+)(?:\{([^}]*)\})?")


def scraped():
    """On a rank: what is served after some watched steps."""
    import ringdp

    ddp = ringdp.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    server = ringdp.serve_prometheus(0)
    with ringdp.watch(ddp, optimizer):
        for _ in range(3):
            ddp(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    server.shutdown()
    server.server_close()
    return text


def test_the_dashboard_shows_what_is_served_and_nothing_else(pair):
    have: dict[str, set[str]] = {}
    for line in pair.run(scraped)[0].splitlines():
        if not line.startswith("#"):
            assert SAMPLE.fullmatch(line)
            have[line.partition("{")[0]] = words(r'(\w+)="', line)
    shown = set()
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            kept = words(r"by \(([^)]*)\)", target["expr"])
            assert words(r"\{\{(\w+)\}\}", target["legendFormat"]) <= kept, panel["title"]
            names = dict(USE.findall(target["expr"]))
            assert names and names.keys() <= have.keys(), panel["title"]
            assert kept <= set().union(*(have[name] for name in names)), panel["title"]
            for name, matchers in names.items():
                assert words(r"(\w+)\s*(?:=~|=|!=)", matchers) <= have[name], (panel["title"], name)
            shown |= names.keys()
    assert shown == have.keys(), "every metric has its place"
    (query,) = (v["query"] for v in DASHBOARD["templating"]["list"] if v["name"] == "group")
    assert words(r"(ringdp_\w+)", query) <= have.keys()


def words(pattern, text):
    return {word for found in re.findall(pattern, text) for word in re.split(r",\s*", found)}


def test_panels_do_not_overlap_and_have_numbers_of_their_own():
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and all(0 <= x < 24 for x, _ in cells)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_it_is_served_on_loopback(monkeypatch):
    monkeypatch.setattr(prometheus, "stats", lambda: STATS)
    server = prometheus.serve_prometheus(0)
    try:
        assert server.server_address[0] == "127.0.0.1"
        address = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert answer.read().decode() == prometheus.render(STATS)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/other", timeout=10)
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{server.server_port}.*RINGDP_PROMETHEUS_PORT"):
            prometheus.serve_prometheus(server.server_port)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("port", ["http", "0", "65536", "-1", "٣"])
def test_a_bad_port_is_named(monkeypatch, port):
    monkeypatch.setenv(prometheus.VARIABLE, port)
    with pytest.raises(ValueError, match=f"invalid value '{port}' for RINGDP_PROMETHEUS_PORT"):
        prometheus.serve_if_asked()


def test_each_rank_of_a_host_has_a_port_of_its_own(monkeypatch):
    asked = []
    monkeypatch.setattr(prometheus, "serve_prometheus", lambda port: asked.append(port))
    monkeypatch.setattr(prometheus, "_served", [])
    prometheus.serve_if_asked()
    assert asked == []
    monkeypatch.setenv(prometheus.VARIABLE, "9400")
    monkeypatch.setenv("LOCAL_RANK", "3")
    prometheus.serve_if_asked()
    prometheus.serve_if_asked()
    assert asked == [9403]


def test_a_taken_port_is_a_warning_and_training_goes_on(monkeypatch):
    monkeypatch.setattr(prometheus, "_served", [])
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv(prometheus.VARIABLE, str(taken.getsockname()[1]))
        with pytest.warns(RuntimeWarning, match="give another port .* the training goes on without"):
            prometheus.serve_if_asked()
        prometheus.serve_if_asked()  # the next group of the process: said once


def test_a_forked_child_does_not_keep_the_port():
    server = prometheus.serve_prometheus(0)
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
        again = prometheus.serve_prometheus(server.server_port)
        again.shutdown()
        again.server_close()
    finally:
        os.close(release)
        os.waitpid(child, 0)


def test_a_client_that_says_nothing_is_let_go(monkeypatch):
    assert prometheus._Handler.timeout <= 10  # and sooner here
    monkeypatch.setattr(prometheus._Handler, "timeout", 0.01)
    server = prometheus.serve_prometheus(0)
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
