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
                    "use algorithm=auto or one that runs on links (direct, ring, server, tree)");
      }
      return {AlgorithmChoice::kArena, settings.order, why};
    case AlgorithmChoice::kHierarchy:
      if (topology.hosts.empty() && topology.world > 1) {
        throw Error(ErrorKind::kInvalidArgument,
                    "algorithm=hierarchy needs the ranks of every host to be contiguous and to share memory, which does "
                    "not hold here: number them host by host and leave transport=auto, or use algorithm=auto");
      }
      break;
    default: break;
  }
  return {settings.algorithm, settings.order, why};
}

bool is_layered(const Topology& topology) {
  return topology.hosts.size() > 1 && topology.hosts.size() < static_cast<size_t>(topology.world);
}

Choice select_plan(const Settings& settings, const Topology& topology) {
  if (settings.algorithm != AlgorithmChoice::kAuto) return forced(settings, topology);
  if (settings.order == Order::kRotated && topology.world > 1) {
    return {AlgorithmChoice::kRing, Order::kRotated, "order=rotated is the ring's own"};
  }
  if (topology.one_arena || topology.world == 1) {
    return {AlgorithmChoice::kArena, Order::kRank, "all ranks share memory: one pass over it, in rank order"};
  }
  if (is_layered(topology)) {
    const std::string hosts = std::to_string(topology.hosts.size());
    return {AlgorithmChoice::kHierarchy, Order::kRank,
            hosts + " hosts of several ranks: one copy per host on the wire, in rank order"};
  }
  if (topology.world <= kMaxDirectRanks) {
    return {AlgorithmChoice::kDirect, Order::kRank,
            std::to_string(topology.world) + " ranks over links: owners fold in rank order, two latency steps"};
  }
  return {AlgorithmChoice::kRing, Order::kRank, "more than 16 ranks over links: neighbours only, in rank order"};
}

// Other plans than direct would round partial sums, some at every hop.
Choice select_for_wire(const Settings& settings, const Topology& topology) {
  const std::string wire = "wire=" + get_field(settings, "wire");
  Choice choice = select_plan(settings, topology);
  if (choice.algorithm == AlgorithmChoice::kArena || topology.world == 1) {
    choice.why += "; " + wire + " has no effect: nothing is on a wire";
    return choice;
  }
  const bool asked_for = settings.algorithm != AlgorithmChoice::kAuto || settings.order == Order::kRotated;
  if (asked_for && choice.algorithm != AlgorithmChoice::kDirect) {
    const bool by_order = settings.algorithm == AlgorithmChoice::kAuto;
    const std::string asked = by_order ? "order=rotated" : "algorithm=" + get_field(settings, "algorithm");
    throw Error(ErrorKind::kInvalidArgument,
                asked + " cannot send " + wire + ": partial sums would be rounded on their way; use algorithm=auto or direct with order=rank, or "
                    "wire=fp32");
  }
  return {AlgorithmChoice::kDirect, Order::kRank,
          wire + ": each contribution is rounded once, which only direct does", settings.wire};
}

}  // namespace

Choice select(const Settings& settings, const Topology& topology) {
  return settings.wire == WireType::kFp32 ? select_plan(settings, topology) : select_for_wire(settings, topology);
}

}  // namespace ringdp::collective
