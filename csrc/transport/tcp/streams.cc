#include "transport/tcp/streams.h"

#include <algorithm>
#include <fstream>

namespace ringdp::transport {

int64_t interface_speed(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/speed");
  int64_t megabits = 0;
  return file >> megabits ? std::max<int64_t>(megabits, 0) : 0;
}

int streams_for(int64_t megabits) {
  if (megabits >= 100'000) return 8;
  return megabits >= 25'000 ? 4 : 1;
}

}  // namespace ringdp::transport
