// A fold of a plan on links as work of one device: its kernels sum what this rank's device reaches.
#pragma once
#include <functional>
#include <vector>

#include "device/kernel/work.h"
#include "plan/plan.h"

namespace ringdp::gpu {

// Operands of a fold, whole packs: in this rank's memory, or where others of its host have theirs.
struct Fold {
  struct Operand {
    char* at = nullptr;
    bool wide = false;
  };
  DType dtype = DType::kF32;
  std::vector<Operand> sources;  // only the first may be wide; one alone is divided
  Operand result;                // raw when finished, else wide
  char* spare = nullptr;         // spare_bytes() of it
  int64_t count = 0;             // elements
  bool finish = false;
};

// Whether the step sums partial sums to another one: a fold in that type, where they are raw.
bool is_all_wide(const plan::Step& step);
// Of a step, but for the room to spare.
Fold fold_of(const plan::Plan& plan, const plan::Step& step, const std::function<char*(const plan::Ref&)>& address_of);
// Whether it makes a result of a partial sum alone, which is of another type: no fold here.
bool only_rounds(const plan::Plan& plan, const plan::Step& step);

// What sums need beside their operands that are not one step, which eight raw sources and a finished result are, or
// two.
int64_t spare_bytes(const plan::Plan& plan, const plan::Step& step);

// Steps and operands; the rest of the work is the caller's. InvalidArgument for a fold that no kernel does.
Work work_of(const Fold& fold);

}  // namespace ringdp::gpu
