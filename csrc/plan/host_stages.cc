#include "plan/host_stages.h"

#include <algorithm>

#include "plan/pipeline.h"

namespace ringdp::plan {

HostPlace::HostPlace(const Problem& problem) : hosts(static_cast<int>(problem.hosts.size())), smallest(problem.world) {
  for (int h = 0; h < hosts; ++h) {
    const int begin = problem.hosts[h], end = h + 1 < hosts ? problem.hosts[h + 1] : problem.world;
    smallest = std::min(smallest, end - begin);
    if (problem.rank >= begin && problem.rank < end) host = h, member = problem.rank - begin, members = end - begin;
  }
}

Extent HostStages::piece(int stage, int owner) const {
  const Extent whole = segment({0, problem_.count}, elements_, stage);
  const Extent part = balanced_part(whole.count(), at_.smallest, owner, problem_.unit());
  return {whole.begin + part.begin, whole.begin + part.end};
}

void HostStages::barrier() {
  if (!alone()) arena_.barrier();
}

void HostStages::copy_in(int stage) {
  for (int i = 0; !alone() && stage < count() && i < at_.smallest; ++i) {
    if (i == at_.member) continue;
    const Extent theirs = piece(stage, i);
    for (int root = 0; root < problem_.contributed(problem_.rank); ++root) {
      arena_.copy(builder_.input(root, theirs), arena_.piece(at_.member, stage, place(i, root), theirs.count()));
    }
  }
}

void HostStages::copy_out(int stage) {
  for (int i = 0; !alone() && i < at_.smallest; ++i) {
    if (i == at_.member) continue;
    const Extent theirs = piece(stage, i);
    arena_.copy(arena_.piece(i, stage, i, theirs.count()), builder_.output(0, theirs));
  }
}

}  // namespace ringdp::plan
