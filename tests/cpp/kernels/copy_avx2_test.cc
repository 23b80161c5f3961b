// Copies past the caches, on every instruction set of this machine; AVX2's is the only one of its own.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/dispatch.h"

namespace ringdp::kernels {
namespace {

// The oracle is memcpy on a second copy of the same memory, whose surroundings must stay too.
TEST(CopyPastCaches, AnySizeAtAnyPlace) {
  std::vector<unsigned char> start(20'000);
  std::iota(start.begin(), start.end(), 7);
  for (const InstructionSet& set : supported_instruction_sets()) {
    for (const int64_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 4096, 5000}) {
      for (const int64_t from : {0, 1, 16, 100}) {
        for (const int64_t to : {10'000, 10'001, 10'016, 10'063}) {
          std::vector<unsigned char> ours = start, theirs = start;
          set.copy_past_caches(ours.data() + from, ours.data() + to, bytes);
          std::memcpy(theirs.data() + to, theirs.data() + from, static_cast<size_t>(bytes));
          ASSERT_EQ(ours, theirs) << set.name << ": " << from << " -> " << to << ", " << bytes << " bytes";
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringdp::kernels
