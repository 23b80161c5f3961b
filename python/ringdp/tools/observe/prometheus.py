"""What groups and watches have counted, for Prometheus: over HTTP, and on this host only."""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any

from ringdp.tools.observe.stats import stats

VARIABLE = "RINGDP_PROMETHEUS_PORT"
HELP = {
    "ringdp_collectives_total": "Collectives that this rank has finished.",
    "ringdp_wire_bytes_sent_total": "Payload bytes handed to links to other ranks.",
    "ringdp_wire_bytes_received_total": "Payload bytes that came by links from other ranks.",
    "ringdp_memory_bytes_read_total": "Bytes read by folds and copies.",
    "ringdp_memory_bytes_written_total": "Bytes written by folds and copies.",
    "ringdp_delay_seconds_total": "Time that the others of the group waited for rank `by` alone.",
    "ringdp_failed": "1 when the group has failed or was left in the middle of something.",
    "ringdp_step_seconds": "Steps of the optimizer, from one to the next.",
    "ringdp_synchronised_steps_total": "Steps whose communication was measured: those of the next three sums.",
    "ringdp_communication_seconds_total": "Time with at least one collective of gradients on its way.",
    "ringdp_exposed_seconds_total": "The part of it during which nothing was left to compute.",
    "ringdp_gradient_bytes_total": "Gradients that were averaged in that time.",
    "ringdp_watch_findings_total": "Findings of ringdp.watch, on rank 0 of the group.",
    "ringdp_watch_blocks_total": "Blocks and parts of the parameters that were compared between ranks.",
    "ringdp_watch_seconds_total": "What ringdp.watch itself computes, in the training thread and in its own.",
}
_Sample = tuple[str, Mapping[str, object], object]


def render(found: Mapping[str, Any], watches: Iterable[Any] = ()) -> str:
    """The text of a /metrics response, from `ringdp.stats()` and the measures of watches."""
    samples: dict[str, list[str]] = {name: [] for name in HELP}
    groups = [sample for group in found["groups"] for sample in _of_group(group)]
    for name, labels, value in [*groups, *(sample for measures in watches for sample in _of_watch(measures))]:
        family = name if name in samples else name.rpartition("_")[0]  # a histogram's have endings
        samples[family].append(f"{name}{{{_labels(labels)}}} {value}")
    lines = []
    for name, values in samples.items():
        kind = "counter" if name.endswith("_total") else "histogram" if name == "ringdp_step_seconds" else "gauge"
        lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} {kind}", *values]
    return "\n".join(lines) + "\n"


def _of_group(group: Mapping[str, Any]) -> Iterator[_Sample]:
    labels = {"group": group["name"], "rank": group["rank"]}
    for name, value in group["counters"].items():
        if f"ringdp_{name}_total" in HELP:
            yield f"ringdp_{name}_total", labels, value
    for rank, seconds in enumerate(group["delays"]):
        yield "ringdp_delay_seconds_total", {**labels, "by": rank}, repr(float(seconds))
    yield "ringdp_failed", labels, int(group["error"] is not None)


def _of_watch(measures: Any) -> Iterator[_Sample]:
    from ringdp.tools.watch.judge import CHECKS
    from ringdp.tools.watch.measures import BINS

    labels = {"group": measures.group, "rank": measures.rank, "model": measures.ordinal}
    counts = list(accumulate(measures.step_counts))
    for end, count in zip([*map(str, BINS), "+Inf"], counts, strict=True):
        yield "ringdp_step_seconds_bucket", {**labels, "le": end}, count
    yield "ringdp_step_seconds_sum", labels, repr(measures.step_seconds)
    yield "ringdp_step_seconds_count", labels, counts[-1]
    yield "ringdp_synchronised_steps_total", labels, measures.looked_at
    yield "ringdp_communication_seconds_total", labels, repr(measures.communication)
    yield "ringdp_exposed_seconds_total", labels, repr(measures.exposed)
    yield "ringdp_gradient_bytes_total", labels, measures.gradient_bytes
    for check in CHECKS if measures.rank == 0 else ():
        yield "ringdp_watch_findings_total", {**labels, "finding": check}, measures.findings[check]
    if measures.rank == 0:
        yield "ringdp_watch_blocks_total", labels, measures.compared
    yield "ringdp_watch_seconds_total", {**labels, "thread": "training"}, repr(measures.in_training)
    yield "ringdp_watch_seconds_total", {**labels, "thread": "watch"}, repr(measures.in_thread)


def _watches() -> list[Any]:
    """The measures of this process's; nothing is loaded where none was begun, or where that is being done."""
    running = getattr(sys.modules.get("ringdp.tools.watch.watch"), "running", list)
    return [one.measures for one in running()]


def _labels(labels: Mapping[str, object]) -> str:
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _Handler(BaseHTTPRequestHandler):
    timeout = 5  # seconds, after which a silent client no longer holds a thread and a descriptor

    def do_GET(self) -> None:
        """Answers /metrics."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "ringdp serves /metrics")
            return
        body = render(stats(), _watches()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing, so that training's output is unchanged."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True


_served: list[ThreadingHTTPServer | None] = []
_listening: weakref.WeakSet[ThreadingHTTPServer] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Runs in a forked child, which may outlive the rank: the port must be free when the rank is gone."""
    for server in _listening:
        server.socket.close()
    _listening.clear()
    _served.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def serve_prometheus(port: int, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """Serves http://host:port/metrics from a thread of its own until the process ends or `.shutdown()` is called.

    port 0: any free one, which `.server_port` tells. OSError, naming host and port, when it cannot be bound.
    """
    try:
        server = _Server((host, port), _Handler)
    except (OSError, OverflowError) as error:
        raise OSError(
            f"ringdp cannot serve Prometheus on {host}:{port}: {error}; give another port ({VARIABLE} is the port of "
            "LOCAL_RANK 0, each further rank of the host takes the next one), or 0 in a call for any that is free"
        ) from None
    _listening.add(server)
    threading.Thread(target=server.serve_forever, name="ringdp-prometheus", daemon=True).start()
    return server


def serve_if_asked() -> None:
    """Once per process, when RINGDP_PROMETHEUS_PORT is set. ValueError on a bad value; a port in use is a warning."""
    given = os.environ.get(VARIABLE)
    if not given or _served:
        return
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= 65535:
        raise ValueError(f"invalid value '{given}' for {VARIABLE} (expected a port from 1 to 65535)")
    _served.append(None)
    try:
        _served[0] = serve_prometheus(int(given) + int(os.environ.get("LOCAL_RANK") or 0))
    except OSError as error:
        warnings.warn(f"{error}; the training goes on without", RuntimeWarning, stacklevel=2)
