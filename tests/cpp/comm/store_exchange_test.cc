#include "comm/store_exchange.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/memory_store.h"
#include "comm/rank_threads.h"
#include "transport/thrown.h"

namespace ringdp::comm {
namespace {

Deadline in_ms(int ms) { return Deadline::after(std::chrono::milliseconds(ms)); }

std::vector<int> nobody() { return {}; }
std::vector<int> rank_zero() { return {0}; }

TEST(ReportSchedule, AfterFiveSecondsThenEveryTen) {
  const auto start = Deadline::Clock::now();
  ReportSchedule schedule(start);
  std::vector<int> reported;
  for (int second = 0; second <= 40; ++second) {
    if (schedule.due(start + std::chrono::seconds(second))) reported.push_back(second);
    EXPECT_FALSE(schedule.due(start + std::chrono::seconds(second))) << "twice at " << second << " s";
  }
  EXPECT_EQ(reported, (std::vector<int>{5, 15, 25, 35}));
}

TEST(NameRanks, ReadsLikeASentence) {
  EXPECT_EQ(name_ranks({3}), "rank 3");
  EXPECT_EQ(name_ranks({3, 4}), "ranks 3 and 4");
  EXPECT_EQ(name_ranks({3, 4, 7}), "ranks 3, 4 and 7");
}

TEST(StoreExchange, GenerationsCountPerStoreAndSeparateKeys) {
  MemoryStore store, other;
  const StoreExchange first(store, 1, 2, Deadline::never()), second(store, 1, 2, Deadline::never());
  const StoreExchange elsewhere(other, 1, 2, Deadline::never());
  EXPECT_EQ(first.generation(), 1u);
  EXPECT_EQ(second.generation(), 2u);
  EXPECT_EQ(elsewhere.generation(), 1u);
  EXPECT_EQ(second.key("peer_info", 0), "2/peer_info/0");
}

TEST(StoreExchange, GathersInTheOrderAsked) {
  MemoryStore store;
  run_ranks(4, [&](int rank) {
    StoreExchange store_exchange(store, rank, 4, Deadline::never());
    store_exchange.publish("peer_info", "of " + std::to_string(rank));
    EXPECT_EQ(store_exchange.gather("peer_info", {2, 0, 3}), (std::vector<std::string>{"of 2", "of 0", "of 3"}));
  });
}

// A store that is so far away that no answer comes within any time that one might wait for it at first.
class DistantStore : public MemoryStore {
 public:
  bool has(const std::vector<std::string>& keys) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return MemoryStore::has(keys);
  }
};

TEST(StoreExchange, TheStoreMayBeFarAway) {
  DistantStore store;
  run_ranks(2, [&](int rank) {
    StoreExchange store_exchange(store, rank, 2, Deadline::after(std::chrono::seconds(30)));
    for (const char* what : {"peer_info", "verdict"}) {
      store_exchange.publish(what, what);
      EXPECT_EQ(store_exchange.gather(what, {0, 1}), (std::vector<std::string>{what, what}));
    }
  });
}

// Of which the first request is slow, as a store may be that is just starting.
class RemoteStore : public DistantStore {
 public:
  int64_t add(const std::string& key, int64_t amount) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return MemoryStore::add(key, amount);
  }
};

TEST(StoreExchange, KnowsItsFastestRoundTrip) {
  using std::chrono::milliseconds;
  RemoteStore store;
  StoreExchange store_exchange(store, 0, 1, Deadline::never());
  EXPECT_GE(store_exchange.round_trip(), milliseconds(400));
  store_exchange.publish("verdict", "fine");
  const auto begun = Deadline::Clock::now();
  store_exchange.gather("verdict", {0});
  EXPECT_GE(store_exchange.round_trip(), milliseconds(40));
  EXPECT_LE(store_exchange.round_trip(), Deadline::Clock::now() - begun);
}

TEST(StoreExchange, TheDeadlineNamesWhoIsMissing) {
  MemoryStore store;
  StoreExchange one(store, 1, 4, in_ms(20)), zero(store, 0, 4, in_ms(20));
  one.publish("peer_info", "here");
  const Error error = transport::thrown([&] { zero.gather("peer_info", {1, 2, 3}); });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_EQ(error.culprit(), 2);
  expect_message(error, {"rank 0/4", "for ranks 2 and 3 to publish peer_info", "generation 1"});
}

TEST(StoreExchange, OfManyMissingRanksAFewAreDescribed) {
  MemoryStore store;
  StoreExchange zero(store, 0, 9, in_ms(0));
  const Error error = transport::thrown([&] {
    zero.check_progress("come", [] { return std::vector<int>{2, 3, 4, 5, 6}; });
  });
  expect_message(error, {"ranks 2, 3, 4, 5 and 6", "rank 5 has not been heard of; and so on"});
  EXPECT_EQ(std::string(error.what()).find("rank 6 has not"), std::string::npos) << error.what();
}

// A store whose server is gone.
class LostStore : public MemoryStore {
 public:
  bool has(const std::vector<std::string>& keys) override {
    if (is_lost) throw Error(ErrorKind::kInternal, "the store is gone");
    return MemoryStore::has(keys);
  }
  bool is_lost = false;
};

TEST(StoreExchange, WithoutTheStoreAnErrorIsToldAsFarAsItIsKnown) {
  LostStore store;
  StoreExchange zero(store, 0, 3, Deadline::never());
  store.is_lost = true;
  const Error error(ErrorKind::kPeerLost, "rank 1 is gone", 1);
  zero.give_up(error);
  const Error named = zero.with_names(error);
  EXPECT_STREQ(named.what(), error.what());
  EXPECT_EQ(named.culprit(), 1);
}

// Its last answer is that nobody has failed.
class LastAnswer : public LostStore {
 public:
  bool has(const std::vector<std::string>& keys) override {
    const bool found = LostStore::has(keys);
    is_lost = true;
    return found;
  }
};

TEST(StoreExchange, WithoutTheStoreTheDeadlineStillNamesWhoIsMissing) {
  LastAnswer store;
  StoreExchange zero(store, 0, 2, in_ms(0));
  const Error error = transport::thrown([&] { zero.check_progress("come", [] { return std::vector<int>{1}; }); });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_EQ(error.culprit(), 1);
  expect_message(error, {"for rank 1 to come (generation 1)"});
}

TEST(StoreExchange, ARankThatOthersLostDoesNotBlameItself) {
  MemoryStore store;
  StoreExchange zero(store, 0, 3, Deadline::never()), one(store, 1, 3, Deadline::never());
  one.give_up(Error(ErrorKind::kPeerLost, "rank 0 died", 0));
  const Error error = transport::thrown([&] { zero.check_progress("come", [] { return std::vector<int>{2}; }); });
  EXPECT_EQ(error.kind(), ErrorKind::kAborted);
  EXPECT_EQ(error.culprit(), 1);
  expect_message(error, {"given up by rank 1", "rank 0 died"});
}

TEST(StoreExchange, AProcessThatHasEndedIsNoSecondOne) {
  MemoryStore store;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  PeerInfo before = {transport::local_identity(), "", "", {}}, now = before;
  before.identity.pid = child;
  StoreExchange(store, 0, 1, Deadline::never()).publish_info(before);
  StoreExchange restarted(store, 0, 1, Deadline::never());
  restarted.publish_info(now);
  EXPECT_FALSE(store.has({"1/duplicate"}));
  now.identity.pid = ::getppid();  // runs, as this process does
  StoreExchange(store, 0, 1, Deadline::never()).publish_info(now);
  EXPECT_TRUE(store.has({"2/duplicate"}));
}

TEST(StoreExchange, LookingAroundIsSilentWhileThereIsTime) {
  MemoryStore store;
  StoreExchange store_exchange(store, 0, 2, Deadline::never());
  EXPECT_NO_THROW(store_exchange.check_progress("come", rank_zero));
}

TEST(StoreExchange, AFailureDoesNotStopARankThatMissesNobody) {
  MemoryStore store;
  StoreExchange zero(store, 0, 2, Deadline::never()), one(store, 1, 2, Deadline::never());
  one.give_up(Error(ErrorKind::kMismatch, "settings differ"));
  EXPECT_NO_THROW(zero.check_progress("come", nobody));
  EXPECT_THROW(zero.check_progress("come", rank_zero), Error);
}

TEST(StoreExchange, AFailedRankEndsTheWaitOfTheOthers) {
  MemoryStore store;
  StoreExchange zero(store, 0, 3, Deadline::never()), two(store, 2, 3, Deadline::never());
  two.give_up(Error(ErrorKind::kInvalidArgument, "no interface eth7"));
  const Error error = transport::thrown([&] { zero.gather("peer_info", {1, 2}); });
  EXPECT_EQ(error.kind(), ErrorKind::kAborted);
  EXPECT_EQ(error.culprit(), 2);
  expect_message(error, {"rank 2", "no interface eth7"});
}

TEST(StoreExchange, TheFirstFailureIsTheOneToldAbout) {
  MemoryStore store;
  StoreExchange zero(store, 0, 3, Deadline::never()), one(store, 1, 3, Deadline::never());
  one.give_up(Error(ErrorKind::kInternal, "the cause"));
  zero.give_up(Error(ErrorKind::kAborted, "a consequence"));
  StoreExchange two(store, 2, 3, Deadline::never());
  const Error error = transport::thrown([&] { two.check_progress("come", rank_zero); });
  EXPECT_EQ(error.culprit(), 1);
  expect_message(error, {"the cause"});
}

Losses lost(int member, const transport::HostIdentity& process) {
  return [=] { return std::vector<Loss>{{member, process, kDied}}; };
}

TEST(StoreExchange, ALostRankEndsTheWaitOfAll) {
  MemoryStore store;
  const auto errors = errors_of_ranks(2, [&](int rank) {
    StoreExchange store_exchange(store, rank, 3, Deadline::never());
    if (rank == 0) store_exchange.set_losses(lost(2, transport::local_identity()));
    try {
      store_exchange.gather("peer_info", {2});
    } catch (const Error& error) {
      store_exchange.give_up(error);
      throw;
    }
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kPeerLost);
    EXPECT_EQ(error->culprit(), 2);
    expect_message(*error, {"rank 2 (pid " + std::to_string(::getpid()), kDied});
  }
}

TEST(StoreExchange, OthersThatAreLostAreNamedBesideTheOneWaitedFor) {
  MemoryStore store;
  StoreExchange store_exchange(store, 2, 3, Deadline::never());
  const auto self = transport::local_identity();
  const std::vector<Loss> losses{{1, self, "left"}, {/*of another group*/ 3, self, kDied}, {0, self, kDied}};
  store_exchange.set_losses([&] { return losses; });
  const Error error = transport::thrown([&] { store_exchange.check_progress("come", rank_zero); });
  EXPECT_EQ(error.culprit(), 0);
  expect_message(error, {"rank 0 (pid", kDied, "; rank 1 (pid", "left"});
  EXPECT_EQ(std::string(error.what()).find("rank 3"), std::string::npos);
}

TEST(StoreExchange, ALossOfARankThatIsNotWaitedForIsNone) {
  MemoryStore store;
  StoreExchange store_exchange(store, 0, 3, Deadline::never());
  store_exchange.set_losses(lost(2, transport::local_identity()));
  EXPECT_NO_THROW(store_exchange.check_progress("come", rank_zero));
  EXPECT_NO_THROW(store_exchange.check_progress("come", nobody));
}

TEST(StoreExchange, AProcessInALostOnesPlaceIsWaitedFor) {
  MemoryStore store;
  StoreExchange one(store, 1, 2, Deadline::never()), zero(store, 0, 2, Deadline::never());
  PeerInfo info;
  info.identity = transport::local_identity();
  auto before = info.identity;
  before.pid += 1;
  zero.publish_info(info);
  one.set_losses(lost(0, before));
  EXPECT_NO_THROW(one.check_progress("come", rank_zero));
  one.set_losses(lost(0, info.identity));
  EXPECT_THROW(one.check_progress("come", rank_zero), Error);
}

TEST(StoreExchange, AFailureOfAnEarlierGenerationIsForgotten) {
  MemoryStore store;
  StoreExchange first(store, 0, 2, Deadline::never());
  first.give_up(Error(ErrorKind::kInternal, "old"));
  StoreExchange second(store, 0, 2, Deadline::never());
  EXPECT_NO_THROW(second.check_progress("come", rank_zero));
}

TEST(StoreExchange, PatienceLooksAroundWithItsOwnWords) {
  MemoryStore store;
  StoreExchange store_exchange(store, 0, 2, in_ms(0));
  const transport::WaitPolicy patience = store_exchange.wait_policy("dance", [] { return std::vector<int>{1}; });
  const Error error = transport::thrown([&] { patience.on_idle(); });
  expect_message(error, {"for rank 1 to dance"});
}

}  // namespace
}  // namespace ringdp::comm
