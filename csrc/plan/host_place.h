// Where a rank is among the hosts of a problem, and how many ranks the smallest host has. Hosts must not be empty.
#pragma once
#include <algorithm>

#include "plan/plan.h"

namespace ringdp::plan {

struct HostPlace {
  explicit HostPlace(const Problem& problem)
      : hosts(static_cast<int>(problem.hosts.size())), smallest(problem.world) {
    for (int h = 0; h < hosts; ++h) {
      const int begin = problem.hosts[h], end = h + 1 < hosts ? problem.hosts[h + 1] : problem.world;
      smallest = std::min(smallest, end - begin);
      if (problem.rank >= begin && problem.rank < end) host = h, member = problem.rank - begin, members = end - begin;
    }
  }

  // The rank at this rank's place on that host, counted round the hosts.
  int counterpart(const Problem& problem, int on) const { return problem.hosts[(on + hosts) % hosts] + member; }

  int hosts, host = 0;          // how many, and this rank's
  int member = 0, members = 0;  // this rank's place on its host, and how many are there
  int smallest;                 // host, in ranks
};

}  // namespace ringdp::plan
