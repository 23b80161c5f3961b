// What libFuzzer calls: the target with the program's name.
#include <string_view>

#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  for (const ringdp::fuzz::Target& target : ringdp::fuzz::targets()) {
    if (std::string_view(target.name) == FUZZ_PROGRAM) target.run({bytes, size});
  }
  return 0;
}
