// The pieces in which a collective's tensors go through the ranks' windows, and their places there.
//
// All ranks compute the same pieces, from the collective and the size of the windows. A tensor consists of parts: one,
// or one per rank (the inputs of a reduce_scatter or scatter, the outputs of an all_gather or gather, both of an
// all_to_all). A piece is the same range of every part. A window has room for all parts, also on a rank that has no
// input or output; several pieces use its halves by turns, so that one can be copied while the next one's plan runs.
// Where elements share scales, pieces are cut between blocks of them.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "device/plan/catalog.h"

namespace ringdp::gpu {

struct Pieces {
  int inputs = 1, outputs = 1;   // parts
  bool in_place = false;         // results replace inputs
  std::vector<Extent> elements;  // the range of each piece; one empty range when there is nothing to move
  int64_t half = 0;              // where in the window every other piece begins

  // Bytes of a part of this many elements in a window, rounded up to whole packs.
  static int64_t padded_bytes(int64_t elements, DType dtype);
  // Where in the window the parts of piece `piece` lie.
  int64_t place_of(size_t piece) const { return piece % 2 == 0 ? 0 : half; }
  // Offset of part `index` there, for a piece of `count` elements.
  int64_t input_at(int index, int64_t count, DType dtype) const;
  int64_t output_at(int index, int64_t count, DType dtype) const;
};

// What limits the size of a piece. The stage is for plans that pass partial sums on.
struct Room {
  int64_t window_bytes = 0, stage_bytes = 0;
  int64_t block = 0;  // pieces are cut at multiples of so many elements; 0: of a pack
};

using StageOf = std::function<int64_t(const plan::Problem& piece)>;  // bytes of stage that its plan needs

// `problem`: of the whole collective, with any count of elements. InvalidArgument when not even one block fits.
Pieces cut(const StageOf& stage_of, const plan::Problem& problem, const Room& room);

// The pieces of a collective on tensors in a symmetric buffer, or nothing when it cannot run there. The parts of the
// output are contiguous, and the input is the output or this rank's part of it.
std::optional<Pieces> cut_in_buffer(const StageOf& stage_of, const plan::Problem& problem, int64_t stage_bytes);

// The pieces of a fused step on a float32 bucket with a part of `count` elements per rank: parameters replace
// gradients.
Pieces cut_step(int world, int64_t count, int64_t window_bytes);

// The problem for one piece, rounded up to whole packs.
plan::Problem problem_of(plan::Problem whole, const Extent& piece);

}  // namespace ringdp::gpu
