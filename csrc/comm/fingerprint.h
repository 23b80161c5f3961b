// What a rank says it is doing: the description of one collective, carried in its note and compared by every rank.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "comm/placement.h"
#include "plan/plan.h"
#include "transport/arena.h"

namespace ringdp::comm {

struct OpDesc {
  plan::Collective what = plan::Collective::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  int32_t root = 0;
  int64_t count = 0;                  // as in plan::Problem
  std::vector<int64_t> counts;        // as in plan::Problem: equal on all ranks
  std::vector<int64_t> sends, recvs;  // as in plan::Problem: this rank's own business, not in its note
  double divisor = 0;                 // of an AVG; 0: the number of ranks
  uint64_t seq = 0;                   // position in the group's sequence of collectives, from 1
  uint64_t group = 0;                 // hash of the group's name
  uint64_t generation = 0;            // of the group's rendezvous
};

// "all_reduce(SUM, float32 x 1024)"; "broadcast(float32 x 4, root 0)"; "all_gather(float32 x [3, 5])"; "barrier()".
std::string describe(const OpDesc& desc);

// The note also says where this rank's tensors lie, which may differ between ranks.
transport::Note encode(const OpDesc& desc, const Placement& placement = {});
Placement placement_in(const transport::Note& note);

// Throws Error(kMismatch) unless rank `theirs_rank` announced the same as `mine`; names both sides and what differs.
void check_same(const OpDesc& mine, int my_rank, const transport::Note& theirs, int theirs_rank);

uint64_t hash_name(const std::string& name);

}  // namespace ringdp::comm
