#include "comm/process_state.h"

#include <fstream>

namespace ringdp::comm {

std::string process_state(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return "gone";
  const size_t end = line.rfind(')');  // the command's name may contain anything
  const char state = end == std::string::npos || end + 2 >= line.size() ? '?' : line[end + 2];
  switch (state) {
    case 'R': return "running";
    case 'S': return "sleeping";
    case 'D': return "in an uninterruptible wait (state D)";
    case 'T': return "stopped by a signal (state T)";
    case 't': return "stopped by a debugger (state t)";
    case 'Z': return "dead, not yet reaped (state Z)";
    default: return std::string("in state ") + state;
  }
}

}  // namespace ringdp::comm
