// Steps of plans whose sums travel encoded, on this rank's device.
#include <algorithm>

#include "gpu/device/codec_work.h"
#include "gpu/nccl/ranks.h"

namespace ringdp::gpu {

void NcclRanks::recode(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream) {
  const plan::Ref &from = step.srcs[0], &to = step.dsts[0];
  CodecWork work = {address_of(plan, from, piece), address_of(plan, to, piece), to.count, to.count, {}, plan.wire, {}};
  work.encodes = step.verb == plan::Verb::kEncode;
  work.element = (work.encodes ? from : to).form == plan::Form::kWide ? wide_of(plan.dtype) : plan.dtype;
  if (from.space == plan::Space::kInput && !piece.held.empty()) {
    const int64_t held = piece.held.at(static_cast<size_t>(from.index)) - from.offset / size_of(plan.dtype);
    work.held = std::clamp<int64_t>(held, 0, from.count);
  }
  require(functions_, functions_.recode(&work, sizeof work, stream));
}

// Divided where it lies, then rounded to the tensor's type as to the wire type that has its bits.
void NcclRanks::round(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream) {
  const plan::Ref &sum = step.srcs[0], &result = step.dsts[0];
  plan::Step divides = step;
  divides.dsts = {sum};
  if (piece.divisor != 0) fold(plan, divides, piece, stream);
  CodecWork work = {address_of(plan, sum, piece), address_of(plan, result, piece), sum.count, sum.count, {}, {}, true};
  work.element = wide_of(plan.dtype);
  work.wire = plan.dtype == DType::kF16 ? WireType::kFp16 : WireType::kBf16;
  require(functions_, functions_.recode(&work, sizeof work, stream));
}

}  // namespace ringdp::gpu
