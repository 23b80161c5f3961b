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
