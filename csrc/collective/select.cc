#include "collective/select.h"

#include "base/error.h"

namespace ringdp::collective {
namespace {

// Beyond this many ranks the owner of a slice would have to receive from too many links at once.
constexpr int kMaxDirectRanks = 16;

Choice forced(const Settings& settings, const Topology& topology) {
  const std::string why = "forced by algorithm=" + get_field(settings, "algorithm");
  switch (settings.algorithm) {
    case AlgorithmChoice::kArena:
      if (!topology.one_arena && topology.world > 1) {
        throw Error(ErrorKind::kInvalidArgument,
                    "algorithm=arena needs all ranks to share memory, and these do not (see why in `describe`): "
                    "use algorithm=auto, direct or ring");
      }
      return {AlgorithmChoice::kArena, settings.order, why};
    case AlgorithmChoice::kDirect:
    case AlgorithmChoice::kRing: return {settings.algorithm, settings.order, why};
    default:
      throw Error(ErrorKind::kInvalidArgument, "algorithm=" + get_field(settings, "algorithm") +
                                                   " is not part of this release: use auto, arena, direct or ring");
  }
}

}  // namespace

Choice select(const Settings& settings, const Topology& topology) {
  if (settings.algorithm != AlgorithmChoice::kAuto) return forced(settings, topology);
  if (settings.order == Order::kRotated && topology.world > 1) {
    return {AlgorithmChoice::kRing, Order::kRotated, "order=rotated is the ring's own"};
  }
  if (topology.one_arena || topology.world == 1) {
    return {AlgorithmChoice::kArena, Order::kRank, "all ranks share memory: one pass over it, in rank order"};
  }
  if (topology.world <= kMaxDirectRanks) {
    return {AlgorithmChoice::kDirect, Order::kRank,
            std::to_string(topology.world) + " ranks over links: owners fold in rank order, two latency steps"};
  }
  return {AlgorithmChoice::kRing, Order::kRank, "more than 16 ranks over links: neighbours only, in rank order"};
}

}  // namespace ringdp::collective
