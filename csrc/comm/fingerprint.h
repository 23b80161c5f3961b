// The fingerprint of a collective: its description, which every rank sends in its header and compares with the others'.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "comm/placement.h"
#include "plan/plan.h"
#include "transport/arena.h"

namespace ringdp::comm {

// Where a collective runs. On devices the host only compares headers: it is a barrier there.
enum class Place : uint8_t {
  kHost,
  kDevices,
  kMeeting,   // on the host, while ranks set up collectives on devices
  kSharing,   // on the host, while they allocate or free shared device memory
  kStepping,  // on devices, which also step parameters with the sum
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
  plan::RootsPtr roots;               // likewise
  std::vector<int64_t> sends, recvs;  // as in plan::Problem: different on each rank, so not in its header
  double divisor = 0;                 // AVG divides by it; 0: by the number of ranks
  // On devices: where tensors lie (device/runtime/symmetric_buffers.h); 0: in the ranks' windows.
  int64_t buffer = 0, buffer_at = 0;
  bool gives = false;       // kStepping: all ranks get all parameters
  uint64_t seq = 0;         // position in the group's sequence of collectives, from 1
  uint64_t group = 0;       // hash of the group's name
  uint64_t generation = 0;  // of the group's bootstrap
};

// "all_reduce(SUM, float32 x 1024)"; "broadcast(float32 x 4, root 0)"; "all_gather(float32 x [3, 5])"; "barrier()".
std::string describe(const OpDesc& desc);

// Further values in a header, which may differ between ranks and are not compared.
struct Remarks {
  uint64_t digest = 0;  // a checksum of memory that should be equal on all ranks; 0: none
  int64_t waited_ns =
      -1;  // how long this rank waited for the last one in an earlier collective (GroupLog); -1: unknown
};

// A header also contains the placement of this rank's tensors, which may differ between ranks.
transport::Header encode(const OpDesc& desc, const Placement& placement = {}, const Remarks& remarks = {});
Placement placement_in(const transport::Header& header);
Remarks remarks_in(const transport::Header& header);

// Throws Error(kMismatch) unless rank `theirs_rank` announced the same as `mine`. Names both sides and the difference.
void check_same(const OpDesc& mine, int my_rank, const transport::Header& theirs, int theirs_rank);

uint64_t hash_name(const std::string& name);

}  // namespace ringdp::comm
