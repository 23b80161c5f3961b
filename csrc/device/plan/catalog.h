// The one place that turns an algorithm's name into a device plan.
//
// Time over memory, with B bytes a second each way and t_b for a round of flags (a post seen by the other side):
//   direct        3 t_b + 2(N-1)/N S/B   on a full mesh; all ranks sum a slice, in rank order, and see its stores
//   one_shot      2 t_b + (N-1) S/B      all ranks sum everything, in rank order; tensors need not be reachable;
//                                        a reduce: the root alone, which reads them where they are
//   push          t_b + 2(N-1) S/B       the same with flags among the data, half of what travels
//   ring/rank     S/B + (2(N-1)) (t_b + segment/B)  neighbours only, in rank order
//   ring/rotated  2(N-1) (t_b + S/(2NB))  neighbours only, half of the bytes each way; the order depends on the chunk
#pragma once
#include <cstdint>
#include <set>
#include <vector>

#include "base/settings.h"
#include "device/plan/plan.h"

namespace ringdp::plan {

// Hierarchy: of several hosts, which only plans on links have.
enum class DeviceAlgorithm : uint8_t { kDirect, kOneShot, kPush, kRankRing, kRotatedRing, kHierarchy };
constexpr int kDeviceAlgorithmCount = 6;
// "direct", "one_shot", "push", "ring/rank", "ring/rotated", "hierarchy"
const char* name_of(DeviceAlgorithm algorithm);

// Whether the algorithm has a device plan for the collective.
bool can_plan(DeviceAlgorithm algorithm, Collective what);

// Over memory that all ranks reach. Of whole packs, in equal parts; a message from one rank to another is a broadcast
// in a world of the two. InvalidArgument when the problem is malformed or has no such plan: names the value and the way
// out. A world of one gets the plan "local", and where there is nothing to move ranks only meet, whatever the
// algorithm.
Plan make_memory_plan(DeviceAlgorithm algorithm, const Problem& problem);

// The same as kernels run it.
DevicePlan make_device_plan(DeviceAlgorithm algorithm, const Problem& problem);

// ---- of devices that reach each other by messages only, as those of several hosts do

// What a group's settings ask of such plans.
struct LinkWish {
  AlgorithmChoice algorithm = AlgorithmChoice::kAuto;
  Order order = Order::kRank;
  WireType wire = WireType::kFp32;
  std::vector<int> hosts;         // first rank of each, when every host's ranks share memory of devices; else empty
  int64_t hierarchy_beyond = -1;  // then: an all_reduce of more bytes goes by hierarchy
};

// Its messages have an order of rounds (device/plan/link_rounds.h). Scratch is as large as the tensor, and larger where
// sums travel encoded: cut it before. `wish`: whose wire type and hosts it is for.
Plan make_link_plan(DeviceAlgorithm algorithm, const Problem& problem, const LinkWish& wish = {});

// Ranks of which one needs as much scratch as any: plans differ by rank, and all cut alike.
std::set<int> most_in_need(const Problem& problem, const LinkWish& wish);

// Whether this collective is a sum in the wire type: pieces of it end between blocks (kWireBlock), and what fills its
// last one up counts as zeros.
bool travels_encoded(const LinkWish& wish, const Problem& problem);

}  // namespace ringdp::plan
