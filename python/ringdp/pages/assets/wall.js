"use strict";
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
