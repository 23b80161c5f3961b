"use strict";
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
