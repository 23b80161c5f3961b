#include "kernels/checksum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "base/error.h"
#include "kernels/dispatch.h"

namespace ringdp::kernels {
namespace {

std::vector<unsigned char> random_bytes(size_t size, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<unsigned char> bytes(size);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

TEST(Checksum, EveryFlippedBitShows) {
  for (const size_t size : {1, 7, 8, 63, 64, 65, 200}) {
    auto bytes = random_bytes(size);
    const uint64_t right = checksum(bytes.data(), size);
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= 1 << (bit % 8);
      EXPECT_NE(checksum(bytes.data(), size), right) << "bit " << bit << " of " << size << " bytes";
      bytes[bit / 8] ^= 1 << (bit % 8);
    }
    EXPECT_EQ(checksum(bytes.data(), size), right);
  }
}

// What a sum or an exclusive or would miss: two flips of the same bit, and words that change places.
TEST(Checksum, PairsOfFlipsAndExchangesShow) {
  auto bytes = random_bytes(512);
  const uint64_t right = checksum(bytes.data(), bytes.size());
  for (size_t first = 0; first < 512; first += 8) {
    for (size_t second = first + 8; second < 512; second += 8) {
      auto flipped = bytes, exchanged = bytes;
      flipped[first + 7] ^= 0x80;
      flipped[second + 7] ^= 0x80;
      EXPECT_NE(checksum(flipped.data(), 512), right) << first << " and " << second;
      std::swap_ranges(&exchanged[first], &exchanged[first + 8], &exchanged[second]);
      EXPECT_NE(checksum(exchanged.data(), 512), right) << first << " and " << second;
    }
  }
}

TEST(Checksum, ANegatedArrayShows) {
  std::vector<float> values(4096, 1.5f), negated(4096, -1.5f);
  EXPECT_NE(checksum(values.data(), 4 * 4096), checksum(negated.data(), 4 * 4096));
}

TEST(Checksum, DependsOnTheLengthAndNotOnTheAddress) {
  std::set<uint64_t> sums;
  const std::vector<unsigned char> zeros(300);
  for (size_t size = 0; size <= 300; ++size) sums.insert(checksum(zeros.data(), size));
  EXPECT_EQ(sums.size(), 301u);
  EXPECT_EQ(sums.count(0), 0u);
  const auto bytes = random_bytes(100);
  std::vector<unsigned char> moved(108);
  for (size_t shift = 0; shift < 8; ++shift) {
    std::memcpy(&moved[shift], bytes.data(), 100);
    EXPECT_EQ(checksum(&moved[shift], 100), checksum(bytes.data(), 100));
  }
}

TEST(Checksum, CombiningKeepsTheOrder) {
  EXPECT_NE(combine(combine(0, 3), 4), combine(combine(0, 4), 3));
  EXPECT_NE(combine(0, 3), combine(0, 4));
}

TEST(UnorderedChecksum, IsTheSumOfItsPartsInAnyOrder) {
  for (const int64_t size : {1, 2, 4, 8, 16}) {
    const auto bytes = random_bytes(100 * size);
    const uint64_t whole = unordered_checksum(bytes.data(), 100, size);
    for (const int64_t cut : {0, 1, 37, 100}) {
      const uint64_t end = unordered_checksum(bytes.data() + cut * size, 100 - cut, size);
      EXPECT_EQ(unordered_checksum(bytes.data(), cut, size) + end, whole);
    }
  }
}

TEST(UnorderedChecksum, EveryFlippedBitShows) {
  for (const int64_t size : {1, 2, 4, 8}) {
    auto bytes = random_bytes(24 * size);
    const uint64_t right = unordered_checksum(bytes.data(), 24, size);
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      bytes[bit / 8] ^= 1 << (bit % 8);
      EXPECT_NE(unordered_checksum(bytes.data(), 24, size), right) << "bit " << bit << " of elements of " << size;
      bytes[bit / 8] ^= 1 << (bit % 8);
    }
  }
}

// Two sign bits change: a sum of the elements' bits, or an exclusive or, would be the same.
TEST(UnorderedChecksum, ChangesThatCancelShow) {
  const std::vector<float> values{1.0f, -1.5f, 2.0f, 4.0f}, negated{-1.0f, 1.5f, 2.0f, 4.0f};
  EXPECT_NE(unordered_checksum(values.data(), 4, 4), unordered_checksum(negated.data(), 4, 4));
}

TEST(UnorderedChecksum, DoesNotDependOnOrder) {
  const std::vector<float> values{1.0f, -1.5f, 2.0f, 4.0f}, moved{4.0f, 1.0f, 2.0f, -1.5f};
  EXPECT_EQ(unordered_checksum(values.data(), 4, 4), unordered_checksum(moved.data(), 4, 4));
}

TEST(UnorderedChecksum, IsTheSameOnEveryInstructionSet) {
  const auto bytes = random_bytes(16 * 1003);
  for (const InstructionSet& set : supported_instruction_sets()) {
    for (const int64_t size : {1, 2, 4, 8, 16}) {
      const uint64_t scalar = scalar_unordered_checksum(bytes.data(), 1003, size);
      EXPECT_EQ(set.unordered_checksum(bytes.data(), 1003, size), scalar) << set.name;
    }
  }
}

TEST(UnorderedChecksum, NeedsNoAlignmentAndRefusesOtherSizes) {
  const auto bytes = random_bytes(64);
  std::vector<unsigned char> moved(65);
  std::memcpy(&moved[1], bytes.data(), 64);
  EXPECT_EQ(unordered_checksum(&moved[1], 16, 4), unordered_checksum(bytes.data(), 16, 4));
  EXPECT_THROW(unordered_checksum(bytes.data(), 1, 3), Error);
}

}  // namespace
}  // namespace ringdp::kernels
