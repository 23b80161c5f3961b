#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "comm/bootstrap_steps.h"
#include "comm/memory_store.h"
#include "comm/rank_threads.h"
#include "comm/sessions.h"

namespace ringdp::comm {
namespace {

// A world whose odd ranks share a host; the even ones are elsewhere and take no part.
class ShmExchangeTest : public testing::Test {
 protected:
  static constexpr int kWorld = 6;
  const std::vector<int> locals_ = {1, 3, 5};

  ShmExchangeTest() : listeners_(kWorld), bells_(kWorld) {
    settings_.slot_bytes = 4096;
    for (auto& listener : listeners_) {
      listener = transport::UnixListener::open();
      cards_.push_back({transport::local_identity(), listener.name, shared_settings(settings_), settings_.thresholds});
    }
  }

  static size_t at(int rank) { return static_cast<size_t>(rank); }

  ShmExchange exchange(int rank, const Settings& settings) {
    StoreExchange store_exchange(store_, rank, kWorld, Deadline::never());
    const Session session = session_of(store_exchange, settings);
    return exchange_memory(session, locals_, cards_, listeners_[at(rank)], bells_[at(rank)]);
  }

  std::vector<ShmExchange> exchange_all(const std::function<Settings(int)>& settings_of) {
    std::vector<ShmExchange> results(kWorld);
    run_ranks(kWorld, [&](int rank) {
      if (std::count(locals_.begin(), locals_.end(), rank)) results[at(rank)] = exchange(rank, settings_of(rank));
    });
    return results;
  }

  // A connection to rank 1 on which both have sent their hello.
  UniqueFd greet_as_rank_five(const Session& session) {
    UniqueFd socket = transport::connect_unix(listeners_[1].name);
    const transport::HelloFrame hello = encode(session.hello(5, 1, transport::Purpose::kControl));
    transport::HelloFrame reply;
    EXPECT_TRUE(transport::send_all(socket.get(), hello.data(), hello.size(), forever_));
    EXPECT_TRUE(transport::recv_all(socket.get(), reply.data(), reply.size(), forever_));
    return socket;
  }

  const transport::WaitPolicy forever_{Deadline::never(), nullptr};
  MemoryStore store_;
  Settings settings_;
  std::vector<transport::UnixListener> listeners_;
  std::vector<transport::Doorbell> bells_;
  std::vector<PeerInfo> cards_;
};

TEST(SegmentLayout, RoundsUpAndHoldsAllProbes) {
  Settings settings;
  settings.slot_bytes = 4097;
  settings.link_bytes = 5000;
  const transport::SegmentLayout layout = segment_layout(settings, 3, 8192);
  EXPECT_EQ(layout.members, 3);
  EXPECT_EQ(layout.heap_bytes, 8192);
  EXPECT_EQ(layout.slot_bytes, 4160);
  EXPECT_EQ(layout.stream_bytes, 8192);
  settings.link_bytes = 8192;
  EXPECT_EQ(segment_layout(settings, 3, 0).stream_bytes, 8192) << "a power of two stays";
  EXPECT_GE(segment_layout(settings, 1000, 0).slot_bytes, 16 * 1000);
}

TEST_F(ShmExchangeTest, MembersAreInRankOrderAndMemoryIsShared) {
  const auto results = exchange_all([&](int) { return settings_; });
  for (const int rank : locals_) {
    const ShmExchange& mine = results[at(rank)];
    ASSERT_EQ(mine.probe.outcome, transport::Probe::Outcome::kWorked) << mine.probe.failure;
    ASSERT_EQ(mine.members.size(), locals_.size());
    EXPECT_EQ(mine.controls.size(), locals_.size() - 1);
    EXPECT_EQ(mine.controls.count(rank), 0u);
  }
  // A mark that each rank leaves in its own segment is what the others read as that member's.
  const int64_t slot = results[1].layout.slot_offset(1);
  for (size_t member = 0; member < locals_.size(); ++member) {
    std::byte* own = results[at(locals_[member])].members[member].segment.data() + slot;
    std::memset(own, 100 + static_cast<int>(member), 64);
  }
  for (const int rank : locals_) {
    for (size_t member = 0; member < locals_.size(); ++member) {
      EXPECT_EQ(results[at(rank)].members[member].segment.data()[slot], static_cast<std::byte>(100 + member));
    }
  }
}

TEST_F(ShmExchangeTest, TheHeapIsTheLeastThatARankOfTheHostCanReserve) {
  const int64_t heaps[kWorld] = {4096, 3 << 20, 4096, 1 << 20, 4096, 2 << 20};  // the even ranks are elsewhere
  for (int rank = 0; rank < kWorld; ++rank) cards_[at(rank)].heap_bytes = heaps[rank];
  const auto results = exchange_all([&](int) { return settings_; });
  for (const int rank : locals_) {
    ASSERT_EQ(results[at(rank)].probe.outcome, transport::Probe::Outcome::kWorked) << results[at(rank)].probe.failure;
    EXPECT_EQ(results[at(rank)].layout.heap_bytes, 1 << 20);
  }
}

TEST_F(ShmExchangeTest, SlotsAreCleanAfterTheProbe) {
  const auto results = exchange_all([&](int) { return settings_; });
  const transport::SegmentLayout& layout = results[1].layout;
  const std::vector<std::byte> zeros(static_cast<size_t>(layout.slot_bytes));
  for (const auto& member : results[1].members) {
    EXPECT_EQ(std::memcmp(member.segment.data() + layout.slot_offset(0), zeros.data(), zeros.size()), 0);
  }
}

TEST_F(ShmExchangeTest, DoorbellsAreThoseOfTheRanks) {
  const auto results = exchange_all([&](int) { return settings_; });
  for (const int rank : locals_) {
    for (size_t member = 0; member < locals_.size(); ++member) {
      results[at(rank)].members[member].doorbell.ring();
      uint64_t rings = 0;
      ASSERT_EQ(::read(bells_[at(locals_[member])].fd(), &rings, sizeof rings), ssize_t{sizeof rings});
      EXPECT_EQ(rings, 1u);
    }
  }
}

TEST_F(ShmExchangeTest, OneFailedPairFailsTheWholeHostAlike) {
  // Rank 5 expects other sizes, so it refuses the others' memory and they refuse its.
  const auto results = exchange_all([&](int rank) {
    Settings settings = settings_;
    if (rank == 5) settings.slot_bytes *= 2;
    return settings;
  });
  for (const int rank : locals_) {
    EXPECT_EQ(results[at(rank)].probe.outcome, transport::Probe::Outcome::kFailed);
    EXPECT_EQ(results[at(rank)].probe.failure, results[1].probe.failure);
    EXPECT_TRUE(results[at(rank)].members.empty());
    EXPECT_TRUE(results[at(rank)].controls.empty());
  }
  EXPECT_EQ(results[1].probe.failure.substr(0, 7), "rank 1:") << results[1].probe.failure;
}

TEST_F(ShmExchangeTest, ARankWithoutMemoryIsNamedAndNobodyHangs) {
  // A segment of several exabytes cannot be made; the others learn it from rank 3's verdict.
  const auto results = exchange_all([&](int rank) {
    Settings settings = settings_;
    if (rank == 3) settings.slot_bytes = int64_t{1} << 61;
    return settings;
  });
  for (const int rank : locals_) {
    EXPECT_EQ(results[at(rank)].probe.outcome, transport::Probe::Outcome::kFailed);
    EXPECT_NE(results[at(rank)].probe.failure.find("rank 3: cannot make shared memory"), std::string::npos)
        << results[at(rank)].probe.failure;
  }
}

void expect_all_failed(const std::vector<ShmExchange>& results, const std::vector<int>& locals,
                       const std::string& why) {
  for (const int rank : locals) {
    const transport::Probe& probe = results[static_cast<size_t>(rank)].probe;
    EXPECT_EQ(probe.outcome, transport::Probe::Outcome::kFailed);
    EXPECT_NE(probe.failure.find(why), std::string::npos) << probe.failure;
  }
}

TEST_F(ShmExchangeTest, OtherCredentialsThanARankGivesFailTheProbe) {
  for (const int rank : locals_) {
    cards_[at(rank)].identity.uid += 1;
    expect_all_failed(exchange_all([&](int) { return settings_; }), locals_, "credentials");
    cards_[at(rank)].identity.uid -= 1;
  }
}

TEST_F(ShmExchangeTest, APeerThatIsGoneAfterItsHelloIsLost) {
  StoreExchange five(store_, 5, kWorld, Deadline::never());
  const Session session = session_of(five, settings_);
  std::thread peer([&] { greet_as_rank_five(session); });
  StoreExchange one(store_, 1, kWorld, Deadline::after(std::chrono::seconds(60)));
  try {
    exchange_memory(session_of(one, settings_), {1, 5}, cards_, listeners_[1], bells_[1]);
    ADD_FAILURE() << "rank 5 has gone";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_EQ(error.culprit(), 5);
    expect_message(error, {"rank 5 (pid", "closed its socket during the rendezvous"});
  }
  peer.join();
}

// As many files are open as may be when rank 5's memory and doorbell come.
TEST_F(ShmExchangeTest, DescriptorsForWhichThereIsNoRoomFailTheProbe) {
  StoreExchange five(store_, 5, kWorld, Deadline::never());
  const Session session = session_of(five, settings_);
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  std::thread peer([&] {
    const UniqueFd socket = greet_as_rank_five(session);
    char mark = 0;
    EXPECT_TRUE(transport::recv_all(socket.get(), &mark, 1, forever_));  // rank 1 has all that it opens itself
    const int lowest_free = UniqueFd(::dup(socket.get())).get();
    const rlimit none{static_cast<rlim_t>(lowest_free), usual.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    EXPECT_TRUE(
        transport::send_fds(socket.get(), static_cast<std::byte>(mark), {bells_[3].fd(), bells_[5].fd()}, forever_));
    char probe[17] = {'N'};
    EXPECT_TRUE(transport::recv_all(socket.get(), probe, sizeof probe, forever_));
    EXPECT_EQ(probe[0], 'N') << "nothing was mapped";
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
    EXPECT_TRUE(transport::send_all(socket.get(), probe, sizeof probe, forever_));
    five.publish("verdict", "ok");
  });
  StoreExchange one(store_, 1, kWorld, Deadline::after(std::chrono::seconds(60)));
  const ShmExchange mine = exchange_memory(session_of(one, settings_), {1, 5}, cards_, listeners_[1], bells_[1]);
  peer.join();
  EXPECT_EQ(mine.probe.outcome, transport::Probe::Outcome::kFailed);
  EXPECT_EQ(mine.probe.failure,
            "rank 1: no room for the descriptors of rank 5: raise the limit on open files (ulimit -n)");
}

// As on another machine that was restored from the same image.
TEST_F(ShmExchangeTest, ASocketThatNobodyListensOnFailsTheProbe) {
  cards_[1].socket_name = transport::UnixListener::open().name;
  expect_all_failed(exchange_all([&](int) { return settings_; }), locals_, "nobody listens on rank 1's unix socket");
}

// Hosts of different size, and ranks that are alone on theirs, must cut a tensor alike.
TEST(ShmExchange, WhatPlansMayUseOfASlotDoesNotDependOnTheHost) {
  for (const int64_t slot_bytes : {4096, 4097, 1'000'001, 1 << 20}) {
    Settings settings;
    settings.slot_bytes = slot_bytes;
    EXPECT_EQ(planned_slot_bytes(settings) % 64, 0);
    EXPECT_GE(planned_slot_bytes(settings), slot_bytes);
    for (const int members : {1, 2, 3, 255, 257, 1000}) {
      EXPECT_GE(segment_layout(settings, members, 0).slot_bytes, planned_slot_bytes(settings)) << members;
    }
  }
}

}  // namespace
}  // namespace ringdp::comm
