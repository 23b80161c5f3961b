// Says whether a Problem can be planned at all, before any plan is made.
#pragma once
#include <string>

#include "plan/plan.h"

namespace ringdp::plan {

// InvalidArgument names the field, its value and what is accepted.
void validate(const Problem& problem);

// Checks shared by all kinds of problems, on the CPU and on devices. InvalidArgument with the message unless it holds.
void require(bool holds, const std::string& message);
void require_rank(const std::string& field, int rank, int world);
// Requires that the elements of all ranks together, in wide_of(dtype), fit into an address space.
void require_count(int64_t count, int world, DType dtype);
void require_segment_bytes(int64_t bytes);

}  // namespace ringdp::plan
