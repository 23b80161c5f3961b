// What libFuzzer calls: the one target that is linked.
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  ringdp::fuzz::targets().front().run({bytes, size});
  return 0;
}
