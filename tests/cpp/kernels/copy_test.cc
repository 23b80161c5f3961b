#include "kernels/copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/dispatch.h"

namespace ringdp::kernels {
namespace {

std::vector<unsigned char> counting(size_t bytes) {
  std::vector<unsigned char> memory(bytes);
  for (size_t i = 0; i < bytes; ++i) memory[i] = static_cast<unsigned char>(i * 7 + i / 251);
  return memory;
}

// The oracle is memmove on a second copy of the same memory, whose surroundings must stay too.
void expect_as_memmove(int64_t from, int64_t to, int64_t bytes) {
  std::vector<unsigned char> ours = counting(20'000), theirs = ours;
  copy(ours.data() + from, ours.data() + to, bytes);
  std::memmove(theirs.data() + to, theirs.data() + from, static_cast<size_t>(bytes));
  ASSERT_EQ(ours, theirs) << from << " -> " << to << ", " << bytes << " bytes";
}

TEST(Copy, AnySizeAtAnyPlace) {
  for (const int64_t bytes : {0, 1, 63, 64, 65, 2047, 2048, 2049, 4095, 4096, 5000, 8191}) {
    for (const int64_t from : {0, 1, 31, 64, 100}) {
      for (const int64_t to : {10'000, 10'001, 10'007, 10'064}) expect_as_memmove(from, to, bytes);
    }
  }
}

TEST(Copy, OverlappingBothWays) {
  for (const int64_t distance : {1, 7, 64, 1000, 2047, 4999}) {
    expect_as_memmove(5000, 5000 + distance, 5000);
    expect_as_memmove(5000 + distance, 5000, 5000);
  }
  expect_as_memmove(5000, 5000, 5000);
}

// On every instruction set of this machine; AVX2's is the only one of its own.
// The oracle is memcpy on a second copy of the same memory, whose surroundings must stay too.
TEST(CopyPastCaches, AnySizeAtAnyPlace) {
  std::vector<unsigned char> start(20'000);
  std::iota(start.begin(), start.end(), 7);
  for (const InstructionSet& set : supported_instruction_sets()) {
    for (const int64_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 4096, 5000}) {
      for (const int64_t from : {0, 1, 16, 100}) {
        for (const int64_t to : {10'000, 10'001, 10'016, 10'063}) {
          std::vector<unsigned char> ours = start, theirs = start;
          set.copy_nontemporal(ours.data() + from, ours.data() + to, bytes);
          std::memcpy(theirs.data() + to, theirs.data() + from, static_cast<size_t>(bytes));
          ASSERT_EQ(ours, theirs) << set.name << ": " << from << " -> " << to << ", " << bytes << " bytes";
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringdp::kernels
