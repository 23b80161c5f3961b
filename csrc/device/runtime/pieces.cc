#include "device/runtime/pieces.h"

#include <algorithm>
#include <limits>

namespace ringdp::gpu {
namespace {

using plan::Collective;

Pieces parts_of(Collective what, int world) {
  const plan::Traits& traits = plan::traits_of(what);
  const auto tensors = [world](plan::Tensors held) {
    return held == plan::Tensors::kParts || held == plan::Tensors::kSplits ? world : 1;
  };
  const bool in_place = !traits.has_parts() && !traits.has_splits();
  return {tensors(traits.inputs), tensors(traits.outputs), in_place, {}, 0};
}

[[noreturn]] void refuse_window(int64_t bytes) {
  throw Error(ErrorKind::kInvalidArgument,
              "a window of " + std::to_string(bytes) + " bytes holds no block of each part: raise window_bytes");
}

constexpr int64_t kHalfAlignment = 128;  // bytes

int64_t half_of(int64_t window_bytes) { return window_bytes / 2 / kHalfAlignment * kHalfAlignment; }

// Elements of the largest piece that fits `bytes` of the window.
int64_t largest(const StageOf& stage_of, const plan::Problem& whole, const Pieces& pieces, const Room& room,
                int64_t bytes) {
  const int64_t unit = std::max(plan::pack_elements(whole.dtype), room.block);
  const int parts = pieces.in_place ? 1 : pieces.inputs + pieces.outputs;
  int64_t units = std::min(bytes / parts / (unit * size_of(whole.dtype)), ceil_div(whole.count, unit));
  while (units > 1 && stage_of(problem_of(whole, {0, units * unit})) > room.stage_bytes) units = ceil_div(units, 2);
  if (units > 0) return units * unit;
  refuse_window(room.window_bytes);
}

std::vector<Extent> ranges(int64_t count, int64_t most) {
  std::vector<Extent> found;
  for (int64_t begin = 0; begin < count; begin += most) found.push_back({begin, std::min(begin + most, count)});
  return found;
}

void divide(const StageOf& stage_of, const plan::Problem& whole, const Room& room, int64_t bytes, Pieces* pieces) {
  if (whole.count == 0) return pieces->elements.push_back({0, 0});
  pieces->elements = ranges(whole.count, largest(stage_of, whole, *pieces, room, bytes));
}

}  // namespace

int64_t Pieces::padded_bytes(int64_t elements, DType dtype) {
  return align_up(elements * size_of(dtype), plan::kDevicePackBytes);
}

int64_t Pieces::input_at(int index, int64_t count, DType dtype) const { return index * padded_bytes(count, dtype); }

int64_t Pieces::output_at(int index, int64_t count, DType dtype) const {
  return (in_place ? index : inputs + index) * padded_bytes(count, dtype);
}

Pieces cut(const StageOf& stage_of, const plan::Problem& problem, const Room& room) {
  Pieces pieces = parts_of(problem.what, problem.world);
  const int64_t half = half_of(room.window_bytes);
  divide(stage_of, problem, room, half, &pieces);
  if (pieces.elements.size() > 1) pieces.half = half;
  return pieces;
}

std::optional<Pieces> cut_in_buffer(const StageOf& stage_of, const plan::Problem& problem, int64_t stage_bytes) {
  const bool gathers = problem.what == Collective::kAllGather;
  if (!gathers && problem.what != Collective::kAllReduce) return std::nullopt;
  if (gathers && problem.count * size_of(problem.dtype) % plan::kDevicePackBytes != 0) return std::nullopt;
  Pieces pieces = parts_of(problem.what, problem.world);
  pieces.in_place = true;
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  divide(stage_of, problem, {kAny, stage_bytes}, kAny, &pieces);
  return pieces;
}

Pieces cut_step(int world, int64_t count, int64_t window_bytes) {
  const int64_t packs = window_bytes / world / plan::kDevicePackBytes;
  if (packs == 0) refuse_window(window_bytes);
  return {world, world, true, ranges(count, packs * plan::pack_elements(DType::kF32)), 0};
}

plan::Problem problem_of(plan::Problem whole, const Extent& piece) {
  whole.count = align_up(piece.count(), plan::pack_elements(whole.dtype));
  return whole;
}

}  // namespace ringdp::gpu
