// Arena: plans over memory that all ranks map. Every rank writes its own slot only and reads everyone's, in rank order.
//
// No bytes on a link. Small all_reduce: one shot, everyone folds everything. Otherwise stages of one slot each, which
// the executor maps to the two physical slots in turn. Arena member index = group rank. Every plan, also for count 0,
// passes at least one barrier, because the executor shows and checks the ranks' notes there.
#pragma once
#include "plan/plan.h"

namespace ringdp::plan {

// Up to these sizes the second barrier of a staged all_reduce costs more than reading everyone's whole tensor.
constexpr int64_t kOneShotBytes = 32 << 10;
constexpr int64_t kOneShotBytesOfTwo = 128 << 10;  // world <= 2: there is only one other tensor to read

bool is_one_shot(const Problem& problem);  // of an all_reduce

// InvalidArgument when slot_bytes has no cache line for each rank.
Plan arena(const Problem& problem);

}  // namespace ringdp::plan
