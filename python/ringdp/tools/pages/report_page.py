"""The page of `ringdp report run.json`: what a training run did, where its time and memory went, and why."""

from __future__ import annotations

import html
from typing import Any

from ringdp.text.units import counted, ms
from ringdp.tools.pages.chart import Series, Span, bars, lines
from ringdp.tools.pages.document import Tab, document
from ringdp.tools.pages.run_file import PHASES, SPLIT, figures

Run = dict[str, Any]
Found = dict[str, Any]  # report_figures.figures()
TRAVELS, WAITS = 0, 3  # colours of a bucket's bar


def page(run: Run) -> str:
    """The whole file, from a report that run_file.check() has passed."""
    found = figures(run)
    title = f"A run of {counted(found['steps'], 'step')} on {counted(found['ranks'], 'rank')} over {found['backend']}"
    sections = [
        _origin(found["origin"]),
        *([_bits(found["bits"])] if found["bits"] else []),
        _loss(found),
        _throughput(run, found["throughput"]),
        _split(found),
        *([_comparison(run, found)] if found["comparison"] else []),
        _overlap(found),
        _memory(found["memory"]),
        _links(found),
        _settings(run),
    ]
    return document(title, [Tab("report", title, "\n".join(sections))], [])


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


def _origin(origin: Found) -> str:
    """When, where and by what."""
    began = f"<p>Began {html.escape(origin['began'])} on {html.escape(origin['host'])}, by"
    return f"{began} <code>{html.escape(origin['command'])}</code></p>"


def _bits(bits: Found) -> str:
    same = bits["ranks_are_equal"]
    ranks = "All ranks ended with the same parameters" if same else "RANKS ENDED WITH DIFFERENT PARAMETERS"
    proof = "has the bits of one process" if bits["equal_to_one_process"] else "DIFFERS from one process"
    return _section("Bits", _paragraph(f"{ranks}; the proof's run {proof} (sha256 {bits['of_one_process'][:12]})."))


def _loss(found: Found) -> str:
    losses = {"Training": found["loss"], "Validation": found["validation"]}
    measured = {name: loss for name, loss in losses.items() if loss is not None}
    text = " ".join(_course(name, loss) for name, loss in measured.items())
    series = [
        Series(name.lower(), [(x, y) for x, y in loss["points"]], line=name == "Training")
        for name, loss in measured.items()
        if loss["points"]
    ]
    return _section("Loss", _paragraph(text), *([lines(series, text, "step")] if series else []))


def _course(name: str, loss: Found) -> str:
    wrong = loss["not_finite"]
    text = f"{name} loss from {loss['first']:.4f} to {loss['last']:.4f}." if loss["points"] else f"{name} loss:"
    return f"{text} NOT A FINITE NUMBER {len(wrong)} TIMES, the first at step {wrong[0]}." if wrong else text


def _throughput(run: Run, found: Found) -> str:
    unit, items = found["unit"], found["per_step"]
    rates = [(step, items / max(taken, 1e-9)) for step, taken in enumerate(run["history"]["step_seconds"], 1)]
    rate = found["per_second"]
    text = f"{rate:,.{0 if rate >= 100 else 2}f} {unit} per second over all ranks and steps"
    if unit != "steps":
        text += f", {items:,} {unit} a step"
    return _section("Throughput", _paragraph(text + "."), lines([Series(f"{unit}/s", rates)], text, "step"))


def _split(found: Found) -> str:
    title, split = "Where a step's time goes", found["split"]
    if split is None:
        return _section(title, _paragraph("Not measured: torch's own wrapper keeps no times of its passes."))
    lanes = {"median of steps": split["median"], f"slowest: step {split['slowest_step']}": split["slowest"]}
    text = "On rank 0. Communication is what backward does not hide; the rest is optimizer, data and everything else."
    return _section(title, _paragraph(text), *_lanes(lanes, PHASES))


def _comparison(run: Run, found: Found) -> str:
    ours = f"{run['backend']} ({run['settings'].get('ddp', 'this run')})"
    names = {"ours": ours, "stock": "stock DDP", "gloo": "gloo"}
    lanes = {text: found["comparison"][name] for name, text in names.items() if found["comparison"].get(name)}
    text = "Medians of steps in alternation; communication is what backward takes beyond one without any."
    return _section("Beside other wrappers and backends", _paragraph(text), *_lanes(lanes, SPLIT))


def _lanes(lanes: dict[str, dict[str, float]], phases: tuple[str, ...]) -> tuple[str, str]:
    """A chart of steps, each a row of phases one after the other, and its table."""
    spans, rows = [], []
    for row, (name, split) in enumerate(lanes.items()):
        begin = 0.0
        for colour, phase in enumerate(phases):
            spans.append(Span(row, begin, begin + split[phase], colour))
            begin += split[phase]
        rows.append([name, *(ms(split[phase]) for phase in phases), ms(begin)])
    keys = {phase: colour for colour, phase in enumerate(phases)}
    chart = bars(list(lanes), spans, keys, "Milliseconds of a step by phase; the table has the numbers", {})
    return chart, table("Milliseconds of a step", ["", *phases, "step"], rows)


def _overlap(found: Found) -> str:
    overlap = found["overlap"]
    if not overlap:
        return _section("Overlap", _paragraph("Not measured: torch's own wrapper keeps no times of its buckets."))
    buckets = overlap["buckets"]
    text = (
        f"{overlap['verdict']} In the last step communication took {ms(overlap['communication'])} on rank 0, of which "
        f"{ms(overlap['exposed'])} were exposed."
    )
    if not buckets:
        return _section("Overlap", _paragraph(text))
    spans = [Span(row, b["ready"], b["launched"], WAITS) for row, b in enumerate(buckets)]
    spans += [Span(row, b["launched"], b["done"], TRAVELS) for row, b in enumerate(buckets)]
    names = [f"bucket {number}" for number in range(len(buckets))]
    rows = [[n, *(ms(b[k]) for k in ("ready", "launched", "done"))] for n, b in zip(names, buckets, strict=True)]
    keys, marks = {"on its way": TRAVELS, "ready, not launched": WAITS}, {"backward has ended": overlap["backward"]}
    chart = bars(names, spans, keys, text, marks)
    times = table("Milliseconds since the backward pass began", ["", "ready", "launched", "done"], rows)
    return _section("Overlap", _paragraph(text), chart, times)


def _memory(memory: Found | None) -> str:
    title = "Memory of rank 0"
    if memory is None:
        return _section(title, _paragraph("Not counted: no optimizer step was seen, or its state is not in sight."))
    counted, formula = memory["counted"], memory["formula"]
    text = f"Counted {memory['counted_bytes']:,} bytes after the first step. "
    if formula is not None:
        each = memory["formula_bytes"] / memory["parameters"]
        text += f"That is {memory['ratio']:.3f} of the formula's {memory['formula_bytes']:,.0f}: {each:.4g} bytes "
        text += f"for each of {memory['parameters']:,} parameters. "
        text += f"Beside it {memory['beside_bytes']:,} bytes of padding, gathered units and buckets."
    else:
        text += "This optimizer cannot step without values, so there is no formula for it."
    expected = {kind: f"{size:,.0f}" for kind, size in (formula or {}).items()}
    rows = [[kind, f"{size:,}", expected.get(kind, "-")] for kind, size in counted.items()]
    return _section(title, _paragraph(text), table("Bytes, without activations", ["", "counted", "formula"], rows))


def _links(found: Found) -> str:
    said = "".join(f"<li>{html.escape(line)}</li>" for line in found["links"])
    parts = [f"<ul>{said}</ul>" if said else _paragraph(f"{found['backend']} does not say how it reaches its peers.")]
    if traffic := found["traffic"]:
        text = f"Per step, over all ranks: {traffic['wire']:,} bytes over links, {traffic['memory']:,} bytes in memory."
        parts.append(_paragraph(text))
    return _section("Links, and why", *parts)


def _settings(run: Run) -> str:
    rows = [[name, str(value)] for name, value in run["settings"].items() if value is not None]
    if not rows:
        return _section("Settings", _paragraph("RunLog was given none: RunLog(..., settings={...}) lists them here."))
    return _section("Settings", table("Options of the run", ["", "value"], rows))
