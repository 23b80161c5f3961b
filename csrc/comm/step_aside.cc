#include "comm/step_aside.h"

#include <algorithm>

#include "base/cores.h"

namespace ringdp::comm {
namespace {

bool has(const std::vector<int>& cores, int core) {
  return std::find(cores.begin(), cores.end(), core) != cores.end();
}

}  // namespace

std::vector<int> free_cores(const std::vector<int>& usable, int here, const std::vector<int>& of_peers) {
  std::vector<int> cores;
  if (!has(of_peers, here)) return cores;
  for (const int core : usable) {
    if (core != here && !has(of_peers, core)) cores.push_back(core);
  }
  return cores;
}

void step_aside(transport::Arena& arena) {
  arena.show_core();
  const int here = current_core();
  std::vector<int> of_peers;
  for (int member = 0; member < arena.size(); ++member) {
    if (member != arena.index()) of_peers.push_back(arena.core(member));
  }
  if (here < 0 || !has(of_peers, here)) return;
  const std::vector<int> cores = free_cores(usable_cores(), here, of_peers);
  if (!cores.empty() && move_to(cores)) arena.show_core();
}

}  // namespace ringdp::comm
