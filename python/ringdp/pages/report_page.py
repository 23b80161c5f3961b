"""The page of `ringdp report run.json`: what a training run did, where its time and memory went, and why."""

from __future__ import annotations

import html
from typing import Any

from ringdp.pages.chart import Series, Span, bars, lines
from ringdp.pages.document import Tab, document
from ringdp.pages.run_file import SPLIT

Run = dict[str, Any]
BESIDE = ("padding", "gathered", "buckets")  # kinds of memory that the formula does not count
TRAVELS, WAITS = 0, 3  # colours of a bucket's bar


def page(run: Run) -> str:
    """The whole file, from a report that run_file.check() has passed."""
    title = f"A run of {len(run['history']['losses'])} steps on {run['world']} rank(s) over {run['backend']}"
    sections = [_verdict(run), _loss(run), _throughput(run), _split(run), _overlap(run), _memory(run), _links(run)]
    body = "\n".join([*sections, _settings(run)])
    return document(title, [Tab("report", title, body)], [])


def _section(title: str, *parts: str) -> str:
    return "\n".join([f"<h2>{html.escape(title)}</h2>", *parts])


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def table(caption: str, head: list[str], rows: list[list[str]]) -> str:
    """A table whose first column names the rows."""
    top = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    lines_of = [
        f'<tr><th scope="row">{html.escape(row[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    ]
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption, quote=True)}">'
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{top}</tr></thead>"
        f"<tbody>{''.join(lines_of)}</tbody></table></div>"
    )


def _verdict(run: Run) -> str:
    same = len(set(run["final_hashes"])) == 1
    ranks = "All ranks ended with the same parameters" if same else "RANKS ENDED WITH DIFFERENT PARAMETERS"
    digest = run["proof"]["of_one_process"][:12]
    proof = "has the bits of one process" if run["equal_to_one_process"] else "DIFFERS from one process"
    return _section("Bits", _paragraph(f"{ranks}; the proof's run {proof} (sha256 {digest})."))


def _loss(run: Run) -> str:
    losses, validation = run["history"]["losses"], run["history"]["validation"]
    text = f"Training loss from {losses[0]:.4f} to {losses[-1]:.4f} nats per byte in {len(losses)} steps"
    if validation:
        text += f"; on text never trained on from {validation[0][1]:.4f} to {validation[-1][1]:.4f}"
    series = [Series("training", list(enumerate(losses, 1)))]
    if validation:
        series.append(Series("validation", [(x, y) for x, y in validation], line=False))
    return _section("Loss", _paragraph(text + "."), lines(series, text, "step"))


def _throughput(run: Run) -> str:
    seconds, tokens = run["history"]["step_seconds"], run["bytes_per_step"]
    rates = [(step, tokens / max(taken, 1e-9)) for step, taken in enumerate(seconds, 1)]
    text = f"{run['tokens_per_second']:,.0f} tokens per second over all ranks and steps, {tokens:,} tokens a step"
    return _section("Throughput", _paragraph(text + "."), lines([Series("tokens/s", rates)], text, "step"))


def _split(run: Run) -> str:
    comparison = run["comparison"]
    if not comparison:
        return _section("Where a step's time goes", _paragraph("Not measured: the run had --rounds 0."))
    ours = f"{run['backend']} ({run['settings'].get('ddp', 'this run')})"
    names = {"ours": ours, "stock": "stock DDP", "gloo": "gloo"}
    lanes = {text: comparison[name] for name, text in names.items() if comparison.get(name)}
    spans, rows = [], []
    for row, (name, split) in enumerate(lanes.items()):
        begin = 0.0
        for colour, phase in enumerate(SPLIT):
            spans.append(Span(row, begin, begin + split[phase], colour))
            begin += split[phase]
        rows.append([name, *(_ms(split[phase]) for phase in SPLIT), _ms(begin)])
    text = "Medians of steps in alternation; communication is what backward does not hide."
    keys = {phase: colour for colour, phase in enumerate(SPLIT)}
    chart = bars(list(lanes), spans, keys, "Milliseconds of a step by phase; the table has the numbers", {})
    return _section(
        "Where a step's time goes", _paragraph(text), chart, table("Milliseconds of a step", ["", *SPLIT, "step"], rows)
    )


def _overlap(run: Run) -> str:
    overlap = run["observed"]["overlap"]
    if not overlap:
        return _section("Overlap", _paragraph("Not measured: torch's own wrapper keeps no times of its buckets."))
    buckets = overlap["buckets"]
    text = (
        f"{overlap['verdict']} In the last step communication took {_ms(overlap['communication'])} on rank 0, of which "
        f"{_ms(overlap['exposed'])} were exposed."
    )
    if not buckets:
        return _section("Overlap", _paragraph(text))
    spans = [Span(row, b["ready"], b["launched"], WAITS) for row, b in enumerate(buckets)]
    spans += [Span(row, b["launched"], b["done"], TRAVELS) for row, b in enumerate(buckets)]
    names = [f"bucket {number}" for number in range(len(buckets))]
    rows = [[n, *(_ms(b[k]) for k in ("ready", "launched", "done"))] for n, b in zip(names, buckets, strict=True)]
    keys, marks = {"on its way": TRAVELS, "ready, not launched": WAITS}, {"backward has ended": overlap["backward"]}
    chart = bars(names, spans, keys, text, marks)
    times = table("Milliseconds since the backward pass began", ["", "ready", "launched", "done"], rows)
    return _section("Overlap", _paragraph(text), chart, times)


def _memory(run: Run) -> str:
    observed = run["observed"]
    formula = observed["formula_bytes"]
    per = f"{formula / observed['parameters']:g} bytes for each of {observed['parameters']:,} parameters"
    if not observed["memory"]:
        return _section("Memory of rank 0", _paragraph(f"By the formula {formula:,.0f} bytes, {per}; not counted."))
    held = observed["memory"]
    counted = sum(size for kind, size in held.items() if kind not in BESIDE)
    beside = sum(size for kind, size in held.items() if kind in BESIDE)
    text = (
        f"Counted {counted:,} bytes, {counted / formula:.3f} of the formula's {formula:,.0f}: {per}. Beside it "
        f"{beside:,} bytes of padding, gathered units and buckets, which live during a step."
    )
    rows = [[kind, f"{size:,}"] for kind, size in held.items()]
    rows += [["all", f"{counted + beside:,}"], ["formula", f"{formula:,.0f}"]]
    return _section("Memory of rank 0", _paragraph(text), table("Bytes, without activations", ["", "bytes"], rows))


def _links(run: Run) -> str:
    said = "".join(f"<li>{html.escape(line)}</li>" for line in run["observed"]["links"])
    parts = [f"<ul>{said}</ul>" if said else _paragraph(f"{run['backend']} does not say how it reaches its peers.")]
    traffic = run["comparison"] and run["comparison"].get("traffic")
    if traffic:
        wire, memory = (traffic[kind] // traffic["steps"] for kind in ("wire", "memory"))
        parts.append(_paragraph(f"Per step, over all ranks: {wire:,} bytes over links, {memory:,} bytes in memory."))
    return _section("Links, and why", *parts)


def _settings(run: Run) -> str:
    rows = [[name, str(value)] for name, value in run["settings"].items() if value is not None]
    return _section("Settings", table("Options of the run", ["", "value"], rows))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"
