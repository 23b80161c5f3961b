#include "transport/tcp/striped_link.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "transport/link_suite.h"
#include "transport/tcp/tcp_link.h"
#include "transport/tcp/tcp_sockets.h"

namespace ringdp::transport {
namespace {

// A link over `kStreams` connections; the test keeps no hold of their sockets.
template <int kStreams>
class StripedPair : public SocketLinks {
 public:
  StripedPair() {
    std::vector<std::unique_ptr<Link>> near, far;
    for (int stream = 0; stream < kStreams; ++stream) {
      TcpSockets sockets;
      near.push_back(std::make_unique<TcpLink>(std::move(sockets.near), 1, "one", TcpLink::Options{0, true}));
      far.push_back(std::make_unique<TcpLink>(std::move(sockets.far), 0, "zero", TcpLink::Options{0, true}));
    }
    links_[0] = std::make_unique<StripedLink>(std::move(near));
    links_[1] = std::make_unique<StripedLink>(std::move(far));
  }
};

using Pairs = testing::Types<StripedPair<1>, StripedPair<2>, StripedPair<3>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Striped, LinkSuite, Pairs);

// Takes everything and remembers how much; gives what it is told to.
class Recording : public Link {
 public:
  explicit Recording(size_t& sent) : sent_(sent) {}
  size_t try_send(const void*, size_t size) override { return sent_ += size, size; }
  size_t try_recv(void*, size_t) override { return 0; }
  void add_polls(short events, std::vector<pollfd>& polls) const override {
    polls.push_back({static_cast<int>(sent_), events, 0});
  }
  const char* kind() const override { return "recording"; }

 private:
  size_t& sent_;
};

TEST(StripedLink, StripesGoRoundTheStreams) {
  size_t sent[3] = {};
  std::vector<std::unique_ptr<Link>> streams;
  for (size_t& count : sent) streams.push_back(std::make_unique<Recording>(count));
  StripedLink link(std::move(streams));
  const std::vector<std::byte> bytes(5 * kStripeBytes);
  size_t total = 0;
  for (const size_t part : {size_t{1}, kStripeBytes - 2, size_t{1}, kStripeBytes + 10, 2 * kStripeBytes - 20}) {
    EXPECT_EQ(link.try_send(bytes.data(), part), part);
    total += part;
    for (size_t stream = 0; stream < 3; ++stream) {
      size_t expected = 0;
      for (size_t k = stream; k * kStripeBytes < total; k += 3) {
        expected += std::min(kStripeBytes, total - k * kStripeBytes);
      }
      EXPECT_EQ(sent[stream], expected) << "stream " << stream << " after " << total;
    }
  }
}

TEST(StripedLink, OnlyTheStreamsWhoseTurnItIsArePolled) {
  size_t sent[2] = {};
  std::vector<std::unique_ptr<Link>> streams;
  for (size_t& count : sent) streams.push_back(std::make_unique<Recording>(count));
  StripedLink link(std::move(streams));
  const std::vector<std::byte> bytes(kStripeBytes);
  link.try_send(bytes.data(), kStripeBytes);
  std::vector<pollfd> polls;
  link.add_polls(POLLIN | POLLOUT, polls);
  ASSERT_EQ(polls.size(), 2u);
  EXPECT_EQ(polls[0].events, POLLIN);
  EXPECT_EQ(polls[0].fd, static_cast<int>(kStripeBytes)) << "the first stream is still to be read";
  EXPECT_EQ(polls[1].events, POLLOUT);
  EXPECT_EQ(polls[1].fd, 0) << "the second one is to be written";
}

// One broken connection of several is a lost peer, on both sides, once its turn comes.
TEST(StripedLink, OneBrokenStreamBreaksTheLink) {
  for (const bool by_sending : {true, false}) {
    std::vector<std::unique_ptr<Link>> streams;
    std::vector<UniqueFd> others;
    for (int stream = 0; stream < 3; ++stream) {
      TcpSockets sockets;
      streams.push_back(std::make_unique<TcpLink>(std::move(sockets.near), 7, "10.9.8.7:6", TcpLink::Options{}));
      others.push_back(std::move(sockets.far));
    }
    StripedLink link(std::move(streams));
    others[1].reset();
    std::vector<std::byte> bytes(kStripeBytes);
    try {
      for (size_t left = kStripeBytes;;) {  // of the first stripe: up to its end the link works
        if (by_sending) {
          left -= std::min(left, link.try_send(bytes.data(), bytes.size()));
          ::recv(others[0].get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        } else {
          left -= std::max<ssize_t>(::send(others[0].get(), bytes.data(), left, MSG_DONTWAIT), 0);
          link.try_recv(bytes.data(), bytes.size());
        }
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
      EXPECT_EQ(error.culprit(), 7);
    }
  }
}

}  // namespace
}  // namespace ringdp::transport
