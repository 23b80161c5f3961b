#include "base/cores.h"

#include <sched.h>

namespace ringdp {

std::vector<int> usable_cores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

int current_core() { return ::sched_getcpu(); }

bool move_to(const std::vector<int>& cores) {
  cpu_set_t before, only;
  if (::sched_getaffinity(0, sizeof before, &before) != 0) return false;
  CPU_ZERO(&only);
  for (const int core : cores) {
    if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &only);
  }
  CPU_AND(&only, &only, &before);
  if (CPU_COUNT(&only) == 0 || ::sched_setaffinity(0, sizeof only, &only) != 0) return false;
  return ::sched_setaffinity(0, sizeof before, &before) == 0;
}

}  // namespace ringdp
