// The text of the codec's kernels on host threads, several to a warp: the bits of kernels/codec.h.
#include "device/kernel/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device/cpp/kernel/host_prim.h"
#include "kernels/codec.h"
#include "plan/oracle.h"

namespace ringdp::gpu::testing {
namespace {

using plan::testing::Bytes;

constexpr int kBlocks = 3, kThreads = 4;
constexpr WireType kWires[] = {WireType::kBf16, WireType::kFp16, WireType::kFp8, WireType::kInt8};
constexpr DType kElements[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64};

// A block of threads is one warp.
struct WarpPrim : HostPrim {
  static constexpr int kWarp = kThreads;
  inline static uint32_t told[kThreads];
  static int blocks() { return kBlocks; }
  static uint32_t largest_of_warp(uint32_t value) {
    told[thread()] = value;
    this_thread->its_block->sync();
    uint32_t largest = 0;
    for (const uint32_t one : told) largest = std::max(largest, one);
    this_thread->its_block->sync();
    return largest;
  }
  static bool any_of_warp(bool flag) { return largest_of_warp(flag) != 0; }
};

void run_thread(HostBlock& its_block, int block, int thread, const CodecWork& work) {
  HostThread self;
  self.block = block;
  self.thread = thread;
  self.threads = kThreads;
  self.its_block = &its_block;
  this_thread = &self;
  visit_dtype(work.element, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_floating_point_v<Wide<T>>) {
      work.encodes ? run_codec<WarpPrim, T, true>(work) : run_codec<WarpPrim, T, false>(work);
    }
  });
  this_thread = nullptr;
}

void run(const CodecWork& work) {
  for (int block = 0; block < kBlocks; ++block) {
    HostBlock here(kThreads);
    std::vector<std::thread> others;
    for (int t = 1; t < kThreads; ++t) others.emplace_back([&, t] { run_thread(here, block, t, work); });
    run_thread(here, block, 0, work);
    for (std::thread& other : others) other.join();
  }
}

constexpr size_t kGuard = 16;  // bytes behind the end, which nobody writes

// Memory that starts at a pack, as kernels want it.
Bytes recoded(CodecWork work, const Bytes& from, int64_t bytes) {
  std::vector<Pack> in(from.size() / sizeof(Pack) + 1), out(static_cast<size_t>(bytes) / sizeof(Pack) + 2);
  if (!from.empty()) std::memcpy(in.data(), from.data(), from.size());
  std::memset(out.data(), 0xa5, out.size() * sizeof(Pack));
  work.from = reinterpret_cast<const char*>(in.data());
  work.to = reinterpret_cast<char*>(out.data());
  run(work);
  const auto* const written = reinterpret_cast<const std::byte*>(out.data());
  for (size_t i = 0; i < kGuard; ++i) EXPECT_EQ(written[static_cast<size_t>(bytes) + i], std::byte{0xa5}) << i;
  return {written, written + bytes};
}

Bytes encoded(WireType wire, DType element, const Bytes& from, int64_t count, int64_t held) {
  return recoded({nullptr, nullptr, count, held, element, wire, true}, from, encoded_bytes(wire, count));
}
Bytes decoded(WireType wire, DType element, const Bytes& from, int64_t count) {
  return recoded({nullptr, nullptr, count, 0, element, wire, false}, from, count * size_of(element));
}

Bytes encoded_by_cpu(WireType wire, DType element, const Bytes& from, int64_t count) {
  Bytes out(static_cast<size_t>(encoded_bytes(wire, count)));
  kernels::encode(wire, element, from.data(), out.data(), count);
  return out;
}
Bytes decoded_by_cpu(WireType wire, DType element, const Bytes& from, int64_t count) {
  Bytes out(static_cast<size_t>(count * size_of(element)));
  kernels::decode(wire, element, from.data(), out.data(), count);
  return out;
}

Bytes elements_of(DType element, const std::vector<double>& values) {
  Bytes bytes(values.size() * static_cast<size_t>(size_of(element)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (element != DType::kF16) {
      plan::testing::store(bytes.data(), static_cast<int64_t>(i), element, values[i]);
      continue;
    }
    const uint16_t half = HostPrim::float_to_half(static_cast<float>(values[i]));
    std::memcpy(bytes.data() + i * sizeof half, &half, sizeof half);
  }
  return bytes;
}

// Both ways.
void expect_the_cpus_bits(const std::vector<double>& values, const std::string& what) {
  const auto count = static_cast<int64_t>(values.size());
  for (const DType element : kElements) {
    const Bytes from = elements_of(element, values);
    for (const WireType wire : kWires) {
      const std::string named = std::string(name_of(element)) + " as " + name_of(wire) + ": " + what;
      const Bytes want = encoded_by_cpu(wire, element, from, count);
      ASSERT_TRUE(encoded(wire, element, from, count, count) == want) << named;
      ASSERT_TRUE(decoded(wire, element, want, count) == decoded_by_cpu(wire, element, want, count)) << named;
    }
  }
}

// Blocks of very different size, subnormal and huge ones among them, with zeros and values between two codes.
std::vector<double> spread(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> values;
  double size = 1;
  for (int64_t i = 0; i < count; ++i) {
    if (i % kWireBlock == 0) size = std::ldexp(1.0, static_cast<int>(random() % 290) - 160);
    values.push_back(static_cast<double>(static_cast<int64_t>(random() % 2001) - 1000) * size);
    if (random() % 5 != 0) values.back() = std::ldexp(values.back(), -static_cast<int>(random() % 12));
  }
  return values;
}

TEST(Codec, EveryCountHasTheBitsOfTheCpu) {
  for (const int64_t count : {0, 1, 3, 4, 255, 256, 257, 1000, 256 * 5 + 2}) {
    expect_the_cpus_bits(spread(count, static_cast<uint64_t>(count)), std::to_string(count) + " elements");
  }
}

TEST(Codec, EveryExponentAndTieHasTheBitsOfTheCpu) {
  std::vector<double> values;
  for (uint32_t exponent = 0; exponent < 255; exponent += exponent < 20 || exponent > 230 ? 1 : 11) {
    for (const uint32_t fraction :
         {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0x18000u, 0x1000u, 0x80000u, 0x180000u, 0x7fffffu}) {
      for (const uint32_t sign : {0u, 0x80000000u}) {
        values.push_back(bits_as<float>(sign | exponent << 23 | fraction));
      }
    }
    while (values.size() % kWireBlock != 0) values.push_back(values.back() / 3);  // its own block for each
  }
  expect_the_cpus_bits(values, "exponents");
}

TEST(Codec, CodesRoundAsTheCpusDo) {
  for (const double top : {127.0, 448.0}) {
    for (double step = 0x1p-11; step <= 16; step *= 2) {
      std::vector<double> values = {top};
      for (int i = -127; i <= 127; ++i) values.push_back(std::clamp(i * step, -top, top));
      expect_the_cpus_bits(values, "steps of " + std::to_string(step));
    }
  }
}

TEST(Codec, WhatIsNotFiniteBecomesWhatTheCpuMakesOfIt) {
  for (const double strange : {HUGE_VAL, -HUGE_VAL, std::nan(""), 1e300, 3.5e38, 70000.0}) {
    std::vector<double> values(600, 1.5);
    values[300] = strange;
    expect_the_cpus_bits(values, std::to_string(strange));
  }
}

TEST(Codec, EveryCodeDecodesAsTheCpusDo) {
  for (const WireType wire : {WireType::kFp8, WireType::kInt8}) {
    for (const float scale : {1.0f, 0x1p-120f, 3.3e30f}) {
      Bytes block(4 + 256);
      std::memcpy(block.data(), &scale, sizeof scale);
      for (size_t i = 0; i < 256; ++i) block[4 + i] = static_cast<std::byte>(i);
      for (const DType element : kElements) {
        EXPECT_EQ(decoded(wire, element, block, 256), decoded_by_cpu(wire, element, block, 256)) << name_of(element);
      }
    }
  }
}

TEST(Codec, WhatIsNotHeldCountsAsZeros) {
  const std::vector<double> values(800, 1e30);  // what lies there would change scales
  for (const int64_t held : {0, 1, 255, 256, 301, 600}) {
    std::vector<double> known = values;
    std::fill(known.begin() + held, known.end(), 0.0);
    for (const WireType wire : kWires) {
      EXPECT_EQ(encoded(wire, DType::kF32, elements_of(DType::kF32, values), 600, held),
                encoded_by_cpu(wire, DType::kF32, elements_of(DType::kF32, known), 600));
    }
  }
}

}  // namespace
}  // namespace ringdp::gpu::testing
