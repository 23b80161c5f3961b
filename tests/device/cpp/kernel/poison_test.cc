// The text of the kernel that makes NaN of what was aborted, on host threads.
#include "device/kernel/poison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "device/cpp/kernel/host_run.h"

namespace ringdp::gpu {
namespace {

// What the first of a block has seen all have seen.
struct PoisonPrimitives : testing::InTurn {
  inline static bool any = false;
  static bool sync_or(bool flag) { return any = flag || (at_thread > 0 && any); }
};

void run(const PoisonWork& work) {
  testing::run_in_turn([&] { run_poison<PoisonPrimitives>(work); });
}

template <class T>
void expect_nan_exactly_when_aborted(bool (*is_nan)(T)) {
  std::vector<T> memory(41 * sizeof(Pack) / sizeof(T));
  for (const size_t begin : {0, 1, 3, 15}) {
    for (const size_t count : {0, 1, 2, 13, 16, 30, 240, 300}) {
      const size_t end = std::min(begin + count, memory.size() - 1);
      for (const uint32_t abort : {0u, 1u}) {
        std::memset(memory.data(), 0x11, memory.size() * sizeof(T));
        run({reinterpret_cast<char*>(memory.data() + begin), static_cast<int64_t>((end - begin) * sizeof(T)), &abort});
        for (size_t i = 0; i < memory.size(); ++i) {
          EXPECT_EQ(is_nan(memory[i]), abort != 0 && begin <= i && i < end) << i << " of " << begin << " to " << end;
        }
      }
    }
  }
}

TEST(Poison, EveryFloatingTypeIsNan) {
  expect_nan_exactly_when_aborted<float>([](float value) { return std::isnan(value); });
  expect_nan_exactly_when_aborted<double>([](double value) { return std::isnan(value); });
  // Exponent of ones and a fraction, of float16 and bfloat16.
  expect_nan_exactly_when_aborted<uint16_t>([](uint16_t bits) { return (bits & 0x7fff) > 0x7c00; });
  expect_nan_exactly_when_aborted<uint16_t>([](uint16_t bits) { return (bits & 0x7fff) > 0x7f80; });
  // float8_e4m3fn, float8_e5m2.
  expect_nan_exactly_when_aborted<uint8_t>([](uint8_t bits) { return (bits & 0x7f) == 0x7f; });
  expect_nan_exactly_when_aborted<uint8_t>([](uint8_t bits) { return (bits & 0x7f) > 0x7c; });
}

}  // namespace
}  // namespace ringdp::gpu
