#include "comm/in_flight.h"

#include <algorithm>

#include "base/dtype.h"

namespace ringdp::comm {
namespace {

using plan::Problem;
using plan::Tensors;

int64_t elements_of(Tensors tensors, const Problem& problem, int index, bool written) {
  switch (tensors) {
    case Tensors::kNone:
      return 0;
    case Tensors::kWhole:
      return problem.count;
    case Tensors::kPart:
      return problem.part(problem.rank);
    case Tensors::kParts:
      return problem.part(index);
    case Tensors::kSplits:
      return written ? problem.received_from(index) : problem.sent_to(index);
  }
  return 0;
}

}  // namespace

std::vector<Accessed> accessed_by(const Problem& problem, const collective::Buffers& buffers) {
  std::vector<Accessed> memory;
  const auto add = [&](const void* at, Tensors tensors, int index, bool written) {
    const auto begin = reinterpret_cast<uintptr_t>(at);
    const int64_t bytes = elements_of(tensors, problem, index, written) * size_of(problem.dtype);
    if (bytes > 0) memory.push_back({begin, begin + static_cast<uintptr_t>(bytes), written});
  };
  const plan::Traits& traits = problem.traits();
  for (size_t i = 0; i < buffers.inputs.size(); ++i) add(buffers.inputs[i], traits.inputs, static_cast<int>(i), false);
  for (size_t i = 0; i < buffers.outputs.size(); ++i)
    add(buffers.outputs[i], traits.outputs, static_cast<int>(i), true);
  return memory;
}

bool conflict(const std::vector<Accessed>& one, const std::vector<Accessed>& other) {
  return std::any_of(one.begin(), one.end(), [&](const Accessed& a) {
    return std::any_of(other.begin(), other.end(), [&](const Accessed& b) {
      return (a.written || b.written) && a.begin < b.end && b.begin < a.end;
    });
  });
}

}  // namespace ringdp::comm
