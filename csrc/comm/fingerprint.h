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

// Where a collective runs. On devices the host only compares notes: it is a barrier there.
enum class Place : uint8_t {
  kHost,
  kDevices,
  kMeeting,   // of ranks that will run collectives on devices
  kSharing,   // of those that make, or give back, more of it
  kStepping,  // on devices, which step parameters with what they sum
};
constexpr int kPlaceCount = 5;
inline bool is_on_devices(Place place) { return place == Place::kDevices || place == Place::kStepping; }

struct OpDesc {
  plan::Collective what = plan::Collective::kBarrier;
  Place place = Place::kHost;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  int32_t root = 0;
  int64_t count = 0;                  // as in plan::Problem
  std::vector<int64_t> counts;        // as in plan::Problem: equal on all ranks
  std::vector<int64_t> sends, recvs;  // as in plan::Problem: this rank's own business, not in its note
  double divisor = 0;                 // of an AVG; 0: the number of ranks
  int64_t segment = 0, segment_at = 0;  // on devices: where tensors lie (gpu/segments.h); 0: in everybody's window
  bool gives = false;                   // of a step: everybody gets all parameters
  uint64_t seq = 0;                   // position in the group's sequence of collectives, from 1
  uint64_t group = 0;                 // hash of the group's name
  uint64_t generation = 0;            // of the group's rendezvous
};

// "all_reduce(SUM, float32 x 1024)"; "broadcast(float32 x 4, root 0)"; "all_gather(float32 x [3, 5])"; "barrier()".
std::string describe(const OpDesc& desc);

// What a rank says beside it, and need not be equal.
struct Remarks {
  uint64_t digest = 0;     // of memory that should be equal on all ranks; 0: it says nothing
  int64_t waited_ns = -1;  // in the collective before this one, for the last rank to enter it; -1: there was none
};

// The note also says where this rank's tensors lie, which may differ between ranks.
transport::Note encode(const OpDesc& desc, const Placement& placement = {}, const Remarks& remarks = {});
Placement placement_in(const transport::Note& note);
Remarks remarks_in(const transport::Note& note);

// Throws Error(kMismatch) unless rank `theirs_rank` announced the same as `mine`; names both sides and what differs.
void check_same(const OpDesc& mine, int my_rank, const transport::Note& theirs, int theirs_rank);

uint64_t hash_name(const std::string& name);

}  // namespace ringdp::comm
