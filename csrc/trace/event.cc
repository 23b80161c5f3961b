#include "trace/event.h"

namespace ringdp::trace {

const char* name_of(Kind kind) {
  static constexpr const char* kNames[kKindCount] = {
      "enqueued", "started",  "arrived", "blocked", "finished", "failed", "waited",
      "forward",  "backward", "ready",   "launched", "done",    "computed", "stepped"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace ringdp::trace
