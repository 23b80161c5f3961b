#include "transport/tcp/striped_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "long_tests.h"
#include "transport/link_suite.h"
#include "transport/tcp/fake_stream.h"
#include "transport/tcp/tcp_link.h"
#include "transport/tcp/tcp_sockets.h"

namespace ringdp::transport {
namespace {

constexpr size_t kHeader = sizeof(StripeHeader);
constexpr std::chrono::hours kForEver{1000};

std::unique_ptr<StripedLink> striped(std::vector<std::unique_ptr<Link>> streams, int peer) {
  return std::make_unique<StripedLink>(std::move(streams), StripedLink::Options{peer});
}

// A link over `kStreams` connections; the test keeps no hold of their sockets.
template <int kStreams>
class StripedPair : public SocketLinks {
 public:
  StripedPair() {
    std::vector<std::unique_ptr<Link>> near, far;
    for (int stream = 0; stream < kStreams; ++stream) {
      TcpSockets sockets;
      const TcpLink::Options options{0, true, -1, stream % 2 == 0 ? kMostUnsent : 0};
      near.push_back(std::make_unique<TcpLink>(std::move(sockets.near), 1, "one", options));
      far.push_back(std::make_unique<TcpLink>(std::move(sockets.far), 0, "zero", options));
    }
    links_[0] = striped(std::move(near), 1);
    links_[1] = striped(std::move(far), 0);
  }
};

using Pairs = testing::Types<StripedPair<1>, StripedPair<2>, StripedPair<3>, StripedPair<8>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Striped, LinkSuite, Pairs);

std::string some_bytes(size_t size, uint64_t position = 0) {
  std::string bytes(size, '\0');
  ByteSequence::of(0).write(position, reinterpret_cast<std::byte*>(bytes.data()), size);
  return bytes;
}

// What reading ends with.
std::optional<Error> error_of_reading(FakeStreams& streams, size_t size = 1) {
  try {
    streams.receive(size);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

std::optional<Error> error_of_sending(FakeStreams& streams) {
  try {
    streams.send("x");
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// Messages of all sizes, in both directions of one process: streams take, keep back and deliver as they like.
TEST(StripedLink, WhateverStreamsTakeBytesArriveInOrder) {
  for (unsigned seed = 0; seed < (once_will_do() ? 8u : 24u); ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](size_t most) { return random() % most; };
    FakeStreams streams(1 + seed % 8, {7, kForEver, 0xFFFFFFF0u + static_cast<uint32_t>(below(16))});
    for (Wire& wire : streams.wires) {
      wire.some = [&](size_t n) { return below(4) == 0 ? 0 : below(3) == 0 ? below(n + 1) : n; };
    }
    const auto size_of_message = [&] { return 1 + below(below(2) == 0 ? 200 : 6 * kStripeBytes); };
    uint64_t sent = 0, received = 0;
    std::string message = some_bytes(size_of_message());
    for (int round = 0; round < 300 || received < sent; ++round) {
      for (Wire& wire : streams.wires) wire.set_writable(below(2) == 0);
      if (round < 300 && message.empty()) message = some_bytes(size_of_message(), sent);
      const size_t n = streams.send(message);
      ASSERT_LE(n, message.size());
      message.erase(0, n);
      sent += n;
      const std::string got = streams.receive(1 + below(2 * kStripeBytes));
      ASSERT_EQ(got, some_bytes(got.size(), received)) << "seed " << seed << ", byte " << received;
      received += got.size();
      ASSERT_LE(received, sent) << "what is not said to be sent may be offered in another way";
    }
    EXPECT_GT(received, 0u);
  }
}

TEST(StripedLink, AStreamWithoutRoomHoldsUpNoOther) {
  FakeStreams streams(3);
  streams.wires[1].set_writable(false);
  const std::string bytes = some_bytes(40 * kStripeBytes);
  EXPECT_EQ(streams.send(bytes), bytes.size());
  EXPECT_TRUE(streams.wires[1].offered.empty());
  EXPECT_EQ(streams.receive(bytes.size()), bytes);
}

// It delivers nothing for a time: the others fill up, and once it goes on everything arrives.
TEST(StripedLink, AStreamThatDeliversLateHoldsUpNoOther) {
  FakeStreams streams(3);
  streams.wires[1].seen = 0;
  const std::string bytes = some_bytes(2 * kStripeBytes);
  ASSERT_EQ(streams.send(bytes), bytes.size());
  streams.wires[1].set_writable(false);
  const std::string more = some_bytes(20 * kStripeBytes, bytes.size());
  EXPECT_EQ(streams.send(more), more.size()) << "the other two have room";
  EXPECT_EQ(streams.receive(bytes.size() + more.size()), bytes.substr(0, kStripeBytes));
  streams.wires[1].seen = 1 << 30;
  EXPECT_EQ(streams.receive(bytes.size() + more.size()), (bytes + more).substr(kStripeBytes));
}

// A stream that has taken a part of a stripe keeps the rest; only the link's count waits for it.
TEST(StripedLink, AStripeStaysOnItsStream) {
  FakeStreams streams(2);
  streams.wires[0].room = kHeader + 10'000;
  const std::string bytes = some_bytes(3 * kStripeBytes);
  ASSERT_EQ(streams.send(bytes), 10'000u);
  EXPECT_EQ(streams.wires[1].bytes.size(), 2 * (kHeader + kStripeBytes)) << "the others go on";
  const std::string rest = bytes.substr(10'000);
  EXPECT_EQ(streams.send(rest), 0u);
  streams.wires[0].room = 1 << 30;
  EXPECT_EQ(streams.send(rest), rest.size());
  EXPECT_EQ(streams.receive(bytes.size()), bytes);
}

TEST(StripedLink, WhatIsOfferedAgainInSmallerPartsIsSentOnce) {
  FakeStreams streams(2);
  streams.wires[0].room = 0;
  const std::string bytes = some_bytes(2 * kStripeBytes);
  ASSERT_EQ(streams.send(bytes), 0u);
  streams.wires[0].room = 1 << 30;
  size_t sent = 0;
  while (sent < bytes.size()) sent += streams.send(bytes.substr(sent, 1000));
  EXPECT_EQ(streams.receive(3 * kStripeBytes), bytes);
}

// One write each, and all on one stream: with others idle, that is how one connection would send them.
TEST(StripedLink, SmallMessagesStayOnOneStream) {
  FakeStreams streams(4);
  std::string all;
  for (size_t i = 0; i < 1000; ++i) {
    const std::string message = some_bytes(1 + i % 4096, all.size());
    ASSERT_EQ(streams.send(message), message.size());
    all += message;
    if (i == 9) {
      EXPECT_EQ(streams.wires[0].offered.size(), 10u);
      EXPECT_EQ(streams.wires[0].bytes.size(), all.size() + 10 * kHeader);
    }
  }
  EXPECT_EQ(streams.receive(all.size() + 1), all);
  EXPECT_EQ(streams.wires[0].offered.size(), 1000u);
  ASSERT_EQ(streams.send(some_bytes(kStripeBytes)), kStripeBytes);
  EXPECT_EQ(streams.wires[1].offered.size(), 0u);
  ASSERT_EQ(streams.send("next"), 4u);
  EXPECT_EQ(streams.wires[1].offered.size(), 1u) << "not behind the large one";
}

TEST(StripedLink, AfterTheLargestNumberComesZero) {
  FakeStreams streams(2, {7, kForEver, 0xFFFFFFFEu});
  const std::string bytes = some_bytes(6 * kStripeBytes);
  ASSERT_EQ(streams.send(bytes), bytes.size());
  for (const uint32_t number : {0u, 1u, 2u, 3u, 4u, 5u}) {
    StripeHeader header;
    std::memcpy(&header, streams.wires[number % 2].bytes.data() + number / 2 * (kHeader + kStripeBytes), kHeader);
    EXPECT_EQ(header.number, 0xFFFFFFFEu + number);
    EXPECT_EQ(header.bytes, kStripeBytes);
  }
  EXPECT_EQ(streams.receive(bytes.size()), bytes);
}

TEST(StripedLink, WhatNoPeerWritesIsRefused) {
  const StripeHeader good = make_stripe_header(2, 0);
  StripeHeader damaged = good;
  damaged.number = 1;
  const std::vector<std::pair<std::string, std::function<void(FakeStreams&)>>> cases = {
      {"damaged", [&](FakeStreams& streams) { streams.put(1, damaged, "ab"); }},
      {"0 bytes", [&](FakeStreams& streams) { streams.put(1, 0, ""); }},
      {"bytes", [&](FakeStreams& streams) { streams.put(1, make_stripe_header(kStripeBytes + 1, 0), "ab"); }},
      {"come again", [&](FakeStreams& streams) { streams.put(1, 0xFFFFFFFFu, "ab"); }},
      {"come twice", [&](FakeStreams& streams) { streams.put(0, 3, "ab"), streams.put(1, 3, "ab"); }},
      {"stripe 0 is missing",
       [&](FakeStreams& streams) { streams.put(0, 1, "ab"), streams.put(1, 2, "ab"), streams.put(2, 3, "ab"); }},
  };
  for (const auto& [part, put] : cases) {
    FakeStreams streams(3, {7, kForEver});
    put(streams);
    const auto error = error_of_reading(streams);
    ASSERT_TRUE(error) << part;
    EXPECT_EQ(error->kind(), ErrorKind::kInternal);
    EXPECT_EQ(error->culprit(), 7);
    for (const std::string& word : {part, std::string("rank 7")}) {
      EXPECT_NE(std::string(error->what()).find(word), std::string::npos) << error->what();
    }
  }
}

void expect_loss(const std::optional<Error>& error) {
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(error->culprit(), 7);
}

TEST(StripedLink, WhatLiesBeforeALossIsRead) {
  FakeStreams streams(3, {7, kForEver});
  const std::string bytes = some_bytes(3 * kStripeBytes);
  ASSERT_EQ(streams.send(bytes), bytes.size());
  streams.wires[1].bytes.resize(kHeader + 100);
  streams.wires[1].is_closed = true;
  EXPECT_EQ(streams.receive(bytes.size()), bytes.substr(0, kStripeBytes + 100));
  expect_loss(error_of_reading(streams));
  expect_loss(error_of_reading(streams));
}

// A peer that leaves closes all its streams, and its last bytes can be late on some.
TEST(StripedLink, WhatIsLateOnAnotherStreamIsWaitedFor) {
  FakeStreams streams(2, {7, kForEver});
  const std::string bytes = some_bytes(100);
  ASSERT_EQ(streams.send(bytes), bytes.size());
  streams.wires[0].seen = 0;
  streams.wires[1].is_closed = true;
  EXPECT_EQ(streams.receive(100), "");
  EXPECT_EQ(streams.receive(100), "");
  streams.wires[0].seen = 1000;
  streams.wires[0].is_closed = true;
  EXPECT_EQ(streams.receive(1000), bytes);
  expect_loss(error_of_reading(streams));
}

TEST(StripedLink, SilenceAfterALossIsNotWaitedForLong) {
  FakeStreams streams(3, {7, std::chrono::milliseconds(0)});
  EXPECT_EQ(streams.receive(1), "");
  streams.wires[2].is_closed = true;
  expect_loss(error_of_reading(streams));
}

// The next stripe can come on no other stream.
TEST(StripedLink, ALossThatIsCertainIsToldAtOnce) {
  FakeStreams streams(3, {7, kForEver});
  streams.put(0, 1, "later");
  streams.put(2, 2, "later still");
  EXPECT_EQ(streams.receive(1), "");
  streams.wires[1].is_closed = true;
  expect_loss(error_of_reading(streams));
}

TEST(StripedLink, NothingIsSentOnceAStreamIsLost) {
  FakeStreams streams(2, {7, kForEver});
  streams.back[1].is_closed = true;
  char byte = 0;
  EXPECT_EQ(streams.send("x"), 1u) << "nobody has noticed";
  EXPECT_EQ(streams.there->try_recv(&byte, 1), 0u);
  expect_loss(error_of_sending(streams));
  FakeStreams broken(2, {7, kForEver});
  broken.wires[0].is_closed = true;
  expect_loss(error_of_sending(broken));
  expect_loss(error_of_sending(broken));
}

std::vector<int> polled(const StripedLink& link, short events) {
  std::vector<pollfd> polls;
  link.add_polls(events, polls);
  std::vector<int> fds;
  for (const pollfd& entry : polls) {
    EXPECT_EQ(entry.events, events);
    fds.push_back(entry.fd);
  }
  return fds;
}

std::vector<int> fds_of(const FakeStreams& streams, const std::vector<size_t>& wires) {
  std::vector<int> fds;
  for (const size_t wire : wires) fds.push_back(streams.wires[wire].fd.get());
  return fds;
}

TEST(StripedLink, StreamsThatCanBringTheNextStripeArePolled) {
  FakeStreams streams(4, {7, kForEver});
  EXPECT_EQ(polled(*streams.here, POLLIN), fds_of(streams, {0, 1, 2, 3}));
  streams.put(1, 1, "later");
  streams.wires[2].is_closed = true;
  EXPECT_EQ(streams.receive(1), "");
  EXPECT_EQ(polled(*streams.here, POLLIN), fds_of(streams, {0, 3})) << "one has a later stripe, one is lost";
  streams.put(3, 0, "now");
  EXPECT_EQ(streams.receive(1), "n");
  EXPECT_EQ(polled(*streams.here, POLLIN), fds_of(streams, {3}));
  EXPECT_EQ(streams.receive(7), "owlater");
}

TEST(StripedLink, StreamsThatCanTakeBytesArePolled) {
  FakeStreams streams(3);
  EXPECT_EQ(polled(*streams.there, POLLOUT), fds_of(streams, {0, 1, 2}));
  streams.wires[0].room = 100;
  streams.send(some_bytes(2 * kStripeBytes));
  EXPECT_EQ(polled(*streams.there, POLLOUT), fds_of(streams, {0})) << "nothing is left for the others";
  for (Wire& wire : streams.wires) wire.set_writable(false);
  streams.send(some_bytes(8 * kStripeBytes));
  EXPECT_EQ(polled(*streams.there, POLLOUT), fds_of(streams, {0, 1, 2}));
}

// One connection of several that ends is a lost peer on both sides, and so are all.
TEST(StripedLink, ConnectionsThatEndAreALostPeer) {
  for (const size_t first : {0, 1}) {
    for (const bool by_sending : {true, false}) {
      std::vector<std::unique_ptr<Link>> streams;
      std::vector<UniqueFd> others;
      for (int stream = 0; stream < 3; ++stream) {
        TcpSockets sockets;
        streams.push_back(std::make_unique<TcpLink>(std::move(sockets.near), 7, "10.9.8.7:6", TcpLink::Options{}));
        others.push_back(std::move(sockets.far));
      }
      StripedLink link(std::move(streams), {7, std::chrono::milliseconds(1)});
      for (size_t i = first; i < (first == 0 ? 3 : 2); ++i) others[i].reset();
      std::vector<std::byte> bytes(kStripeBytes);
      try {
        while (true) by_sending ? link.try_send(bytes.data(), bytes.size()) : link.try_recv(bytes.data(), bytes.size());
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
        EXPECT_EQ(error.culprit(), 7);
        EXPECT_NE(std::string(error.what()).find("10.9.8.7:6"), std::string::npos) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace ringdp::transport
