#include "plan/server.h"

#include "plan/direct.h"
#include "plan/owner_fold.h"

namespace ringdp::plan {
namespace {

Plan fold_at(int server, const Problem& problem) {
  std::vector<Extent> slices(problem.world);
  slices[server] = {0, problem.count};
  return fold_at_owners("server", problem, slices);
}

}  // namespace

Plan server(const Problem& problem) {
  switch (problem.what) {
    case Collective::kAllReduce: return fold_at(0, problem);
    case Collective::kReduce: return fold_at(problem.root, problem);
    case Collective::kBroadcast: {
      Plan plan = direct(problem);  // the root serving everyone is what direct does anyway
      plan.algorithm = "server";
      return plan;
    }
    default: return direct(problem);
  }
}

}  // namespace ringdp::plan
