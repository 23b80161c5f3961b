#include "transport/tcp/tcp_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/link_suite.h"
#include "transport/tcp/tcp_sockets.h"

namespace ringdp::transport {
namespace {

template <bool kChecked>
class PairOf : public SocketLinks {
 public:
  PairOf() {
    TcpSockets sockets;
    links_[0] = std::make_unique<TcpLink>(std::move(sockets.near), 1, "one", TcpLink::Options{0, kChecked});
    links_[1] = std::make_unique<TcpLink>(std::move(sockets.far), 0, "zero", TcpLink::Options{0, kChecked});
  }
};
using TcpPair = PairOf<true>;

INSTANTIATE_TYPED_TEST_SUITE_P(Tcp, LinkSuite, testing::Types<TcpPair>);
INSTANTIATE_TYPED_TEST_SUITE_P(UncheckedTcp, LinkSuite, testing::Types<PairOf<false>>);

int fd_of(const Link& link) {
  std::vector<pollfd> polls;
  link.add_polls(POLLIN, polls);
  return polls.at(0).fd;
}

void expect_lost(TcpLink& link, bool by_sending) {
  char byte = 0;
  try {
    while (true) {
      if (by_sending) {
        link.try_send(&byte, 1);
      } else if (link.try_recv(&byte, 1) == 0) {
        wait_for(fd_of(link), POLLIN, {Deadline::never(), nullptr});
      }
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_EQ(error.culprit(), 7);
    for (const char* part : {"rank 7", "10.9.8.7:6"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(TcpLink, IsOfKindTcpAndPollable) {
  TcpPair pair;
  EXPECT_STREQ(pair.link(0).kind(), "tcp");
  std::vector<pollfd> polls;
  pair.link(0).add_polls(POLLOUT, polls);
  ASSERT_EQ(polls.size(), 1u);
  EXPECT_GE(polls[0].fd, 0);
  EXPECT_EQ(polls[0].events, POLLOUT);
}

TEST(TcpLink, BytesSentBeforeTheEndStillArrive) {
  TcpSockets sockets;
  TcpLink link(std::move(sockets.near), 7, "10.9.8.7:6", TcpLink::Options{});
  ASSERT_EQ(::send(sockets.far.get(), "last", 4, 0), 4);
  sockets.far.reset();
  std::string got;
  char byte = 0;
  while (got.size() < 4) {
    if (link.try_recv(&byte, 1) == 1) got += byte;
  }
  EXPECT_EQ(got, "last");
  expect_lost(link, false);
}

TEST(TcpLink, AClosedPeerIsLostToTheSender) {
  TcpSockets sockets;
  TcpLink link(std::move(sockets.near), 7, "10.9.8.7:6", TcpLink::Options{});
  sockets.far.reset();
  expect_lost(link, true);
}

TEST(TcpLink, AResetPeerIsLostToTheReceiver) {
  TcpSockets sockets;
  TcpLink link(std::move(sockets.near), 7, "10.9.8.7:6", TcpLink::Options{});
  // Lingering for zero seconds makes close() send a reset, as a killed process with unread bytes does.
  const linger at_once{1, 0};
  ASSERT_EQ(::setsockopt(sockets.far.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  sockets.far.reset();
  expect_lost(link, false);
}

TEST(TcpLink, ABadDescriptorIsNotTheSameAsALostPeer) {
  TcpLink link(UniqueFd(), 7, "10.9.8.7:6", TcpLink::Options{});
  char byte = 0;
  try {
    link.try_send(&byte, 1);
    FAIL() << "-1 is no socket";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  }
}

// What a checked link puts on the wire for each of these messages.
std::vector<std::string> on_the_wire(const std::vector<std::string>& messages) {
  TcpSockets sockets;
  TcpLink link(std::move(sockets.near), 1, "one", TcpLink::Options{0, true});
  std::vector<std::string> records;
  for (const std::string& message : messages) {
    EXPECT_EQ(link.try_send(message.data(), message.size()), message.size());
    std::string record(kRecordHeader + message.size(), '\0');
    for (size_t got = 0; got < record.size();) {
      got += std::max<ssize_t>(0, ::recv(sockets.far.get(), record.data() + got, record.size() - got, 0));
    }
    records.push_back(record);
  }
  return records;
}

// Reads messages of these sizes from a checked link that is given this stream; the error that ended it. What came whole
// before it must be right.
std::string error_after(const std::string& stream, const std::vector<std::string>& messages) {
  TcpSockets sockets;
  TcpLink link(std::move(sockets.near), 7, "10.9.8.7:6", TcpLink::Options{0, true});
  EXPECT_EQ(::send(sockets.far.get(), stream.data(), stream.size(), 0), static_cast<ssize_t>(stream.size()));
  sockets.far.reset();
  try {
    for (const std::string& message : messages) {
      std::string got(message.size(), '\0');
      for (size_t at = 0; at < got.size();) at += link.try_recv(got.data() + at, got.size() - at);
      EXPECT_TRUE(got == message) << "of " << message.size() << " bytes";
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.culprit(), 7);
    return error.what();
  }
  return "";
}

const std::vector<std::string> kMessages = {"five5", "1", std::string(100, 'x'), std::string(9000, 'y')};

std::string joined(const std::vector<std::string>& records) {
  std::string stream;
  for (const std::string& record : records) stream += record;
  return stream;
}

TEST(CheckedTcpLink, EveryBitOnTheWireCounts) {
  const std::string good = joined(on_the_wire(kMessages));
  EXPECT_EQ(error_after(good, kMessages), "");
  for (size_t at = 0; at < good.size(); at += at < 150 ? 1 : 997) {
    for (const int bit : {0, 7}) {
      std::string bad = good;
      bad[at] ^= static_cast<char>(1 << bit);
      EXPECT_NE(error_after(bad, kMessages), "") << "bit " << bit << " of byte " << at;
    }
  }
  std::string bad = good;
  bad[kRecordHeader] ^= 1;
  const std::string said = error_after(bad, kMessages);
  for (const char* part : {"rank 7", "10.9.8.7:6", "of 5 bytes the CRC-32C", "changed on its way"}) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  }
}

TEST(CheckedTcpLink, ARecordThatIsLostRepeatedOrMovedIsNoticed) {
  const std::vector<std::string> same(3, "the same"), good = on_the_wire(same);
  EXPECT_NE(error_after(joined({good[1], good[2]}), same), "");
  EXPECT_NE(error_after(joined({good[0], good[0], good[2]}), same), "");
  EXPECT_NE(error_after(joined({good[0], good[2], good[1]}), same), "");
  EXPECT_NE(error_after(joined({good[0], good[1]}), same), "") << "the end of the stream";
}

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
