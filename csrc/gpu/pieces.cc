#include "gpu/pieces.h"

#include <algorithm>

namespace ringdp::gpu {
namespace {

using plan::Collective;

Pieces parts_of(Collective what, int world) {
  switch (what) {
    case Collective::kReduceScatter: return {world, 1, false, {}};
    case Collective::kAllGather: return {1, world, false, {}};
    case Collective::kAllToAll: return {world, world, false, {}};
    default: return {1, 1, true, {}};
  }
}

// Elements of the largest piece.
int64_t largest(const StageOf& stage_of, const plan::DeviceProblem& whole, const Pieces& pieces, const Room& room) {
  const int64_t pack = plan::pack_elements(whole.dtype);
  const int parts = pieces.in_place ? 1 : pieces.inputs + pieces.outputs;
  int64_t packs = std::min(room.window_bytes / parts / plan::kDevicePackBytes, ceil_div(whole.count, pack));
  while (packs > 1 && stage_of(problem_of(whole, {0, packs * pack})) > room.stage_bytes) packs = ceil_div(packs, 2);
  if (packs > 0) return packs * pack;
  throw Error(ErrorKind::kInvalidArgument, "a window of " + std::to_string(room.window_bytes) +
                                               " bytes holds no pack of each part: raise window_bytes");
}

}  // namespace

int64_t Pieces::padded_bytes(int64_t elements, DType dtype) {
  return align_up(elements * size_of(dtype), plan::kDevicePackBytes);
}

int64_t Pieces::input_at(int index, int64_t count, DType dtype) const { return index * padded_bytes(count, dtype); }

int64_t Pieces::output_at(int index, int64_t count, DType dtype) const {
  return (in_place ? index : inputs + index) * padded_bytes(count, dtype);
}

Pieces cut(const StageOf& stage_of, const plan::DeviceProblem& problem, const Room& room) {
  Pieces pieces = parts_of(problem.what, problem.world);
  if (problem.count == 0) {
    pieces.elements.push_back({0, 0});
    return pieces;
  }
  const int64_t most = largest(stage_of, problem, pieces, room);
  for (int64_t begin = 0; begin < problem.count; begin += most) {
    pieces.elements.push_back({begin, std::min(begin + most, problem.count)});
  }
  return pieces;
}

Pieces cut(plan::DeviceAlgorithm algorithm, const plan::DeviceProblem& problem, const Room& room) {
  const auto stage_of = [algorithm](const auto& piece) { return plan::make_device_plan(algorithm, piece).stage_bytes; };
  return cut(stage_of, problem, room);
}

plan::DeviceProblem problem_of(plan::DeviceProblem whole, const Extent& piece) {
  whole.count = align_up(piece.count(), plan::pack_elements(whole.dtype));
  return whole;
}

}  // namespace ringdp::gpu
