"use strict";
// What the calculator says about a setting: cards with a verdict. All arithmetic is in `formulas`, the planner's.

// 1234567 -> "1.23 M" + unit.
function human(value, unit) {
  if (!isFinite(value)) return "without limit";
  const steps = [[1e15, " P"], [1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"], [1, " "]];
  const [size, prefix] = steps.find(([s]) => Math.abs(value) >= s) || [1, " "];
  return `${Number((value / size).toPrecision(4))}${prefix}${unit}`;
}

function seconds(value) {
  return value >= 1 ? `${Number(value.toPrecision(3))} s` : `${Number((1000 * value).toPrecision(3))} ms`;
}

// What the cards show, from {params, ranks, tokens, bandwidth, peak, mfu, device, wire_bytes} in SI units.
function outcome(at, state) {
  const f = formulas;
  const link = [at.tokens, at.wire_bytes, at.bandwidth, at.peak, at.mfu];
  const compute = f.compute_seconds(at.params, at.tokens, at.ranks, at.peak, at.mfu);
  const comm = f.comm_seconds(at.params, at.ranks, at.wire_bytes, at.bandwidth);
  const step = f.step_seconds_backward_overlap(compute, comm);
  const stages = [0, 1, 2, 3].map((stage) =>
    f.stage_bytes(at.params, at.ranks, stage, state.weight_bytes, state.gradient_bytes, state.state_bytes));
  return {
    compute, comm, step, stages,
    gradient: f.gradient_bytes(at.params, at.wire_bytes),
    sent: f.ring_bytes_per_rank(f.gradient_bytes(at.params, at.wire_bytes), at.ranks),
    wall_backward: f.wall_ranks_backward_only(...link),
    wall_step: f.wall_ranks_whole_step(...link),
    exposed_backward: f.exposed_seconds(compute, comm, f.backward_share()),
    exposed_step: f.exposed_seconds(compute, comm, 1),
    waiting: f.wait_share(compute, step),
    throughput: f.tokens_per_second(at.tokens, step),
    tokens_per_rank: f.tokens_per_rank(at.tokens, at.ranks),
  };
}

// One sentence, for ears too.
function verdictOf(at, now) {
  const wall = Math.floor(now.wall_backward);
  if (now.exposed_backward === 0) return `The backward pass hides all communication, up to ${wall} ranks.`;
  const share = (100 * now.waiting).toFixed(1);
  return `Past the wall of ${wall} ranks: at ${at.ranks}, a rank waits for ${share} % of a step.`;
}

// [{id, title, value, text, bad}]
function cardsFor(at, now) {
  const share = (100 * now.waiting).toFixed(1);
  const fits = now.stages.findIndex((bytes) => bytes <= at.device);
  const memory = now.stages.map((bytes, stage) => `stage ${stage}: ${human(bytes, "B")}`).join(", ");
  return [
    { id: "comm", title: "Communication, hidden by the backward pass", value: seconds(now.comm),
      bad: now.exposed_backward > 0,
      text: `wall at ${Math.floor(now.wall_backward)} ranks; ${seconds(now.exposed_backward)} exposed` },
    { id: "comm-step", title: "Communication, hidden by the whole step", value: seconds(now.comm),
      bad: now.exposed_step > 0,
      text: `wall at ${Math.floor(now.wall_step)} ranks; ${seconds(now.exposed_step)} exposed` },
    { id: "compute", title: "Compute", value: seconds(now.compute), bad: false,
      text: `${human(now.tokens_per_rank, " tokens")} per rank and step` },
    { id: "step", title: "Step", value: seconds(now.step), bad: now.waiting > 0,
      text: `${share} % of it waiting; ${human(now.throughput, " tokens/s")}` },
    { id: "bytes", title: "A rank sends per step", value: human(now.sent, "B"), bad: false,
      text: `2(N-1)/N of the gradient's ${human(now.gradient, "B")}` },
    { id: "memory", title: "Memory per rank, without activations", value: human(now.stages[0], "B"),
      bad: now.stages[0] > at.device, text: `${memory}; ${fits < 0 ? "no stage fits" : `fits from stage ${fits} on`}` },
  ];
}

// Compute and communication over the number of ranks, both axes logarithmic; a mark at the chosen number.
function drawCurve(svg, at) {
  const ranks = Array.from({ length: 57 }, (_, i) => 2 ** (i / 4)); // 1 .. 16384
  const compute = (n) => formulas.compute_seconds(at.params, at.tokens, n, at.peak, at.mfu);
  const comm = (n) => formulas.comm_seconds(at.params, n, at.wire_bytes, at.bandwidth);
  const lines = { compute: ranks.map((n) => [n, compute(n)]), communication: ranks.slice(1).map((n) => [n, comm(n)]) };
  const all = Object.values(lines).flat().map(([, s]) => s).filter((s) => s > 0);
  const low = Math.log10(Math.min(...all)), high = Math.log10(Math.max(...all));
  const x = (n) => 70 + (900 * Math.log2(n)) / 14;
  const y = (s) => 320 - (290 * (Math.log10(Math.max(s, 10 ** low)) - low)) / (high - low || 1);
  const drawn = [];
  const rule = (x1, y1, x2, y2, stroke, opacity) =>
    drawn.push(element("line", { x1, y1, x2, y2, stroke, "stroke-width": 2 * opacity, "stroke-opacity": opacity }));

  for (let n = 1; n <= 16384; n *= 4) {
    rule(x(n), 30, x(n), 320, "var(--line)", 0.4);
    drawn.push(element("text", { x: x(n), y: 342, "text-anchor": "middle" }, n));
  }
  for (let power = Math.ceil(low); power <= high; ++power) {
    rule(70, y(10 ** power), 970, y(10 ** power), "var(--line)", 0.4);
    drawn.push(element("text", { x: 62, y: y(10 ** power) + 4, "text-anchor": "end" }, seconds(10 ** power)));
  }
  const look = { compute: ["var(--good)", "none"], communication: ["var(--bad)", "8 4"] };
  for (const [name, points] of Object.entries(lines)) {
    const [stroke, dashes] = look[name];
    drawn.push(element("polyline", { points: points.map(([n, s]) => `${x(n)},${y(s)}`).join(" "), fill: "none", stroke,
      "stroke-width": 3, "stroke-dasharray": dashes }));
    const [n, s] = points[name === "compute" ? 6 : points.length - 8];
    drawn.push(element("text", { x: x(n) + 8, y: y(s) - 8 }, name));
  }
  rule(x(at.ranks), 30, x(at.ranks), 320, "var(--ink)", 1);
  drawn.push(element("text", { x: Math.min(x(at.ranks) + 6, 880), y: 44 }, `${at.ranks} ranks`));
  svg.replaceChildren(...drawn);
}

// The scaling calculator: sliders with number fields, the preset, cards, and the curve.
(() => {
  const { presets, precisions, state } = JSON.parse(document.getElementById("wall-data").textContent);
  const at = (id) => document.getElementById(id);
  // Sliders are logarithmic: position p of 0..1000 is min * (max/min)^(p/1000). unit: what one of a field's is in SI.
  const fields = {
    params: { label: "Model, billions of parameters", min: 0.1, max: 2000, unit: 1e9 },
    ranks: { label: "Ranks", min: 1, max: 16384, unit: 1, whole: true },
    tokens: { label: "Global batch, tokens", min: 4096, max: 67108864, unit: 1, whole: true },
    bandwidth: { label: "Bandwidth per rank, GB/s", min: 0.1, max: 2000, unit: 1e9 },
    peak: { label: "Peak, TFLOPS", min: 1, max: 5000, unit: 1 },
    mfu: { label: "Share of peak reached, %", min: 1, max: 100, unit: 0.01 },
    device: { label: "Memory of a device, GB", min: 1, max: 1000, unit: 1e9 },
  };

  function add(name, { label, min, max, whole }) {
    const row = at("sliders").appendChild(document.createElement("div"));
    row.className = "slider";
    const title = row.appendChild(document.createElement("label"));
    title.htmlFor = name;
    title.textContent = label;
    const range = Object.assign(row.appendChild(document.createElement("input")),
      { type: "range", id: `${name}-slider`, min: 0, max: 1000, step: 1 });
    range.setAttribute("aria-label", label);
    const number = Object.assign(row.appendChild(document.createElement("input")),
      { type: "number", id: name, min, max, step: whole ? 1 : "any" });
    range.addEventListener("input", () => {
      const value = min * (max / min) ** (range.value / 1000);
      number.value = whole ? Math.round(value) : Number(value.toPrecision(3));
      range.setAttribute("aria-valuetext", number.value);
      show();
    });
    number.addEventListener("input", () => { follow(name); show(); });
  }
  // The slider goes where the number field is.
  function follow(name) {
    const { min, max } = fields[name], value = Number(at(name).value);
    if (!(value > 0)) return;
    const slider = at(`${name}-slider`);
    slider.value = Math.round((1000 * Math.log(value / min)) / Math.log(max / min));
    slider.setAttribute("aria-valuetext", at(name).value);
  }
  function apply(preset) {
    for (const name of Object.keys(fields)) {
      at(name).value = preset[name];
      follow(name);
    }
    at("wire-type").value = preset.wire;
    show();
  }
  // Fields without a number in their range.
  function invalid() {
    return Object.keys(fields).filter((name) => !at(name).checkValidity() || at(name).value === "");
  }
  // Values in SI units; null when a field is invalid, which is marked.
  function values() {
    const wrong = invalid();
    const read = { wire_bytes: precisions[at("wire-type").value] };
    for (const [name, { unit }] of Object.entries(fields)) {
      at(name).setAttribute("aria-invalid", String(wrong.includes(name)));
      read[name] = Number(at(name).value) * unit;
    }
    return wrong.length ? null : read;
  }
  function card({ id, title, value, text, bad }) {
    const made = document.createElement("section");
    made.id = `card-${id}`;
    made.className = bad ? "card bad" : "card";
    for (const [name, content, kind] of [["h3", title, ""], ["p", value, "value"], ["p", text, ""]]) {
      const part = made.appendChild(document.createElement(name));
      part.textContent = content;
      if (kind) part.className = kind;
    }
    made.querySelector("h3").append(bad ? " (past the limit)" : "");
    return made;
  }
  function show() {
    const given = values();
    at("invalid").textContent = given ? "" : `Out of range: ${invalid().map((name) => at(name).title).join("; ")}`;
    if (!given) return;
    const now = outcome(given, state);
    at("verdict").textContent = verdictOf(given, now);
    at("cards").replaceChildren(...cardsFor(given, now).map(card));
    drawCurve(at("curve"), given);
  }

  for (const [name, field] of Object.entries(fields)) {
    add(name, field);
    at(name).title = `${field.label}: ${field.min} to ${field.max}`;
  }
  at("apply").addEventListener("click", () => apply(presets[at("preset").value]));
  at("wire-type").addEventListener("change", show);
  apply(Object.values(presets)[0]);
})();
