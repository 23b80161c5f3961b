// How a collective goes through the ranks' windows: which bytes of a tensor at a time, and where they lie there.
//
// A value that all ranks compute alike, from what the collective is and how large windows are. A tensor consists of
// parts: one, or one for each rank (the inputs of a reduce_scatter or scatter, the outputs of an all_gather or gather,
// both of an all_to_all). A piece takes the same range of every part. A window has room for all parts, also on a rank
// that brings or gets none. Where elements share scales, pieces end between blocks of them.
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
  bool in_place = false;         // results lie where inputs were
  std::vector<Extent> elements;  // of every part, piece by piece; one empty piece where there is nothing to move

  // Bytes that a part of this many elements takes in a window: whole packs.
  static int64_t padded_bytes(int64_t elements, DType dtype);
  // Where part `index` begins in the window while a piece of `count` elements is under way.
  int64_t input_at(int index, int64_t count, DType dtype) const;
  int64_t output_at(int index, int64_t count, DType dtype) const;
};

// What bounds a piece; beside the window, for plans that pass sums on.
struct Room {
  int64_t window_bytes = 0, stage_bytes = 0;
  int64_t block = 0;  // elements that pieces do not part, whole packs; 0: a pack
};

using StageOf = std::function<int64_t(const plan::Problem& piece)>;  // bytes that its plan needs beside the window

// `problem`: of the whole collective, its count in elements, any number. InvalidArgument when not even one block fits.
Pieces cut(const StageOf& stage_of, const plan::Problem& problem, const Room& room);
Pieces cut(plan::DeviceAlgorithm algorithm, const plan::Problem& problem, const Room& room);  // of device plans

// Of a collective on tensors in a segment: none, when it cannot run there. Parts of the output follow one another, and
// the input is the output, or this rank's part of it.
std::optional<Pieces> cut_in_segment(plan::DeviceAlgorithm algorithm, const plan::Problem& problem,
                                     int64_t stage_bytes);

// Of a step, whose `world` parts are everybody's elements of a bucket of float32, `count` each: what is stepped lies
// where gradients were.
Pieces cut_step(int world, int64_t count, int64_t window_bytes);

// The plan's problem for one piece: whole packs.
plan::Problem problem_of(plan::Problem whole, const Extent& piece);

}  // namespace ringdp::gpu
