#include "transport/hello.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ringdp::transport {
namespace {

Hello sample_hello() {
  Hello hello{0x0123456789abcdef, 7, 3, 1, 8, Channel::kBulk, {}, 5};
  for (size_t i = 0; i < kTokenBytes; ++i) hello.token[i] = static_cast<std::byte>(200 - 3 * i);
  return hello;
}

std::optional<Hello> round_trip(const Hello& hello) {
  const HelloFrame frame = encode(hello);
  return decode(frame.data(), frame.size());
}

TEST(Hello, SurvivesTheWire) {
  const auto copy = round_trip(sample_hello());
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->group, sample_hello().group);
  EXPECT_EQ(copy->generation, sample_hello().generation);
  EXPECT_EQ(copy->from, sample_hello().from);
  EXPECT_EQ(copy->to, sample_hello().to);
  EXPECT_EQ(copy->world, sample_hello().world);
  EXPECT_EQ(copy->channel, sample_hello().channel);
  EXPECT_EQ(copy->token, sample_hello().token);
  EXPECT_EQ(copy->stream, sample_hello().stream);
  EXPECT_TRUE(matches(*copy, sample_hello()));
}

TEST(Hello, EverySingleByteCorruptionIsRefused) {
  const HelloFrame good = encode(sample_hello());
  for (size_t at = 0; at < good.size(); ++at) {
    for (unsigned flip = 1; flip < 256; ++flip) {
      HelloFrame bad = good;
      bad[at] ^= static_cast<std::byte>(flip);
      ASSERT_FALSE(decode(bad.data(), bad.size())) << "byte " << at << " xor " << flip;
    }
  }
}

TEST(Hello, OnlyTheExactSizeIsRead) {
  const HelloFrame good = encode(sample_hello());
  std::vector<std::byte> longer(good.begin(), good.end());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode(longer.data(), longer.size()));
  // Each cut lies in a heap block of its own size, so an address sanitizer sees a read beyond it.
  for (size_t size = 0; size < good.size(); ++size) {
    const std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(decode(cut.data(), cut.size())) << size << " bytes";
  }
}

TEST(Hello, RandomBytesAreRefused) {
  std::mt19937_64 random(20240229);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random() % (2 * kHelloBytes));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    // Half of them start like a real one, to get past the magic.
    const HelloFrame good = encode(sample_hello());
    if (round % 2 == 0 && bytes.size() >= 16) std::copy_n(good.begin(), 16, bytes.begin());
    ASSERT_FALSE(decode(bytes.data(), bytes.size())) << "round " << round;
  }
}

TEST(Hello, ImpossibleRanksAreRefusedEvenWithAGoodChecksum) {
  const auto with = [](int from, int to, int world) {
    Hello hello = sample_hello();
    hello.from = from;
    hello.to = to;
    hello.world = world;
    return hello;
  };
  for (const Hello& bad : {with(-1, 1, 8), with(8, 1, 8), with(3, -1, 8), with(3, 8, 8), with(3, 3, 8), with(0, 1, 0),
                           with(0, 1, -1), with(0, 1, 1)}) {
    EXPECT_FALSE(round_trip(bad)) << bad.from << " " << bad.to << " " << bad.world;
  }
}

TEST(Hello, OnlyTheThreeChannelsAreKnown) {
  for (const uint32_t channel : {0u, 1u, 2u, 3u, 4u, 0xffffffffu}) {
    Hello hello = sample_hello();
    hello.channel = static_cast<Channel>(channel);
    EXPECT_EQ(round_trip(hello).has_value(), channel >= 1 && channel <= 3) << channel;
  }
}

TEST(Hello, EveryFieldCounts) {
  std::vector<Hello> others(6 + kTokenBytes, sample_hello());
  others[0].group ^= 1;
  others[1].generation += 1;
  others[2].from = 2;
  others[3].to = 0;
  others[4].world = 9;
  others[5].channel = Channel::kControl;
  for (size_t i = 0; i < kTokenBytes; ++i) others[6 + i].token[i] ^= std::byte{1};
  others.push_back(sample_hello());
  others.back().stream = 6;
  for (const Hello& other : others) EXPECT_FALSE(matches(other, sample_hello()));
}

TEST(Hello, ReplySwapsTheRanksOnly) {
  const Hello reply = reply_to(sample_hello());
  EXPECT_EQ(reply.from, sample_hello().to);
  EXPECT_EQ(reply.to, sample_hello().from);
  EXPECT_FALSE(matches(reply, sample_hello())) << "an echo must not pass for an answer";
  EXPECT_TRUE(matches(reply_to(reply), sample_hello()));
}

TEST(Hex, RoundTripAndRefusals) {
  std::array<std::byte, 256> all, copy;
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::byte>(i);
  const std::string text = to_hex(all.data(), all.size());
  ASSERT_TRUE(from_hex(text, copy.data(), copy.size()));
  EXPECT_EQ(copy, all);
  EXPECT_FALSE(from_hex(text.substr(2), copy.data(), copy.size()));
  EXPECT_FALSE(from_hex(text + "00", copy.data(), copy.size()));
  EXPECT_FALSE(from_hex("0G", copy.data(), 1));
  EXPECT_FALSE(from_hex("AB", copy.data(), 1));
}

TEST(Random, FillsEveryByteAndDiffers) {
  Token first{}, second{};
  fill_random(first.data(), first.size());
  fill_random(second.data(), second.size());
  EXPECT_NE(first, second);
  // A byte that stays zero over 64 draws would be one that is never written (chance 2^-512 else).
  Token seen{};
  for (int draw = 0; draw < 64; ++draw) {
    fill_random(first.data(), first.size());
    for (size_t i = 0; i < kTokenBytes; ++i) seen[i] |= first[i];
  }
  for (const std::byte byte : seen) EXPECT_NE(byte, std::byte{0});
}

}  // namespace
}  // namespace ringdp::transport
