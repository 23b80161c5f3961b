// The one place that turns an algorithm's name into a device plan.
//
// Time over memory, with B bytes a second each way and t_b for a round of flags (from a post until the peer sees it):
//   direct        3 t_b + 2(N-1)/N S/B   on a full mesh; each rank sums a slice, in rank order, and stores it to all
//   one_shot      2 t_b + (N-1) S/B      each rank sums everything, in rank order, from copies in the stages;
//                                        for a reduce only the root does, from the tensors themselves
//   push          t_b + 2(N-1) S/B       the same, but every other word sent is a flag (like NCCL's LL)
//   ring/rank     S/B + (2(N-1)) (t_b + segment/B)  neighbours only, in rank order
//   ring/rotated  2(N-1) (t_b + S/(2NB))  neighbours only, half of the bytes each way; the order depends on the chunk
#pragma once
#include <cstdint>
#include <set>
#include <vector>

#include "base/settings.h"
#include "device/plan/plan.h"

namespace ringdp::plan {

// kHierarchy: only between hosts, as a link plan.
enum class DeviceAlgorithm : uint8_t { kDirect, kOneShot, kPush, kRankRing, kRotatedRing, kHierarchy };
constexpr int kDeviceAlgorithmCount = 6;
// "direct", "one_shot", "push", "ring/rank", "ring/rotated", "hierarchy"
const char* name_of(DeviceAlgorithm algorithm);

// Whether the algorithm has a device plan for the collective.
bool can_plan(DeviceAlgorithm algorithm, Collective what);

// A plan over memory that all ranks can access, in equal parts of whole packs; a message from one rank to another is a
// broadcast in a world of the two. InvalidArgument, which names the value and the way out, when the problem is
// malformed or has no such plan. A world of one gets the plan "local"; with nothing to move the ranks only synchronise.
Plan make_memory_plan(DeviceAlgorithm algorithm, const Problem& problem);

// The same plan, lowered.
DevicePlan make_device_plan(DeviceAlgorithm algorithm, const Problem& problem);

// Whether every rank reads and writes no tensors but its own: then these may lie where nobody else can reach them.
bool is_on_own_tensors(DeviceAlgorithm algorithm, Collective what, int world);

// ---- devices that only exchange messages, as those of several hosts do

// The settings of a group that decide which such plan runs.
struct LinkSettings {
  AlgorithmChoice algorithm = AlgorithmChoice::kAuto;
  Order order = Order::kRank;
  WireType wire = WireType::kFp32;
  std::vector<int> hosts;  // first rank of each host, when the ranks of every host share device memory; else empty
  int64_t hierarchy_beyond = -1;  // with hosts: an all_reduce of more bytes uses the hierarchy
};

// Its messages can be arranged in rounds (device/plan/link_rounds.h). Its scratch is at least as large as the tensor,
// so cut large tensors first.
Plan make_link_plan(DeviceAlgorithm algorithm, const Problem& problem, const LinkSettings& link_settings = {});

// Ranks among which is one that needs the most scratch: plans differ by rank, but all ranks cut by the same size.
std::set<int> ranks_with_most_scratch(const Problem& problem, const LinkSettings& link_settings);

// Whether this collective is a sum in the wire type: its pieces end between blocks (kWireBlock), and padding of the
// last block counts as zeros.
bool travels_encoded(const LinkSettings& link_settings, const Problem& problem);

}  // namespace ringdp::plan
