#include "collective/select.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "plan/catalog.h"
#include "plan/exchange.h"
#include "plan/halving.h"

namespace ringdp::collective {
namespace {

Choice forced(const Settings& settings, const Topology& topology) {
  const std::string why = "forced by algorithm=" + get_field(settings, "algorithm");
  switch (settings.algorithm) {
    case AlgorithmChoice::kArena:
      if (!topology.one_arena && topology.world > 1) {
        throw Error(ErrorKind::kInvalidArgument,
                    "algorithm=arena needs all ranks to share memory, and these do not (see why in `describe`): "
                    "use algorithm=auto or one that runs on links (direct, exchange, ring, server, tree)");
      }
      return {AlgorithmChoice::kArena, settings.order, why};
    case AlgorithmChoice::kHierarchy:
      if (topology.one_host && topology.world > 1) {
        throw Error(ErrorKind::kInvalidArgument,
                    "algorithm=hierarchy needs several hosts, and all ranks are on one: use algorithm=auto");
      }
      if (topology.hosts.empty() && topology.world > 1) {
        throw Error(
            ErrorKind::kInvalidArgument,
            "algorithm=hierarchy needs the ranks of every host to be contiguous and to share memory, which does "
            "not hold here: number them host by host and leave transport=auto, or use algorithm=auto");
      }
      break;
    case AlgorithmChoice::kHalving:
      if (!plan::can_halve(topology.world)) {
        throw Error(ErrorKind::kInvalidArgument, "algorithm=halving needs 2, 4, 8, 16, ... ranks, and there are " +
                                                     std::to_string(topology.world) + ": use algorithm=auto");
      }
      break;
    default:
      break;
  }
  return {settings.algorithm, settings.order, why};
}

bool is_layered(const Topology& topology) {
  return topology.hosts.size() > 1 && topology.hosts.size() < static_cast<size_t>(topology.world);
}

int ranks_of_largest_host(const Topology& topology) {
  int most = 0;
  for (size_t i = 0; i < topology.hosts.size(); ++i) {
    const int end = i + 1 < topology.hosts.size() ? topology.hosts[i + 1] : topology.world;
    most = std::max(most, end - topology.hosts[i]);
  }
  return most;
}

// Direct sends as often as a host has ranks what a hierarchy sends once, and needs two steps instead of two per host:
// by benchmarks/scale_model.py (1, 10 and 25 Gb/s) it is the faster one of two stages or less where there are at least
// twice as many hosts as ranks on each, and at no size elsewhere.
bool are_hosts_many(const Topology& topology) {
  return static_cast<int>(topology.hosts.size()) >= 2 * ranks_of_largest_host(topology);
}

std::string up_to(int64_t bytes) { return "up to " + std::to_string(bytes) + " bytes"; }
std::string beyond(int64_t bytes) { return "beyond " + std::to_string(bytes) + " bytes"; }

// A latency step within a host costs less than what exchange reduces more.
int64_t largest_exchange(const Thresholds& limits, const Topology& topology) {
  return topology.one_host ? -1 : plan::largest_exchange(topology.world, limits.exchange_bytes);
}

// For ranks that are all connected by links.
Choice select_flat(const Thresholds& limits, const Topology& topology, plan::Collective what, int64_t bytes) {
  const std::string ranks = std::to_string(topology.world) + " ranks over links";
  if (const int64_t limit = largest_exchange(limits, topology);
      what == plan::Collective::kAllReduce && bytes <= limit) {
    const std::string sizes = topology.world == 2 ? "" : ", " + up_to(limit);
    return {AlgorithmChoice::kExchange, Order::kRank, ranks + sizes + ": each reduces all tensors, one latency step"};
  }
  if (topology.world <= limits.direct_ranks) {
    return {AlgorithmChoice::kDirect, Order::kRank, ranks + ": owners fold in rank order, two latency steps"};
  }
  if (plan::traits_of(what).is(plan::kDirectOnly)) {
    return {AlgorithmChoice::kDirect, Order::kRank, ranks + ": a " + name_of(what) + " is always direct"};
  }
  if (what == plan::Collective::kBroadcast && bytes <= limits.tree_bytes) {
    return {AlgorithmChoice::kTree, Order::kRank,
            ranks + ", a broadcast " + up_to(limits.tree_bytes) + ": log2 N steps"};
  }
  if (what != plan::Collective::kBroadcast && bytes <= limits.direct_bytes) {
    return {AlgorithmChoice::kDirect, Order::kRank, ranks + ", " + up_to(limits.direct_bytes) + ": two latency steps"};
  }
  const int64_t limit = what == plan::Collective::kBroadcast ? limits.tree_bytes : limits.direct_bytes;
  return {AlgorithmChoice::kRing, Order::kRank, ranks + ", " + beyond(limit) + ": neighbours only, in rank order"};
}

Choice select_layered(const Thresholds& limits, const Topology& topology, plan::Collective what, int64_t bytes) {
  if (what != plan::Collective::kAllReduce) return select_flat(limits, topology, what, bytes);
  const std::string hosts = std::to_string(topology.hosts.size()) + " hosts of several ranks";
  if (!are_hosts_many(topology)) {
    return {AlgorithmChoice::kHierarchy, Order::kRank, hosts + ": one copy per host on the wire, in rank order"};
  }
  if (bytes <= limits.direct_bytes) {
    return {AlgorithmChoice::kDirect, Order::kRank,
            hosts + ", " + up_to(limits.direct_bytes) + ": two latency steps instead of a chain over the hosts"};
  }
  return {AlgorithmChoice::kHierarchy, Order::kRank,
          hosts + ", " + beyond(limits.direct_bytes) + ": one copy per host on the wire, in rank order"};
}

// An all_reduce is one shot or staged by plan/arena.h, and one pass by the placement of its tensors.
Choice select_arena(const Thresholds& limits, const Topology& topology) {
  const std::string one_shot = std::to_string(limits.one_shot_bytes(topology.world));
  const std::string one_pass = std::to_string(limits.one_pass_bytes(topology.world));
  return {AlgorithmChoice::kArena, Order::kRank,
          topology.world == 1 ? "one rank: nothing moves"
                              : "all ranks share memory: in rank order, sums in one shot up to " + one_shot +
                                    " bytes, shared tensors in one pass beyond " + one_pass};
}

Choice select_in_rank_order(const Settings& settings, const Topology& topology, plan::Collective what, int64_t bytes) {
  if (settings.algorithm != AlgorithmChoice::kAuto) return forced(settings, topology);
  if (topology.one_arena || topology.world == 1) return select_arena(settings.thresholds, topology);
  if (is_layered(topology)) return select_layered(settings.thresholds, topology, what, bytes);
  return select_flat(settings.thresholds, topology, what, bytes);
}

std::string how_along_tree(AlgorithmChoice algorithm) {
  switch (algorithm) {
    case AlgorithmChoice::kHierarchy:
      return "one copy per host and subtree on the wire";
    case AlgorithmChoice::kHalving:
      return "in halves of what is left at each level";
    default:
      return "where the values of all ranks meet";
  }
}

// A sum along the tree is taken where the values of all ranks meet, or by halving where those are too many messages.
Choice select_for_tree(const Settings& settings, const Topology& topology, plan::Collective what, int64_t bytes) {
  Choice choice = select_in_rank_order(settings, topology, what, bytes);
  choice.order = Order::kRank;
  if (topology.world == 1 || !plan::is_reduction(what)) return choice;
  const bool is_forced = settings.algorithm != AlgorithmChoice::kAuto;
  if (is_forced && !plan::sums_along_tree(choice.algorithm)) {
    throw Error(ErrorKind::kInvalidArgument,
                "algorithm=" + get_field(settings, "algorithm") +
                    " cannot sum with order=tree, as it passes partial sums on in an order of its own: use "
                    "algorithm=auto or order=rank");
  }
  const bool is_large = what == plan::Collective::kAllReduce && bytes > settings.thresholds.direct_bytes;
  if (choice.algorithm == AlgorithmChoice::kRing) {
    choice.algorithm =
        is_large && plan::can_halve(topology.world) ? AlgorithmChoice::kHalving : AlgorithmChoice::kDirect;
  } else if (choice.algorithm == AlgorithmChoice::kHierarchy && !is_forced && !is_large) {
    choice.algorithm = AlgorithmChoice::kDirect;
  }
  const std::string here = choice.why.substr(0, choice.why.find(':'));
  return {choice.algorithm, Order::kTree, here + ": along a balanced tree, " + how_along_tree(choice.algorithm)};
}

Choice select_plan(const Settings& settings, const Topology& topology, plan::Collective what, int64_t bytes) {
  if (settings.order == Order::kTree) return select_for_tree(settings, topology, what, bytes);
  if (settings.algorithm == AlgorithmChoice::kHalving && topology.world > 1) {
    throw Error(ErrorKind::kInvalidArgument,
                "algorithm=halving cannot sum with order=" + get_field(settings, "order") +
                    ", as it adds up along a balanced tree of ranks: use order=tree or algorithm=auto");
  }
  if (settings.algorithm == AlgorithmChoice::kAuto && settings.order == Order::kRotated && topology.world > 1) {
    return {AlgorithmChoice::kRing, Order::kRotated, "order=rotated is the ring's own"};
  }
  return select_in_rank_order(settings, topology, what, bytes);
}

// Plans other than direct would round partial sums, some at every hop.
Choice select_for_wire(const Settings& settings, const Topology& topology, plan::Collective what, int64_t bytes) {
  const std::string wire = "wire=" + get_field(settings, "wire");
  Choice choice = select_plan(settings, topology, what, bytes);
  if (choice.algorithm == AlgorithmChoice::kArena || topology.world == 1) {
    choice.why += "; " + wire + " has no effect: nothing is on a wire";
    return choice;
  }
  if (settings.order == Order::kTree && plan::is_reduction(what)) {
    throw Error(ErrorKind::kInvalidArgument,
                "order=tree cannot send " + wire + ", in which only order=rank sums: use that, or wire=fp32");
  }
  const bool asked_for = settings.algorithm != AlgorithmChoice::kAuto || settings.order == Order::kRotated;
  if (asked_for && choice.algorithm != AlgorithmChoice::kDirect) {
    const bool by_order = settings.algorithm == AlgorithmChoice::kAuto;
    const std::string asked = by_order ? "order=rotated" : "algorithm=" + get_field(settings, "algorithm");
    throw Error(ErrorKind::kInvalidArgument, asked + " cannot send " + wire +
                                                 ": partial sums would be rounded on their way; use algorithm=auto or "
                                                 "direct with order=rank, or wire=fp32");
  }
  return {AlgorithmChoice::kDirect, Order::kRank, wire + ": each contribution is rounded once, which only direct does",
          settings.wire};
}

}  // namespace

Choice select(const Settings& settings, const Topology& topology, plan::Collective what, int64_t bytes) {
  if (settings.wire == WireType::kFp32) return select_plan(settings, topology, what, bytes);
  return select_for_wire(settings, topology, what, bytes);
}

std::string describe_choices(const Settings& settings, const Topology& topology) {
  std::set<int64_t> sizes = {0, settings.thresholds.direct_bytes + 1};
  const int64_t exchanged = largest_exchange(settings.thresholds, topology);
  if (exchanged < plan::kAnySize) sizes.insert(exchanged + 1);  // no other threshold matters
  std::string text, last;
  for (const int64_t bytes : sizes) {
    const Choice choice = select(settings, topology, plan::Collective::kAllReduce, bytes);
    const std::string line = std::string("plan: ") + plan::name_of(choice.algorithm) + " (" + choice.why + ")";
    if (line != last) text += (last.empty() ? "" : "\n") + line;
    last = line;
  }
  return text;
}

}  // namespace ringdp::collective
