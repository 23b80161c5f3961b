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

}  // namespace
}  // namespace ringdp::transport
