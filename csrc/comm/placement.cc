#include "comm/placement.h"

#include <cstdint>

#include "base/dtype.h"
#include "plan/one_pass.h"

namespace ringdp::comm {
namespace {

using plan::Problem;

int64_t input_bytes(const Problem& problem, int rank) {
  return plan::input_elements(problem, rank) * size_of(problem.dtype);
}

int64_t output_bytes(const Problem& problem) { return plan::output_elements(problem) * size_of(problem.dtype); }

// The start of this rank's inputs or outputs, of `total` elements, if they follow each other without gaps; or null.
template <class Pointer>
const std::byte* joined(const Problem& problem, const std::vector<Pointer>& tensors, int64_t total) {
  const auto* first = static_cast<const std::byte*>(tensors[0]);
  const std::byte* next = first;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t elements = tensors.size() > 1 ? problem.part(static_cast<int>(i)) : total;
    if (elements > 0 && tensors[i] != next) return nullptr;
    next += elements * size_of(problem.dtype);
  }
  return first;
}

bool lies_inside(int64_t offset, int64_t bytes, int64_t heap_bytes) {
  return offset >= 0 && bytes <= heap_bytes && offset <= heap_bytes - bytes;
}

int64_t offset_in(const std::byte* heap, int64_t heap_bytes, const void* at, int64_t bytes) {
  // Compared as integers, because the tensor may lie anywhere in this process.
  const auto offset = static_cast<int64_t>(reinterpret_cast<intptr_t>(at) - reinterpret_cast<intptr_t>(heap));
  return at != nullptr && lies_inside(offset, bytes, heap_bytes) ? offset : Placement::kElsewhere;
}

}  // namespace

Placement place(const Problem& problem, const collective::Buffers& buffers, const transport::Arena& arena) {
  const std::byte* heap = arena.heap_at(arena.index());
  const plan::Reached reached = plan::reached_by_others(problem, problem.rank);
  Placement found;
  if (problem.traits().has_splits()) found.part = problem.count;
  if (reached.inputs) {
    const std::byte* inputs = joined(problem, buffers.inputs, plan::input_elements(problem, problem.rank));
    found.inputs = offset_in(heap, arena.heap_bytes(), inputs, input_bytes(problem, problem.rank));
  }
  if (reached.outputs) {
    const std::byte* outputs = joined(problem, buffers.outputs, plan::output_elements(problem));
    found.output = offset_in(heap, arena.heap_bytes(), outputs, output_bytes(problem));
  }
  return found;
}

bool allows_heaps(const Problem& problem, int rank, const Placement& placement, int64_t heap_bytes) {
  const plan::Reached reached = plan::reached_by_others(problem, rank);
  if (problem.traits().has_splits() && placement.part != problem.count) return false;
  if (reached.inputs && !lies_inside(placement.inputs, input_bytes(problem, rank), heap_bytes)) return false;
  return !reached.outputs || lies_inside(placement.output, output_bytes(problem), heap_bytes);
}

std::optional<std::vector<collective::PeerTensors>> locate(const Problem& problem,
                                                           const std::vector<Placement>& placements,
                                                           const transport::Arena& arena) {
  std::vector<collective::PeerTensors> tensors;
  for (int rank = 0; rank < problem.world; ++rank) {
    const Placement& placed = placements[rank];
    if (!allows_heaps(problem, rank, placed, arena.heap_bytes())) return std::nullopt;
    std::byte* heap = arena.heap_at(rank);
    const plan::Reached reached = plan::reached_by_others(problem, rank);
    tensors.push_back(
        {reached.inputs ? heap + placed.inputs : nullptr, reached.outputs ? heap + placed.output : nullptr});
  }
  return tensors;
}

}  // namespace ringdp::comm
