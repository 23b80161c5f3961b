#include "device/runtime/placement.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/error.h"
#include "device/kernel/work.h"

namespace ringdp::gpu {
namespace {

constexpr int kMostBlocks = 24;  // of one rank: enough for NVLink 4, and leaves most of the device for computation
constexpr int kShare = 2;  // plans use at most this fraction of a device's blocks, so that other groups run beside

bool same_device(const PeerInfo& a, const PeerInfo& b) { return std::memcmp(a.uuid, b.uuid, sizeof a.uuid) == 0; }

struct Sharing {
  int most = 1;              // ranks on one device
  bool processes = false;    // whether some of them are different processes
  int first = 0, other = 0;  // two ranks of which that is so, else two that share a device
};

Sharing sharing_of(const std::vector<PeerInfo>& infos) {
  Sharing found;
  for (size_t a = 0; a < infos.size(); ++a) {
    int ranks = 0;
    for (size_t b = 0; b < infos.size(); ++b) {
      if (!same_device(infos[a], infos[b])) continue;
      ++ranks;
      const bool apart = infos[a].process != infos[b].process;
      if (a < b && (apart || found.most == 1) && !found.processes) {
        found.first = static_cast<int>(a);
        found.other = static_cast<int>(b);
      }
      found.processes |= apart;
    }
    found.most = std::max(found.most, ranks);
  }
  return found;
}

int fewest_multiprocessors(const std::vector<PeerInfo>& infos) {
  int fewest = infos[0].multiprocessors;
  for (const PeerInfo& info : infos) fewest = std::min(fewest, info.multiprocessors);
  return fewest;
}

[[noreturn]] void refuse_blocks(int asked, int room, int sharers) {
  throw Error(ErrorKind::kInvalidArgument,
              "blocks=" + std::to_string(asked) + " (RINGDP_BLOCKS) do not fit on a device at once, as they must, " +
                  "because they wait for those of other ranks: set at most " + std::to_string(room) +
                  (sharers > 1 ? " for each of the " + std::to_string(sharers) + " ranks that share it" : "") +
                  ", or 0");
}

std::string ranks(int a, int b) { return "ranks " + std::to_string(a) + " and " + std::to_string(b); }

Placement on_streams(const std::vector<PeerInfo>& infos, const std::string& reason, int most_blocks) {
  Placement placement;
  placement.executor = RD_GPU_STREAM;
  placement.shares_devices = true;
  placement.spans_devices =
      std::any_of(infos.begin(), infos.end(), [&](const PeerInfo& info) { return !same_device(info, infos[0]); });
  placement.blocks = most_blocks;
  placement.why = "STREAM: " + reason + ", so waits are operations of streams";
  if (most_blocks > 0) placement.why += "; kernels of up to " + std::to_string(most_blocks) + " blocks";
  for (size_t rank = 0; rank < infos.size(); ++rank) {
    if (infos[rank].waits_on_streams) continue;
    placement.why_not = reason + ", and the device of rank " + std::to_string(rank) + " cannot wait on streams";
  }
  return placement;
}

// Whether memory cannot be shared, however it is offered; or "".
std::string why_apart(const std::vector<PeerInfo>& infos, const Sharing& sharing) {
  for (size_t a = 0; a < infos.size(); ++a) {
    for (size_t b = a + 1; b < infos.size(); ++b) {
      if ((!infos[a].mig && !infos[b].mig) || same_device(infos[a], infos[b])) continue;
      return ranks(static_cast<int>(a), static_cast<int>(b)) + " are on different MIG instances, which share no memory";
    }
  }
  if (!sharing.processes || !infos[static_cast<size_t>(sharing.first)].mps) return "";
  return ranks(sharing.first, sharing.other) +
         " are processes that share a device through MPS, where waits of streams may hold up other processes";
}

}  // namespace

int blocks_for(int multiprocessors, int ranks) {
  return std::clamp(multiprocessors / (kShare * ranks), 1, kMostBlocks);
}

int blocks_of(const plan::Problem& problem, plan::DeviceAlgorithm algorithm, int most) {
  const bool sums_slices = algorithm == plan::DeviceAlgorithm::kDirect &&
                           (problem.what == plan::Collective::kAllReduce || problem.what == plan::Collective::kReduce);
  const int64_t parts = sums_slices ? problem.world : 1;
  return blocks_of(ceil_div(problem.count, plan::pack_elements(problem.dtype) * parts), most);
}

Placement place(const std::vector<PeerInfo>& infos, int most_blocks) {
  const Sharing sharing = sharing_of(infos);
  const std::string apart = why_apart(infos, sharing);
  if (!apart.empty()) {
    Placement nowhere;
    nowhere.why_not = apart;
    return nowhere;
  }
  if (sharing.processes) {
    return on_streams(infos, ranks(sharing.first, sharing.other) + " are processes that share a device", most_blocks);
  }
  const int room = fewest_multiprocessors(infos) / sharing.most;  // blocks of each rank, all at once
  if (room == 0) {
    return on_streams(infos, std::to_string(sharing.most) + " ranks share a device that holds fewer kernels at once",
                      most_blocks);
  }
  if (most_blocks > room) refuse_blocks(most_blocks, room, sharing.most);
  Placement placement;
  placement.shares_devices = sharing.most > 1;
  placement.blocks = most_blocks > 0 ? most_blocks : blocks_for(fewest_multiprocessors(infos), sharing.most);
  placement.why = sharing.most == 1 ? "SPIN: every rank has a device of its own"
                                    : "SPIN: ranks that share a device are threads, whose kernels fit side by side";
  placement.why += ", up to " + std::to_string(placement.blocks) + " blocks each";
  return placement;
}

Reach reach_of(const std::vector<uint32_t>& reached) {
  const int world = static_cast<int>(reached.size());
  const auto reaches = [&](int rank, int peer) { return (reached[static_cast<size_t>(rank)] >> peer & 1u) != 0; };
  bool all = true, neighbours = true;
  for (int rank = 0; rank < world; ++rank) {
    for (int peer = 0; peer < world; ++peer) all &= reaches(rank, peer);
    neighbours &= reaches(rank, (rank + 1) % world) && reaches(rank, (rank + world - 1) % world);
  }
  return all ? Reach::kAll : neighbours ? Reach::kNeighbours : Reach::kTooFew;
}

}  // namespace ringdp::gpu
