// Executor: the steps that work on memory.
#include <algorithm>

#include "collective/executor.h"
#include "kernels/codec.h"
#include "kernels/copy.h"
#include "kernels/fold.h"

namespace ringdp::collective {
namespace {

using plan::Form;
using plan::Ref;
using plan::Space;
using plan::Step;
using plan::Verb;

// Of a result: with its sources, or with what a receiver has of the same elements, it fits a second-level cache.
constexpr int64_t kBlockBytes = 64 << 10;

}  // namespace

void Executor::fold(const Step& step) {
  std::vector<const void*> srcs;
  std::vector<void*> dsts;
  for (const Ref& ref : step.srcs) {
    srcs.push_back(resolve(ref));
    totals_.memory_bytes_read += bytes_of(ref);
  }
  for (const Ref& ref : step.dsts) {
    dsts.push_back(resolve(ref));
    totals_.memory_bytes_written += bytes_of(ref);
  }
  kernels::FoldArgs args;
  args.srcs = srcs.data();
  args.n_srcs = static_cast<int>(srcs.size());
  args.dsts = dsts.data();
  args.n_dsts = static_cast<int>(dsts.size());
  args.count = step.dsts[0].count;
  // Partial sums only: to the kernels these are tensors of the wide type.
  const auto is_wide = [](const Ref& ref) { return ref.form == Form::kWide; };
  const bool partial = is_wide(step.dsts[0]) && std::all_of(step.srcs.begin(), step.srcs.end(), is_wide);
  args.dtype = partial ? wide_of(plan_.dtype) : plan_.dtype;
  args.op = plan_.op;
  args.wide_src = step.srcs[0].form == Form::kWide;
  args.wide_dst = step.dsts[0].form == Form::kWide;
  const double divisor = buffers_.divisor != 0 ? buffers_.divisor : plan_.world;
  args.divisor = step.finish && plan_.op == ReduceOp::kAvg ? divisor : 0;
  // Sums are stored through the caches: what goes past them is copied from the first destination.
  const bool copies = args.n_dsts == 2 && is_staged_past_caches(step.dsts[1]);
  if (copies) args.n_dsts = 1;
  const SlotWatch watch(workspace_.slot_path, step, bytes_of(step.dsts[0]));
  const bool tells = buffers_.on_result && step.finish && !copies && step.dsts[0].space == Space::kOutput;
  if (tells || reader_) {
    fold_in_blocks(step, args, tells);
  } else {
    kernels::fold(args);
  }
  if (copies) kernels::copy_past_caches(dsts[0], dsts[1], static_cast<int64_t>(bytes_of(step.dsts[1])));
}

// So that what is read before, or told of behind, stays in a cache.
void Executor::fold_in_blocks(const Step& step, const kernels::FoldArgs& args, bool tells) {
  const auto bytes_per_element = [&](const Ref& ref) { return static_cast<int64_t>(bytes_of(ref)) / ref.count; };
  const int64_t block = kBlockBytes / bytes_per_element(step.dsts[0]);
  std::vector<const void*> srcs(args.n_srcs);
  std::vector<void*> dsts(args.n_dsts);
  for (int64_t begin = 0; begin < args.count; begin += block) {
    kernels::FoldArgs part = args;
    part.count = std::min(block, args.count - begin);
    for (int i = 0; i < args.n_srcs; ++i) {
      const Ref& ref = step.srcs[i];
      srcs[i] = static_cast<const std::byte*>(args.srcs[i]) + begin * bytes_per_element(ref);
      if (reader_) reader_->read(ref, srcs[i], part.count);
    }
    for (int i = 0; i < args.n_dsts; ++i) {
      dsts[i] = static_cast<std::byte*>(args.dsts[i]) + begin * bytes_per_element(step.dsts[i]);
    }
    part.srcs = srcs.data();
    part.dsts = dsts.data();
    kernels::fold(part);
    if (tells) buffers_.on_result(step.dsts[0].offset / size_of(plan_.dtype) + begin, part.count);
  }
}

bool Executor::is_staged_past_caches(const Ref& ref) const {
  return ref.space == Space::kSlot && bytes_of(ref) >= SlotPath::kLarge && workspace_.slot_path.past_caches();
}

void Executor::copy(const Step& step) {
  const std::byte* src = resolve(step.srcs[0]);
  std::byte* dst = resolve(step.dsts[0]);
  const size_t size = bytes_of(step.srcs[0]);
  if (src == dst || size == 0) return;  // all_gather into a tensor that already holds the own part
  const bool past_caches = step.past_caches || is_staged_past_caches(step.dsts[0]);
  const SlotWatch watch(workspace_.slot_path, step, size);
  (past_caches ? kernels::copy_past_caches : kernels::copy)(src, dst, static_cast<int64_t>(size));
  totals_.memory_bytes_read += size;
  totals_.memory_bytes_written += size;
}

void Executor::recode(const Step& step) {
  const Ref& src = step.srcs[0];
  const Ref& dst = step.dsts[0];
  const bool encodes = step.verb == Verb::kEncode;
  const DType dtype = (encodes ? src : dst).form == Form::kWide ? wide_of(plan_.dtype) : plan_.dtype;
  if (reader_ && encodes && src.space == Space::kInput) reader_->read(src, resolve(src), src.count);
  (encodes ? kernels::encode : kernels::decode)(plan_.wire, dtype, resolve(src), resolve(dst), src.count);
  totals_.memory_bytes_read += bytes_of(src);
  totals_.memory_bytes_written += bytes_of(dst);
}

}  // namespace ringdp::collective
