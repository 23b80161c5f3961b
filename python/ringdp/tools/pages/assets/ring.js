"use strict";
// A recorded trace and where in it we are. What moves when is read from the trace; nothing is scheduled here.
class Playback {
  constructor(trace) {
    this.trace = trace;
    this.ranks = trace.inputs.length;
    this.chunks = trace.inputs[0].length;
    this.number = 0;
  }

  get last() { return this.trace.frames.length; }

  go(number) { this.number = Math.max(0, Math.min(this.last, number)); }

  // {round, phase, moves, held, sent, memory} of the step shown; null before the first.
  frame() {
    if (this.number === 0) return null;
    const [round, phase, moves, held, sent, memory] = this.trace.frames[this.number - 1];
    return { round, phase, moves: moves.map(Playback.move), held, sent, memory };
  }

  static move([source, target, via, chunks, ranks, bytes]) { return { source, target, via, chunks, ranks, bytes }; }

  // [rank][chunk] -> {value, ranks, state, fresh}
  grid() {
    const cells = this.trace.inputs.map((row, rank) => row.map((value) => this.cell([rank], value, false)));
    this.trace.frames.slice(0, this.number).forEach(([, , , held], index) => {
      for (const [rank, chunk, ranks, value] of held) {
        cells[rank][chunk] = this.cell(ranks, value, index === this.number - 1);
      }
    });
    return cells;
  }

  cell(ranks, value, fresh) {
    const state = ranks.length === this.ranks ? "done" : ranks.length > 1 ? "partial" : "raw";
    return { value, ranks, state, fresh };
  }

  // One sentence: where we are.
  sentence() {
    const frame = this.frame();
    if (!frame) return `Start: every rank has its own values; ${this.last} steps follow`;
    const round = frame.round ? `round ${frame.round} of ${this.trace.rounds}` : "in memory, no round of the links";
    const phase = frame.phase === "sums" ? "summing" : "spreading results";
    return `Step ${this.number} of ${this.last}, ${round}: ${phase}`;
  }
}

const chunkName = (chunk) => (chunk < 26 ? String.fromCharCode(97 + chunk) : String(chunk));

// Draws a Playback: ranks on an ellipse with arrows for what moves, the table of what is held, the list of moves.
// Cells with values in them; where ranks and chunks are many, small ones without: the table has all values.
const ROOMY = { cell: 34, row: 22, values: true }, CROWDED = { cell: 12, row: 12, values: false };
const PER_ROW = 8;

function place(rank, ranks) {
  const angle = (2 * Math.PI * rank) / ranks - Math.PI / 2;
  return { x: 500 + 350 * Math.cos(angle), y: 265 + 205 * Math.sin(angle) };
}

// How large cells are, and half the width and height of a rank's box, with its name and some air.
function boxOf({ ranks, chunks }) {
  const size = ranks <= 8 && chunks <= 2 * PER_ROW ? ROOMY : CROWDED;
  const width = Math.min(PER_ROW, chunks) * size.cell, height = Math.ceil(chunks / PER_ROW) * size.row;
  return { ...size, halfWidth: width / 2 + 10, halfHeight: height / 2 + 22, left: -width / 2, top: -height / 2 };
}

function drawRank(rank, row, at, box) {
  const group = element("g", {});
  group.append(element("text", { x: at.x, y: at.y + box.top - 6, "text-anchor": "middle" }, `rank ${rank}`));
  row.forEach((cell, chunk) => {
    const x = at.x + box.left + (chunk % PER_ROW) * box.cell;
    const y = at.y + box.top + Math.floor(chunk / PER_ROW) * box.row;
    group.append(element("rect", { x, y, width: box.cell - 2, height: box.row - 2, class: cell.state }));
    if (!box.values) return;
    group.append(element("text", { x: x + box.cell / 2 - 1, y: y + 15, "text-anchor": "middle",
      "font-weight": cell.fresh ? 700 : 400 }, cell.value));
  });
  return group;
}

// From edge to edge of the boxes, a little aside of the straight line, so that both directions can be seen.
function drawMove(move, playback) {
  const a = place(move.source, playback.ranks), b = place(move.target, playback.ranks);
  const { halfWidth, halfHeight, values } = boxOf(playback);
  const dx = b.x - a.x, dy = b.y - a.y, length = Math.hypot(dx, dy);
  const margin = Math.min(0.4, Math.min(halfWidth / Math.abs(dx), halfHeight / Math.abs(dy)));
  const px = (-dy / length) * 9, py = (dx / length) * 9;
  const on = (share, aside) => [a.x + dx * share + px * aside, a.y + dy * share + py * aside];
  const [x1, y1] = on(margin, 1), [x2, y2] = on(1 - margin, 1), [x, y] = on(0.4, 2.2);
  const group = element("g", {});
  group.append(element("line", { x1, y1, x2, y2, stroke: `var(--${move.via})`, "stroke-width": values ? 2.5 : 1,
    "marker-end": `url(#head-${move.via})`, "stroke-dasharray": move.via === "link" ? "none" : "6 4" }));
  const label = values ? move.chunks.map(chunkName).join(",") : "";
  group.append(element("text", { x, y: y + 4, "text-anchor": "middle" }, label));
  return group;
}

function heads() {
  const defs = element("defs", {});
  for (const via of ["link", "memory"]) {
    const marker = element("marker", { id: `head-${via}`, viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 5,
      markerHeight: 5, orient: "auto" });
    marker.append(element("path", { d: "M0 0L8 4L0 8z", fill: `var(--${via})` }));
    defs.append(marker);
  }
  return defs;
}

function drawPicture(svg, playback) {
  const frame = playback.frame();
  const moves = frame ? frame.moves.filter((move) => move.source !== move.target) : [];
  svg.replaceChildren(heads(), ...moves.map((move) => drawMove(move, playback)),
    ...playback.grid().map((row, rank) => drawRank(rank, row, place(rank, playback.ranks), boxOf(playback))));
}

function cellOf(row, name, text, scope) {
  const made = row.appendChild(document.createElement(name));
  made.textContent = text;
  if (scope) made.scope = scope;
  return made;
}

function drawTable(table, playback) {
  const frame = playback.frame();
  const head = document.createElement("tr");
  cellOf(head, "th", "rank", "col");
  for (let chunk = 0; chunk < playback.chunks; ++chunk) cellOf(head, "th", chunkName(chunk), "col");
  cellOf(head, "th", "bytes sent", "col");
  cellOf(head, "th", "bytes in memory", "col");
  const rows = playback.grid().map((cells, rank) => {
    const row = document.createElement("tr");
    cellOf(row, "th", `rank ${rank}`, "row");
    cells.forEach((cell, chunk) => {
      const made = cellOf(row, "td", cell.value);
      made.id = `held-${rank}-${chunk}`;
      made.className = cell.fresh ? `${cell.state} new` : cell.state;
      const whose = made.appendChild(document.createElement("span"));
      whose.className = "whose";
      whose.textContent = cell.state === "done" ? "all" : cell.ranks.join("+");
    });
    cellOf(row, "td", frame ? frame.sent[rank] : 0).id = `sent-${rank}`;
    cellOf(row, "td", frame ? frame.memory[rank] : 0).id = `memory-${rank}`;
    return row;
  });
  const total = document.createElement("tr");
  const sum = (counts) => (frame ? counts.reduce((a, b) => a + b, 0) : 0);
  cellOf(total, "th", "all ranks", "row").colSpan = playback.chunks + 1;
  cellOf(total, "td", sum(frame && frame.sent)).id = "sent-all";
  cellOf(total, "td", sum(frame && frame.memory)).id = "memory-all";
  table.tFoot.replaceChildren(total);
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...rows);
}

function sentenceOf(move) {
  const chunks = move.chunks.map(chunkName).join(", ");
  const whose = (move.ranks.length > 1 ? "ranks " : "rank ") + move.ranks.join("+");
  const what = `chunk ${chunks} of ${whose}, ${move.bytes} bytes`;
  if (move.source === move.target) return `rank ${move.source} lays ${what} into its shared memory`;
  return `rank ${move.source} to rank ${move.target} by ${move.via}: ${what}`;
}

function drawMoves(list, playback) {
  const frame = playback.frame();
  const items = (frame ? frame.moves : []).map((move) => {
    const item = document.createElement("li");
    item.textContent = sentenceOf(move);
    return item;
  });
  list.replaceChildren(...items);
}

// The page of recorded all_reduces: what is chosen, the buttons, the keys, the clock of Play.
(() => {
  const { book, notes } = JSON.parse(document.getElementById("traces").textContent);
  const at = (id) => document.getElementById(id);
  const sizes = Object.keys(Object.values(book)[0]).map((size) => size.split("x").map(Number));
  let playback, timer = null;

  function fill(select, values, chosen) {
    select.replaceChildren(...values.map((value) => new Option(value, value, false, value === chosen)));
  }
  function chunksFor(ranks) {
    return sizes.filter(([r]) => r === ranks).map(([, chunks]) => chunks).sort((a, b) => a - b);
  }
  function fillChunks(wanted) {
    const possible = chunksFor(Number(at("ring-ranks").value));
    fill(at("ring-chunks"), possible, possible.includes(wanted) ? wanted : possible[possible.length - 1]);
  }
  function load() {
    stop();
    const scheme = at("scheme").value;
    playback = new Playback(book[scheme][`${at("ring-ranks").value}x${at("ring-chunks").value}`]);
    at("about").textContent = `${notes[scheme]} One chunk is ${playback.trace.bytes} bytes here.`;
    show();
  }
  function show() {
    at("where").textContent = playback.sentence();
    drawPicture(at("picture"), playback);
    drawTable(at("held"), playback);
    drawMoves(at("moves"), playback);
    // Not `disabled`, which would drop the keyboard focus.
    for (const id of ["back", "reset"]) at(id).setAttribute("aria-disabled", String(playback.number === 0));
    at("step").setAttribute("aria-disabled", String(playback.number === playback.last));
  }
  function go(number) {
    playback.go(number);
    show();
    if (playback.number === playback.last) stop();
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    at("play").setAttribute("aria-pressed", "false");
    at("play").textContent = "Play";
  }
  function start() {
    if (playback.number === playback.last) go(0);
    timer = setInterval(() => go(playback.number + 1), 1000 / Number(at("speed").value));
    at("play").setAttribute("aria-pressed", "true");
    at("play").textContent = "Pause";
  }
  const moves = { reset: () => 0, back: () => playback.number - 1, step: () => playback.number + 1 };
  for (const [id, target] of Object.entries(moves)) {
    at(id).addEventListener("click", () => { stop(); go(target()); });
  }
  at("play").addEventListener("click", () => (timer === null ? start() : stop()));
  at("speed").addEventListener("input", () => {
    const speed = at("speed").value;
    at("speed").setAttribute("aria-valuetext", `${speed} step${speed === "1" ? "" : "s"} per second`);
    if (timer !== null) { stop(); start(); }
  });
  at("scheme").addEventListener("change", load);
  at("ring-chunks").addEventListener("change", load);
  at("ring-ranks").addEventListener("change", () => { fillChunks(Number(at("ring-chunks").value)); load(); });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, [role=tab], .scroll");
    const id = { ArrowRight: "step", ArrowLeft: "back", Home: "reset" }[event.key];
    if (!id || typing || at("ring").hidden) return;
    event.preventDefault();
    at(id).click();
  });

  const [ranks, chunks] = at("ring-controls").dataset.opens.split("x").map(Number);
  fill(at("ring-ranks"), [...new Set(sizes.map(([r]) => r))].sort((a, b) => a - b), ranks);
  fillChunks(chunks);
  load();
})();
