#include "plan/catalog.h"

#include "plan/arena.h"
#include "plan/builder.h"
#include "plan/direct.h"
#include "plan/exchange.h"
#include "plan/halving.h"
#include "plan/hierarchy.h"
#include "plan/ring.h"
#include "plan/tree.h"
#include "plan/validate.h"

namespace ringdp::plan {
namespace {

// One rank's result is its own contribution; an AVG may have a divisor. Executors skip a copy onto itself.
Plan local(const Problem& problem) {
  require(problem.contributed(0) == 1, "roots of one rank are one root, of all leaves");
  Builder builder("local", problem);
  const int channel = builder.add_channel("own");
  const Extent whole = {0, problem.traits().has_splits() ? problem.sent_to(0) : problem.part(0)};
  if (problem.what == Collective::kBarrier || whole.count() == 0) return builder.finish();
  const Ref input = builder.input(0, whole), output = builder.output(0, whole);
  if (is_reduction(problem.what) && problem.op == ReduceOp::kAvg) {
    builder.fold(channel, {input}, {output}, true);
  } else {
    builder.copy(channel, input, output);
  }
  return builder.finish();
}

}  // namespace

bool sums_along_tree(AlgorithmChoice algorithm) {
  return algorithm == AlgorithmChoice::kArena || algorithm == AlgorithmChoice::kDirect ||
         algorithm == AlgorithmChoice::kExchange || algorithm == AlgorithmChoice::kHalving ||
         algorithm == AlgorithmChoice::kHierarchy || algorithm == AlgorithmChoice::kServer;
}

const char* name_of(AlgorithmChoice algorithm) {
  switch (algorithm) {
    case AlgorithmChoice::kAuto:
      return "auto";
    case AlgorithmChoice::kArena:
      return "arena";
    case AlgorithmChoice::kDirect:
      return "direct";
    case AlgorithmChoice::kExchange:
      return "exchange";
    case AlgorithmChoice::kRing:
      return "ring";
    case AlgorithmChoice::kHierarchy:
      return "hierarchy";
    case AlgorithmChoice::kTree:
      return "tree";
    case AlgorithmChoice::kHalving:
      return "halving";
    case AlgorithmChoice::kServer:
      return "server";
  }
  return "unknown algorithm";
}

const char* name_of(Order order) {
  switch (order) {
    case Order::kRank:
      return "rank";
    case Order::kRotated:
      return "rotated";
    case Order::kTree:
      return "tree";
  }
  return "unknown order";
}

Plan make_plan(AlgorithmChoice algorithm, Order order, const Problem& asked) {
  validate(asked);
  if (asked.world == 1) return local(asked);
  require(!asked.roots || order == Order::kTree, std::string("roots of leaves need order=tree, not ") + name_of(order));
  Problem problem = asked;
  problem.along_tree = order == Order::kTree;
  if (problem.sums_along_tree() && !sums_along_tree(algorithm)) {
    throw Error(ErrorKind::kInvalidArgument, std::string("algorithm=") + name_of(algorithm) +
                                                 " has no plan for order=tree: it passes partial sums on in an order "
                                                 "of its own; use algorithm=auto or order=rank");
  }
  if (problem.sums_along_tree() && problem.travels_encoded()) {
    throw Error(ErrorKind::kInvalidArgument, std::string("order=tree has no plan for wire=") + name_of(problem.wire) +
                                                 ", which is rounded once per rank: use order=rank or wire=fp32");
  }
  if (problem.travels_encoded() && algorithm != AlgorithmChoice::kDirect) {
    throw Error(ErrorKind::kInvalidArgument,
                std::string("algorithm=") + name_of(algorithm) + " has no plan for wire=" + name_of(problem.wire) +
                    ": only direct quantises each contribution once; use algorithm=direct or wire=fp32");
  }
  if (algorithm == AlgorithmChoice::kHalving && is_reduction(problem.what)) {
    require(order == Order::kTree, std::string("algorithm=halving has no plan for order=") + name_of(order) +
                                       ": it sums along a balanced tree of ranks; use order=tree");
    require(can_halve(problem.world), "algorithm=halving has no plan for world=" + std::to_string(problem.world) +
                                          ", which is not a power of two: use algorithm=auto");
  }
  switch (algorithm) {
    case AlgorithmChoice::kArena:
      return arena(problem);
    case AlgorithmChoice::kDirect:
      return direct(problem);
    case AlgorithmChoice::kExchange:
      return exchange(problem);
    case AlgorithmChoice::kRing:
      return ring(problem, order);
    case AlgorithmChoice::kHierarchy:
      return hierarchy(problem);
    case AlgorithmChoice::kTree:
      return tree(problem);
    case AlgorithmChoice::kHalving:
      return halving(problem);
    case AlgorithmChoice::kServer:
      return server(problem);
    case AlgorithmChoice::kAuto:
      break;
  }
  throw Error(ErrorKind::kInvalidArgument,
              std::string("algorithm=") + name_of(algorithm) + " has no plan: collective/select turns it into another");
}

}  // namespace ringdp::plan
