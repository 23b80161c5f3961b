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
