"use strict";
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
    // Not `disabled`, which would drop the focus of who steps by keyboard.
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
