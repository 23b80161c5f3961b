#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "comm/bootstrap_steps.h"
#include "comm/memory_store.h"
#include "comm/rank_threads.h"
#include "comm/sessions.h"
#include "transport/unix_socket.h"

namespace ringdp::comm {
namespace {

TEST(Session, HelloCarriesTheGroup) {
  MemoryStore store;
  const Settings settings;
  StoreExchange skipped(store, 0, 4, Deadline::never()), store_exchange(store, 0, 4, Deadline::never());
  const Session session = session_of(store_exchange, settings);
  const transport::Hello hello = session.hello(3, 1, transport::Purpose::kControl);
  EXPECT_EQ(hello.from, 3);
  EXPECT_EQ(hello.to, 1);
  EXPECT_EQ(hello.world, 4);
  EXPECT_EQ(hello.generation, 2u);
  EXPECT_EQ(hello.group, session.secret.group);
  EXPECT_EQ(hello.token, session.secret.token);
  EXPECT_EQ(hello.purpose, transport::Purpose::kControl);
}

using transport::Purpose;

bool admit_all(int, int) { return true; }

class HandshakeTest : public testing::Test {
 protected:
  Open to_listener() {
    return [this](const transport::WaitPolicy&) { return transport::connect_unix(listener_.name); };
  }
  UniqueFd accept_one() {
    pollfd entry{listener_.fd.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
    return UniqueFd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  }

  MemoryStore store_;
  Settings settings_;
  transport::UnixListener listener_ = transport::UnixListener::open();
};

TEST_F(HandshakeTest, BothSidesEndWithTheSameSocket) {
  constexpr int kWorld = 4;
  run_ranks(kWorld, [&](int rank) {
    StoreExchange store_exchange(store_, rank, kWorld, Deadline::never());
    const Session session = session_of(store_exchange, settings_);
    const transport::WaitPolicy forever{Deadline::never(), nullptr};
    if (rank > 0) {
      const auto socket = connect_to_peer(session, 0, to_listener(), admit_all);
      const int own = rank;
      EXPECT_TRUE(send_all(socket.get(), &own, sizeof own, forever));
      return;
    }
    std::vector<transport::Hello> expected;
    for (int peer = 1; peer < kWorld; ++peer) expected.push_back(session.hello(peer, 0, Purpose::kControl));
    const auto arrivals = accept_peers(session, listener_.fd.get(), expected, admit_all);
    ASSERT_EQ(arrivals.size(), expected.size());
    for (const auto& arrival : arrivals) {
      int said = -1;
      EXPECT_TRUE(recv_all(arrival.socket.get(), &said, sizeof said, forever));
      EXPECT_EQ(said, arrival.hello.from);
    }
  });
}

TEST_F(HandshakeTest, AnEmptyDescriptorAndAClosedSocketAreTriedAgain) {
  int attempts = 0;
  run_ranks(2, [&](int rank) {
    StoreExchange store_exchange(store_, rank, 2, Deadline::never());
    const Session session = session_of(store_exchange, settings_);
    if (rank == 1) {
      const Open open = [&](const transport::WaitPolicy& patience) {
        return ++attempts == 1 ? UniqueFd() : to_listener()(patience);
      };
      EXPECT_TRUE(connect_to_peer(session, 0, open, admit_all));
      return;
    }
    // Dropped without an answer, as a flooded listener does.
    accept_one().reset();
    accept_peers(session, listener_.fd.get(), {session.hello(1, 0, Purpose::kControl)}, admit_all);
  });
  EXPECT_EQ(attempts, 3);
}

TEST_F(HandshakeTest, AnEchoOfTheHelloIsNoAnswer) {
  StoreExchange zero(store_, 0, 2, Deadline::never());
  const Session host = session_of(zero, settings_);
  std::thread impostor([&] {
    const UniqueFd socket = accept_one();
    transport::HelloFrame frame;
    const transport::WaitPolicy forever{Deadline::never(), nullptr};
    EXPECT_TRUE(recv_all(socket.get(), frame.data(), frame.size(), forever));
    EXPECT_TRUE(send_all(socket.get(), frame.data(), frame.size(), forever));
    accept_peers(host, listener_.fd.get(), {host.hello(1, 0, Purpose::kControl)}, admit_all);
  });
  StoreExchange one(store_, 1, 2, Deadline::never());
  const Session guest = session_of(one, settings_);
  int attempts = 0;
  const Open open = [&](const transport::WaitPolicy& patience) {
    ++attempts;
    return to_listener()(patience);
  };
  EXPECT_TRUE(connect_to_peer(guest, 0, open, admit_all));
  impostor.join();
  EXPECT_EQ(attempts, 2);
}

TEST_F(HandshakeTest, AWrongTokenNeverGetsInAndBothSidesNameTheOther) {
  const auto errors = errors_of_ranks(2, [&](int rank) {
    StoreExchange store_exchange(store_, rank, 2, Deadline::after(std::chrono::milliseconds(300)));
    Session session = session_of(store_exchange, settings_);
    if (rank == 1) {
      session.secret.token[0] ^= std::byte{1};
      connect_to_peer(session, 0, to_listener(), admit_all);
    } else {
      accept_peers(session, listener_.fd.get(), {session.hello(1, 0, Purpose::kControl)}, admit_all);
    }
  });
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(errors[static_cast<size_t>(rank)]) << "rank " << rank << " was content";
    EXPECT_EQ(errors[static_cast<size_t>(rank)]->kind(), ErrorKind::kTimeout);
    EXPECT_EQ(errors[static_cast<size_t>(rank)]->culprit(), 1 - rank);
  }
}

}  // namespace
}  // namespace ringdp::comm
