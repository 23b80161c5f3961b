// Turns a fold of a link plan into work for this rank's kernels, which sum memory that its device can access.
#pragma once
#include <functional>
#include <vector>

#include "device/kernel/work.h"
#include "plan/plan.h"

namespace ringdp::gpu {

// A fold of whole packs, whose operands are in this rank's memory or in that of other ranks of its host.
struct Fold {
  struct Operand {
    char* at = nullptr;
    bool wide = false;
  };
  DType dtype = DType::kF32;
  std::vector<Operand> sources;  // only the first may be wide; a single one is only divided
  Operand result;                // raw if `finish`, else wide
  char* spare = nullptr;         // temporary memory of spare_bytes()
  int64_t count = 0;             // elements
  bool finish = false;
};

// Whether the step sums partial sums to a partial sum: then it is a fold in the wide type, as if that were raw.
bool is_all_wide(const plan::Step& step);
// The fold of a step, without `spare`.
Fold fold_of(const plan::Plan& plan, const plan::Step& step, const std::function<char*(const plan::Ref&)>& address_of);
// Whether the step only rounds one partial sum to the tensor's type, which is not a fold.
bool only_rounds(const plan::Plan& plan, const plan::Step& step);

// Temporary memory of a sum that takes more than one step. Up to eight raw sources with a finished result, or any two
// sources, take one.
int64_t spare_bytes(const plan::Plan& plan, const plan::Step& step);

// Sets steps and operands; the caller sets the rest. InvalidArgument for a fold that no kernel supports.
Work work_of(const Fold& fold);

}  // namespace ringdp::gpu
