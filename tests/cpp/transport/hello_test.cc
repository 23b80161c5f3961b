#include "transport/hello.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>
#include <vector>

#include "transport/unix_socket.h"

namespace ringdp::transport {
namespace {

Hello sample_hello() {
  Hello hello{0x0123456789abcdef, 7, 3, 1, 8, Purpose::kBulk, {}, 5};
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
  EXPECT_EQ(copy->purpose, sample_hello().purpose);
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
  for (const uint32_t purpose : {0u, 1u, 2u, 3u, 4u, 0xffffffffu}) {
    Hello hello = sample_hello();
    hello.purpose = static_cast<Purpose>(purpose);
    EXPECT_EQ(round_trip(hello).has_value(), purpose >= 1 && purpose <= 3) << purpose;
  }
}

TEST(Hello, EveryFieldCounts) {
  std::vector<Hello> others(6 + kTokenBytes, sample_hello());
  others[0].group ^= 1;
  others[1].generation += 1;
  others[2].from = 2;
  others[3].to = 0;
  others[4].world = 9;
  others[5].purpose = Purpose::kControl;
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

constexpr int kHangMs = 60'000;  // a guard against hanging, not a time that is tested

Hello hello_from(int rank, Purpose purpose = Purpose::kControl) {
  Hello hello{99, 1, rank, 0, 4, purpose, {}};
  hello.token.fill(std::byte{0x5a});
  return hello;
}

bool admit_all(int, int) { return true; }

// One round that waits for an event; true once all expected hellos have come.
bool serve(Acceptor& acceptor, int wait_ms) {
  std::vector<pollfd> polls;
  acceptor.add_polls(polls);
  if (!polls.empty()) EXPECT_GE(::poll(polls.data(), polls.size(), acceptor.poll_ms(wait_ms)), 0);
  return acceptor.advance();
}

class AcceptorTest : public testing::Test {
 protected:
  UniqueFd dial() {
    UniqueFd socket = connect_unix(listener_.name);
    EXPECT_TRUE(socket);
    return socket;
  }
  UniqueFd dial(const void* bytes, size_t size) {
    UniqueFd socket = dial();
    EXPECT_EQ(::send(socket.get(), bytes, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
    return socket;
  }
  UniqueFd dial(const Hello& hello) {
    const HelloFrame frame = encode(hello);
    return dial(frame.data(), frame.size());
  }
  // What an honest peer reads: a whole hello.
  static std::optional<Hello> read_reply(const UniqueFd& socket) {
    HelloFrame frame;
    if (!recv_all(socket.get(), frame.data(), frame.size(), {Deadline::never(), nullptr})) return std::nullopt;
    return decode(frame.data(), frame.size());
  }
  // True when the other side closed without a single byte in answer.
  static bool is_closed_silently(const UniqueFd& socket) {
    char byte = 0;
    const ssize_t got = ::recv(socket.get(), &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }

  UnixListener listener_ = UnixListener::open();
};

TEST_F(AcceptorTest, NothingExpectedIsDoneAtOnce) {
  Acceptor acceptor(listener_.fd.get(), {}, admit_all);
  EXPECT_TRUE(serve(acceptor, kHangMs));
}

TEST_F(AcceptorTest, ExpectedRanksGetAReplyInTheirName) {
  Acceptor acceptor(listener_.fd.get(), {hello_from(1), hello_from(3), hello_from(3, Purpose::kBulk)}, admit_all);
  EXPECT_EQ(acceptor.missing(), (std::vector<int>{1, 3}));
  const UniqueFd three = dial(hello_from(3)), one = dial(hello_from(1));
  while (acceptor.missing() != std::vector<int>{3}) ASSERT_FALSE(serve(acceptor, kHangMs));
  const UniqueFd bulk = dial(hello_from(3, Purpose::kBulk));
  while (!serve(acceptor, kHangMs)) {
  }
  EXPECT_TRUE(acceptor.missing().empty());
  EXPECT_EQ(acceptor.refused(), 0u);
  const auto reply = read_reply(one);
  ASSERT_TRUE(reply);
  EXPECT_TRUE(matches(*reply, reply_to(hello_from(1))));
  const auto arrivals = acceptor.take_arrivals();
  ASSERT_EQ(arrivals.size(), 3u);
  EXPECT_EQ(arrivals[2].hello.purpose, Purpose::kBulk);
}

TEST_F(AcceptorTest, WrongHellosAreClosedWithoutAWord) {
  std::vector<Hello> wrong(7, hello_from(1));
  wrong[0].token[31] ^= std::byte{1};
  wrong[1].group += 1;
  wrong[2].generation += 1;
  wrong[3].from = 2;
  wrong[4].to = 3;
  wrong[5].world = 5;
  wrong[6].purpose = Purpose::kBulk;
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, admit_all);
  std::vector<UniqueFd> sockets;
  for (const Hello& hello : wrong) sockets.push_back(dial(hello));
  while (acceptor.refused() < wrong.size()) ASSERT_FALSE(serve(acceptor, kHangMs));
  for (const UniqueFd& socket : sockets) EXPECT_TRUE(is_closed_silently(socket));
  const UniqueFd honest = dial(hello_from(1));
  EXPECT_TRUE(serve(acceptor, kHangMs));
}

TEST_F(AcceptorTest, ARankGetsInOnlyOnce) {
  Acceptor acceptor(listener_.fd.get(), {hello_from(1), hello_from(2)}, admit_all);
  const UniqueFd first = dial(hello_from(1)), replay = dial(hello_from(1));
  while (acceptor.refused() == 0) ASSERT_FALSE(serve(acceptor, kHangMs));
  EXPECT_TRUE(is_closed_silently(replay));
  EXPECT_EQ(acceptor.missing(), std::vector<int>{2});
}

TEST_F(AcceptorTest, AdmitHasTheLastWord) {
  int asked = -1;
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, [&](int, int rank) {
    asked = rank;
    return false;
  });
  const UniqueFd socket = dial(hello_from(1));
  while (acceptor.refused() == 0) ASSERT_FALSE(serve(acceptor, kHangMs));
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(is_closed_silently(socket));
}

TEST_F(AcceptorTest, AHelloMayComeByteByByte) {
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, admit_all);
  const HelloFrame frame = encode(hello_from(1));
  const UniqueFd slow = dial();
  for (size_t i = 0; i + 1 < frame.size(); ++i) {
    ASSERT_EQ(::send(slow.get(), &frame[i], 1, MSG_NOSIGNAL), 1);
    ASSERT_FALSE(serve(acceptor, 0));
  }
  ASSERT_EQ(::send(slow.get(), &frame.back(), 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(serve(acceptor, kHangMs));
}

TEST_F(AcceptorTest, BytesBehindTheHelloStayInTheSocket) {
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, admit_all);
  const HelloFrame frame = encode(hello_from(1));
  std::vector<std::byte> bytes(frame.begin(), frame.end());
  bytes.push_back(std::byte{42});
  const UniqueFd eager = dial(bytes.data(), bytes.size());
  ASSERT_TRUE(serve(acceptor, kHangMs));
  const auto arrivals = acceptor.take_arrivals();
  std::byte next{};
  ASSERT_EQ(::recv(arrivals[0].socket.get(), &next, 1, MSG_DONTWAIT), 1);
  EXPECT_EQ(next, std::byte{42});
}

TEST_F(AcceptorTest, HalfOpenConnectionsAreBoundedAndTheOldestGoFirst) {
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, admit_all);
  std::vector<UniqueFd> silent;
  for (size_t i = 0; i < 200; ++i) {
    silent.push_back(dial());
    ASSERT_FALSE(serve(acceptor, 0));
    ASSERT_LE(acceptor.waiting(), Acceptor::kMostStrangers + 1);
  }
  EXPECT_TRUE(is_closed_silently(silent.front()));
  EXPECT_FALSE(is_closed_silently(silent.back()));
  const UniqueFd honest = dial(hello_from(1));
  while (!serve(acceptor, kHangMs)) {
  }
  EXPECT_TRUE(read_reply(honest));
}

TEST_F(AcceptorTest, ASilentConnectionIsDroppedAfterItsSecond) {
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, admit_all);
  const UniqueFd silent = dial();
  while (acceptor.waiting() == 0) ASSERT_FALSE(serve(acceptor, kHangMs));
  while (acceptor.waiting() > 0) ASSERT_FALSE(serve(acceptor, kHangMs));
  EXPECT_EQ(acceptor.refused(), 1u);
  EXPECT_TRUE(is_closed_silently(silent));
}

// It may be served beside others that are not done.
TEST_F(AcceptorTest, WhoeverWaitsIsDroppedWithTheLastArrival) {
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, admit_all);
  const UniqueFd silent = dial();
  while (acceptor.waiting() == 0) ASSERT_FALSE(serve(acceptor, kHangMs));
  const UniqueFd honest = dial(hello_from(1));
  while (!serve(acceptor, kHangMs)) {
  }
  EXPECT_EQ(acceptor.waiting(), 0u);
  EXPECT_EQ(acceptor.refused(), 1u);
  EXPECT_TRUE(is_closed_silently(silent));
  std::vector<pollfd> polls;
  acceptor.add_polls(polls);
  EXPECT_TRUE(polls.empty());
  EXPECT_EQ(acceptor.poll_ms(kHangMs), kHangMs);
}

TEST_F(AcceptorTest, GarbageOfEveryLengthIsRefused) {
  std::mt19937 random(5);
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, admit_all);
  for (size_t length = 1; length < 3 * kHelloBytes; length += 7) {
    std::vector<unsigned char> garbage(length);
    for (auto& byte : garbage) byte = static_cast<unsigned char>(random());
    const size_t before = acceptor.refused();
    UniqueFd socket = dial(garbage.data(), garbage.size());
    socket.reset();
    while (acceptor.refused() == before) ASSERT_FALSE(serve(acceptor, kHangMs));
  }
  EXPECT_EQ(acceptor.waiting(), 0u);
}

}  // namespace
}  // namespace ringdp::transport
