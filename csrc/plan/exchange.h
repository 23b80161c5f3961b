// Exchange: every rank sends its whole tensor to every other one, and each reduces all of them in rank order.
//
// An all_reduce takes one latency step, where direct takes two, and has direct's bits: the same raw values, reduced in
// the same order. A rank sends (N-1) times the tensor, where direct sends 2(N-1)/N: no more with two ranks. For
// anything else exchange() returns direct's plan, under that name.
#pragma once
#include <cstdint>
#include <limits>

#include "plan/plan.h"

namespace ringdp::plan {

Plan exchange(const Problem& problem);  // a valid problem with world > 1

// The largest all_reduce, in bytes, for which a rank sends at most `more` bytes beyond those of direct.
constexpr int64_t kAnySize = std::numeric_limits<int64_t>::max();
int64_t largest_exchange(int world, int64_t more);

}  // namespace ringdp::plan
