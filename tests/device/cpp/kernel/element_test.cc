// Elements in the text of kernels, on host threads: sums of every type, and NaN for what was aborted.
#include "device/kernel/element.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "device/cpp/kernel/host_run.h"
#include "device/kernel/abort_words.h"
#include "device/kernel/poison.h"

namespace ringdp::gpu::testing {
namespace {

constexpr int kWorld = 3;
constexpr DType kSummed[] = {DType::kU8,  DType::kI8,  DType::kU16,  DType::kI16, DType::kU32, DType::kI32, DType::kU64,
                             DType::kI64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kBool};

RunKernel kernel_of_three(DType dtype, ReduceOp op) {
  return visit_dtype(dtype == DType::kBool ? DType::kU8 : dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return visit_op<T>(op, dtype == DType::kBool,
                       [](auto apply) -> RunKernel { return run_steps<HostPrim, T, decltype(apply), kWorld>; });
  });
}

// Any bits at all, infinities, NaNs and subnormals among them; bools are 0 or 1.
std::vector<char> any_bits(DType dtype, int64_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<char> bits(bytes);
  for (char& byte : bits) byte = static_cast<char>(dtype == DType::kBool ? random() % 2 : random());
  return bits;
}

// direct sums three packs, the ring adds to wide prefixes; both must have the bits of kernels/fold.h.
TEST(Element, EveryTypeAndOpHasTheBitsOfTheCpu) {
  for (const DType dtype : kSummed) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      if (!can_reduce(dtype, op) || (op == ReduceOp::kAvg && !is_floating(dtype)))
        continue;  // the host's, of whole numbers
      for (const auto algorithm : {plan::DeviceAlgorithm::kDirect, plan::DeviceAlgorithm::kRankRing}) {
        Collected one;
        one.kind.algorithm = algorithm;
        one.packs = 40;
        one.segment_bytes = one.packs * kPackBytes;  // so that threads add several packs at once
        one.dtype = dtype;
        one.op = op;
        HostLayout layout;
        layout.world = kWorld;
        Launch launch = launch_of(layout, one);
        launch.kernel = kernel_of_three(dtype, op);
        Inputs inputs;
        for (int r = 0; r < kWorld; ++r) inputs.push_back(any_bits(dtype, one.packs * kPackBytes, o * 10 + r));
        HostGroup group(layout, {launch});
        group.before = [&](int rank, int i) {
          std::copy(inputs[rank].begin(), inputs[rank].end(), group.input(rank, i));
        };
        group.run();
        const std::vector<char> right = expected(launch.plans[0], inputs, 0, launch.divisor);
        for (int r = 0; r < kWorld; ++r) {
          EXPECT_EQ(std::memcmp(group.output(r, 0), right.data(), right.size()), 0)
              << name_of(dtype) << " " << name_of(op) << " " << name_of(algorithm) << " rank " << r;
        }
      }
    }
  }
}

TEST(Element, EveryHalfComesBackFromItsFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Half half = {static_cast<uint16_t>(bits)};
    const float wide = widen<HostPrim>(half);
    const uint16_t back = round_to<HostPrim, Half>(wide).bits;
    EXPECT_EQ(back, std::isnan(wide) ? 0x7e00 : bits);
  }
}

TEST(Element, BFloat16RoundsToNearestEven) {
  const auto rounded = [](uint32_t bits) { return round_to<HostPrim, BFloat16>(bits_as<float>(bits)).bits; };
  EXPECT_EQ(rounded(0x3f808000), 0x3f80);  // a tie goes to the even one
  EXPECT_EQ(rounded(0x3f818000), 0x3f82);
  EXPECT_EQ(rounded(0x3f808001), 0x3f81);
  EXPECT_EQ(rounded(0x7f7fffff), 0x7f80);  // infinity
  EXPECT_EQ(rounded(0x00000001), 0x0000);
  EXPECT_EQ(rounded(0x80018000), 0x8002);  // subnormals are kept
}

TEST(Element, ComputedNansAreOneNan) {
  Values<float> sum = {{bits_as<float>(0xffc12345u), INFINITY - INFINITY, 1, -1}};
  finish<float>(sum, 0);
  EXPECT_EQ(bits_as<uint32_t>(sum.of[0]), 0x7fc00000u);
  EXPECT_EQ(bits_as<uint32_t>(sum.of[1]), 0x7fc00000u);
}

// The text of the kernel that makes NaN of what was aborted, on host threads.

void run_by_threads(const PoisonWork& work) {
  run_in_turn([&] { run_poison<InTurn>(work); });
}

template <class T>
void expect_nan_exactly_when_aborted(bool (*is_nan)(T)) {
  std::vector<T> memory(41 * sizeof(Pack) / sizeof(T));
  for (const size_t begin : {0, 1, 3, 15}) {
    for (const size_t count : {0, 1, 2, 13, 16, 30, 240, 300}) {
      const size_t end = std::min(begin + count, memory.size() - 1);
      for (const uint32_t abort : {0u, 1u}) {
        std::memset(memory.data(), 0x11, memory.size() * sizeof(T));
        const int64_t bytes = static_cast<int64_t>((end - begin) * sizeof(T));
        run_by_threads({reinterpret_cast<char*>(memory.data() + begin), bytes, &abort});
        for (size_t i = 0; i < memory.size(); ++i) {
          EXPECT_EQ(is_nan(memory[i]), abort != 0 && begin <= i && i < end) << i << " of " << begin << " to " << end;
        }
      }
    }
  }
}

TEST(Poison, WhatIsNotAbortedIsCopiedToItsPlace) {
  constexpr size_t kBytes = 41 * sizeof(Pack);
  alignas(sizeof(Pack)) char from[kBytes], memory[kBytes];
  for (size_t i = 0; i < kBytes; ++i) from[i] = static_cast<char>(i + 1);
  for (const size_t begin : {0, 1, 15}) {
    for (const size_t bytes : {0, 1, 2, 15, 16, 17, 300, 600}) {
      for (const uint32_t abort : {0u, 1u}) {
        std::memset(memory, 0x11, kBytes);
        run_by_threads({memory + begin, static_cast<int64_t>(bytes), &abort, from + begin});
        for (size_t i = 0; i < kBytes; ++i) {
          const bool is_inside = begin <= i && i < begin + bytes;
          EXPECT_EQ(memory[i], !is_inside ? 0x11 : abort != 0 ? static_cast<char>(~0) : from[i]) << i;
        }
      }
    }
  }
}

void run_by_a_block(const AbortWords& words) {
  constexpr int kThreads = 3;
  HostBlock block(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      HostThread self;
      self.thread = t;
      self.threads = kThreads;
      self.its_block = &block;
      self.hostility.keeps_stores = false;
      this_thread = &self;
      run_abort_words<HostPrim>(words);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What each of four peers says, and this rank itself.
TEST(AbortWords, AnAbortIsHeardAndPassedOn) {
  for (uint32_t said = 0; said < 32; ++said) {
    uint32_t abort = said >> 4;
    Pack own = {}, received[4] = {};
    for (int peer = 0; peer < 4; ++peer) received[peer].words[0] = (said >> peer & 1) != 0 ? ~0u : 0;
    run_by_a_block({&abort, &own, received, 4});
    EXPECT_EQ(abort, said != 0 ? 1u : 0u) << said;
    for (const uint32_t word : own.words) EXPECT_EQ(word, said != 0 ? ~0u : 0u) << said;
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
}  // namespace ringdp::gpu::testing
