// Arithmetic on sizes, and the check sum of bytes, against their definitions.
#include "base/bytes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/crc32c.h"

namespace ringdp {
namespace {

TEST(Bytes, CeilDivIsTheSmallestSufficientNumberOfParts) {
  for (int64_t a = 0; a < 200; ++a) {
    for (int64_t b = 1; b < 20; ++b) {
      const int64_t parts = ceil_div(a, b);
      EXPECT_TRUE(parts * b >= a && (parts - 1) * b < a) << a << " / " << b << " = " << parts;
    }
  }
}

TEST(Bytes, AlignUpIsTheNextMultiple) {
  for (int64_t n = 0; n < 300; ++n) {
    for (const int64_t to : {1, 2, 64, 100}) {
      const int64_t aligned = align_up(n, to);
      EXPECT_TRUE(aligned % to == 0 && aligned >= n && aligned - n < to) << n << " up to " << to << ": " << aligned;
    }
  }
}

TEST(Bytes, WrapIsTheNonNegativeRemainder) {
  for (int n = 1; n <= 9; ++n) {
    for (int a = -3 * n; a <= 3 * n; ++a) {
      EXPECT_GE(wrap(a, n), 0);
      EXPECT_LT(wrap(a, n), n);
      EXPECT_EQ((a - wrap(a, n)) % n, 0) << a << " mod " << n;
    }
  }
}

TEST(Bytes, BalancedPartsOfWholeUnitsCoverAll) {
  for (int64_t count = 0; count < 100; ++count) {
    for (const int64_t unit : {1, 3, 32}) {
      for (int parts = 1; parts <= 9; ++parts) {
        int64_t end = 0;
        for (int i = 0; i < parts; ++i) {
          const Extent part = balanced_part(count, parts, i, unit);
          EXPECT_EQ(part.begin, end);
          EXPECT_TRUE(part.begin % unit == 0 || part.count() == 0);
          if (unit == 1) {
            EXPECT_EQ(part.count(), balanced_part(count, parts, i).count());
          }
          end = part.end;
        }
        EXPECT_EQ(end, count);
      }
    }
  }
}

TEST(Bytes, CheckedMulGivesTheProductOrRefuses) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const int64_t a : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{1} << 31, int64_t{1} << 32, kMax / 2, kMax}) {
    for (const int64_t b : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{1} << 31, int64_t{1} << 32, kMax}) {
      const __int128 exact = static_cast<__int128>(a) * b;
      if (exact <= kMax) {
        EXPECT_EQ(checked_mul(a, b), static_cast<int64_t>(exact));
      } else {
        EXPECT_THROW(checked_mul(a, b), Error) << a << " x " << b;
      }
    }
  }
}

TEST(Bytes, CheckedMulRefusesNegativeSizesByName) {
  for (const auto& [a, b] : {std::pair(-5, 4), std::pair(4, -5), std::pair(-1, -1)}) {
    try {
      checked_mul(a, b);
      FAIL() << "accepted " << a << " x " << b;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(std::to_string(a) + " x " + std::to_string(b)), std::string::npos);
    }
  }
}

TEST(Bytes, BalancedPartsTileTheRangeLargerOnesFirst) {
  for (int64_t count = 0; count < 60; ++count) {
    for (int parts = 1; parts < 12; ++parts) {
      int64_t end = 0, previous = std::numeric_limits<int64_t>::max();
      for (int i = 0; i < parts; ++i) {
        const Extent part = balanced_part(count, parts, i);
        EXPECT_EQ(part.begin, end);
        EXPECT_LE(part.count(), previous);
        EXPECT_TRUE(part.count() == count / parts || part.count() == ceil_div(count, parts));
        end = part.end, previous = part.count();
      }
      EXPECT_EQ(end, count);
    }
  }
}

// Bit by bit, as the polynomial is defined.
uint32_t reference(uint32_t before, const uint8_t* bytes, size_t size) {
  uint32_t sum = ~before;
  for (size_t i = 0; i < size; ++i) {
    sum ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) ? 0x82f63b78u : 0u);
  }
  return ~sum;
}

// RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
TEST(Crc32c, GivesThePublishedValues) {
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  const std::string descending(ascending.rbegin(), ascending.rend());
  for (const Crc32cMethod& method : crc32c_methods()) {
    const auto sum = [&](const std::string& text) { return method.sum(0, text.data(), text.size()); };
    EXPECT_EQ(sum(std::string(32, '\0')), 0x8a9136aau) << method.name;
    EXPECT_EQ(sum(std::string(32, '\xff')), 0x62a8ab43u) << method.name;
    EXPECT_EQ(sum(ascending), 0x46dd794eu) << method.name;
    EXPECT_EQ(sum(descending), 0x113fdb5cu) << method.name;
    EXPECT_EQ(sum("123456789"), 0xe3069283u) << method.name;
    EXPECT_EQ(sum(""), 0u) << method.name;
  }
}

TEST(Crc32c, IsTheSameByEveryMethodAtEverySizeAndAlignment) {
  std::mt19937 random(20);
  std::vector<uint8_t> bytes(40000);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  for (const size_t size :
       {0, 1, 7, 8, 9, 63, 511, 512, 513, 767, 768, 1023, 1024, 3071, 3072, 3073, 6144, 9999, 30000}) {
    const size_t from = random() % 64;
    const uint32_t expected = reference(0, bytes.data() + from, size);
    for (const Crc32cMethod& method : crc32c_methods()) {
      EXPECT_EQ(method.sum(0, bytes.data() + from, size), expected) << method.name << " " << size;
      const size_t cut = size == 0 ? 0 : random() % size;  // in two parts
      const uint32_t first = method.sum(0, bytes.data() + from, cut);
      EXPECT_EQ(method.sum(first, bytes.data() + from + cut, size - cut), expected) << method.name << " " << size;
    }
    EXPECT_EQ(crc32c(0, bytes.data() + from, size), expected);
  }
}

}  // namespace
}  // namespace ringdp
