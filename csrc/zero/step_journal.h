// What a step has done to a shard in memory that other processes map, so that one of them can complete the step where
// this one is killed in the middle.
//
// A piece is stepped block by block. Before a block is stepped, its old values are copied to `undo`:
//   done[i]    elements of piece i that the step is through with, from its beginning
//   in_flight  (i + 1) << 40 | begin: a block of piece i, of kJournalBlock elements or the rest, is being stepped, and
//              `undo` has its old values, if begin equals done[i]; 0, or another begin: no block is
//   undo       of the parameters, and of up to three tensors of state, kJournalBlock elements each
// The caller sets `done` and in_flight to 0 before a step. A process that is killed has stored what it has stored, in
// the order of its program; so whoever knows that it is dead needs no more than these.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/step.h"

namespace ringdp::zero {

constexpr int64_t kJournalBlock = 8192;
constexpr int64_t kJournalArrays = 4;

class StepJournal {
 public:
  // Flat tensors on the CPU: int64 with a word per piece, int64 with one word, float32 of all arrays. RuntimeError.
  StepJournal(at::Tensor done, at::Tensor in_flight, at::Tensor undo);

  int64_t pieces() const { return done_.numel(); }
  // Before the block of piece `piece` that begins there is stepped, with the arrays of that block.
  void before(int64_t piece, int64_t begin, const kernels::StepArrays& block) const;
  // After it. `end`: of the block.
  void after(int64_t piece, int64_t end) const;

  // Of a process that is dead: writes the old values of the block of this piece that was being stepped, if one was, to
  // whole arrays in the order of `undo`. RuntimeError where they are not flat float32 that reach into that block.
  void undo(int64_t piece, const std::vector<std::optional<at::Tensor>>& arrays) const;

 private:
  const at::Tensor done_, in_flight_, undo_;
};

}  // namespace ringdp::zero
