"""`ringdp.stats()`: what this process's groups have done so far, as plain values."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ringdp import _native


def stats() -> dict[str, Any]:
    """Counters, delays and errors of this rank's process groups of backend ringdp. Not collective; any thread.

    groups: of each: name, rank, world; submitted (collectives); counters (collectives, plan steps, rounds, bytes on
        links and in memory); delays: by rank, seconds that the others waited for that rank alone: how much sooner
        collectives would have begun had it come with the one before it. Every rank has the same delays, up to the
        collective before the latest. error: what ended the group, or None.
    trace: events written, kept at most, and lost.
    """
    raw = _native.load().stats()
    groups = [{**group, "delays": [ns * 1e-9 for ns in group.pop("delays_ns")]} for group in raw["groups"]]
    trace = {name: raw[f"events_{name}"] for name in ("written", "kept", "lost")}
    return {"groups": groups, "trace": trace}


VARIABLE = "RINGDP_PROMETHEUS_PORT"
_HELP = {
    "ringdp_collectives_total": "Collectives that this rank has finished.",
    "ringdp_wire_bytes_sent_total": "Payload bytes handed to links to other ranks.",
    "ringdp_wire_bytes_received_total": "Payload bytes that came by links from other ranks.",
    "ringdp_memory_bytes_read_total": "Bytes read by folds and copies.",
    "ringdp_memory_bytes_written_total": "Bytes written by folds and copies.",
    "ringdp_delay_seconds_total": "Time that the others of the group waited for rank `by` alone.",
    "ringdp_failed": "1 when the group has failed or was left in the middle of something.",
}


def render(found: Mapping[str, Any]) -> str:
    """The text of a /metrics response, from `ringdp.stats()`."""
    samples: dict[str, list[str]] = {name: [] for name in _HELP}
    for group in found["groups"]:
        for name, labels, value in _samples(group):
            samples[name].append(f"{name}{{{_labels(labels)}}} {value}")
    lines = []
    for name, values in samples.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} {kind}", *values]
    return "\n".join(lines) + "\n"


def _samples(group: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, object], object]]:
    labels = {"group": group["name"], "rank": group["rank"]}
    for name, value in group["counters"].items():
        if f"ringdp_{name}_total" in _HELP:
            yield f"ringdp_{name}_total", labels, value
    for rank, seconds in enumerate(group["delays"]):
        yield "ringdp_delay_seconds_total", {**labels, "by": rank}, repr(float(seconds))
    yield "ringdp_failed", labels, int(group["error"] is not None)


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
        body = render(stats()).encode()
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
