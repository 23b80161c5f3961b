#include "comm/placement.h"

#include <algorithm>
#include <cstdint>
#include <span>

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
const std::byte* joined(const Problem& problem, std::span<const Pointer> tensors, int64_t total) {
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

// Where each contribution to a reduction lies, or the inputs of another collective.
std::vector<int64_t> offsets_of_inputs(const Problem& problem, const collective::Buffers& buffers,
                                       const std::byte* heap, int64_t heap_bytes) {
  const int contributed = problem.contributed(problem.rank);
  const std::span<const void* const> inputs = buffers.inputs;
  const size_t tensors = inputs.size() / contributed;
  const int64_t elements = plan::input_elements(problem, problem.rank);
  std::vector<int64_t> offsets;
  for (int root = 0; root < contributed; ++root) {
    const std::byte* at = joined(problem, inputs.subspan(root * tensors, tensors), elements);
    offsets.push_back(offset_in(heap, heap_bytes, at, input_bytes(problem, problem.rank)));
  }
  return offsets;
}

bool fits_in_header(int64_t offset) {
  return offset >= 0 && offset % Placement::kLineBytes == 0 && offset / Placement::kLineBytes < UINT32_MAX;
}

}  // namespace

Placement place(const Problem& problem, const collective::Buffers& buffers, const transport::Arena& arena) {
  const std::byte* heap = arena.heap_at(arena.index());
  const plan::Reached reached = plan::reached_by_others(problem, problem.rank);
  Placement found;
  if (problem.traits().has_splits()) found.part = problem.count;
  if (reached.inputs) {
    const std::vector<int64_t> offsets = offsets_of_inputs(problem, buffers, heap, arena.heap_bytes());
    found.further.assign(offsets.begin() + 1, offsets.end());
    const bool fit = offsets.size() <= Placement::kMostRoots &&
                     std::all_of(found.further.begin(), found.further.end(), fits_in_header);
    if (fit) {
      found.inputs = offsets[0];
    } else {
      found.further.clear();
    }
  }
  if (reached.outputs) {
    const std::byte* outputs = joined(problem, std::span<void* const>(buffers.outputs), plan::output_elements(problem));
    found.output = offset_in(heap, arena.heap_bytes(), outputs, output_bytes(problem));
  }
  return found;
}

bool allows_heaps(const Problem& problem, int rank, const Placement& placement, int64_t heap_bytes) {
  const plan::Reached reached = plan::reached_by_others(problem, rank);
  if (problem.traits().has_splits() && placement.part != problem.count) return false;
  const auto is_inside = [&](int64_t offset) { return lies_inside(offset, input_bytes(problem, rank), heap_bytes); };
  if (reached.inputs && !is_inside(placement.inputs)) return false;
  const size_t further = reached.inputs ? problem.contributed(rank) - 1 : 0;
  if (placement.further.size() < further) return false;
  if (!std::all_of(placement.further.begin(), placement.further.begin() + further, is_inside)) return false;
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
    collective::PeerTensors& found = tensors.emplace_back();
    for (int root = 0; reached.inputs && root < problem.contributed(rank); ++root) {
      found.inputs.push_back(heap + (root == 0 ? placed.inputs : placed.further[root - 1]));
    }
    if (reached.outputs) found.output = heap + placed.output;
  }
  return tensors;
}

}  // namespace ringdp::comm
