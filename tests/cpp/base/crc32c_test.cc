#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace ringdp {
namespace {

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
