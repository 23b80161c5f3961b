// What a recorder keeps: groups, events of several threads, counters and delays.
#include "trace/recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "forks.h"
#include "trace/counters.h"
#include "trace/events.h"

namespace ringdp::trace {
namespace {

TEST(Recorder, GroupsAreNumberedInOrder) {
  Recorder recorder(8);
  EXPECT_EQ(recorder.open({"0", 1, {0, 1}}), 0);
  EXPECT_EQ(recorder.open({"tp", 0, {1, 3}}), 1);
  const auto groups = recorder.groups();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups.at(1).name, "tp");
  EXPECT_EQ(groups.at(1).members, (std::vector<int>{1, 3}));
  EXPECT_EQ(recorder.rank(), 1);
}

TEST(Recorder, OfGroupsThatHaveEndedTheLatestAreKept) {
  constexpr int kMany = 3 * Recorder::kMostClosed;
  Recorder recorder(8);
  recorder.open({"0", 1, {4, 6}});
  for (int number = 1; number <= kMany; ++number) recorder.close(recorder.open({"of one", 0, {6}}));
  const auto groups = recorder.groups();
  EXPECT_EQ(groups.size(), 1 + Recorder::kMostClosed);
  EXPECT_EQ(groups.begin()->second.name, "0") << "it has not ended";
  EXPECT_EQ(groups.rbegin()->first, kMany);
  EXPECT_EQ(recorder.rank(), 6);
}

TEST(Recorder, MembersOfAnElasticJobHaveNumbersOfTheirOwn) {
  Recorder recorder(8);
  recorder.open({"alone", 0, {0}});
  recorder.name_members(7, {7}, "");
  EXPECT_EQ(recorder.rank(), 7);
  recorder.name_members(7, {2, 7, 9}, " of world 3");
  recorder.open({"0", 1, {0, 1, 2}});
  recorder.open({"sub", 0, {1, 2}});
  const auto groups = recorder.groups();
  EXPECT_EQ(groups.at(0).members, (std::vector<int>{7}));
  EXPECT_EQ(groups.at(1).members, (std::vector<int>{2, 7, 9}));
  EXPECT_EQ(groups.at(2).members, (std::vector<int>{7, 9}));
  EXPECT_EQ(groups.at(2).name, "sub of world 3");
}

TEST(Recorder, FillsInThreadAndTime) {
  Recorder recorder(8);
  const int64_t before = now_ns();
  recorder.note({});
  std::thread([&] { recorder.note({}); }).join();
  Event given;
  given.time_ns = 5;
  recorder.note(given);
  const auto events = recorder.ring().read();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].time_ns, 5);
  EXPECT_GE(events[1].time_ns, before);
  EXPECT_LE(events[2].time_ns, now_ns());
  EXPECT_EQ(events[0].thread, events[1].thread);
  EXPECT_NE(events[1].thread, events[2].thread);
}

TEST(Recorder, ThisProcessHasOne) {
  EXPECT_EQ(&recorder(), &recorder());
  EXPECT_GT(recorder().ring().capacity(), 0u);
}

TEST(Recorder, LastingTextsAreKeptOnce) {
  const char* first = nullptr;
  {
    const std::string text = "a plan";
    first = interned(text);
  }
  EXPECT_STREQ(first, "a plan");
  EXPECT_EQ(interned("a plan"), first);
  EXPECT_NE(interned("another"), first);
}

// A DataLoader's worker, or a rank that a used process starts.
TEST(Recorder, AForkedChildMayUseIt) {
  const std::string text = "a plan";
  const char* const kept = interned(text);
  EXPECT_TRUE(works_in_children([&] { return recorder().rank() >= 0 && interned(text) == kept; }));
}

TEST(Event, EveryKindHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int kind = 0; kind < kKindCount; ++kind) names.insert(name_of(static_cast<Kind>(kind)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kKindCount));
  EXPECT_STREQ(name_of(Kind::kEnqueued), "enqueued");
  EXPECT_STREQ(name_of(Kind::kRegrouped), "regrouped");
}

// Every field depends on `number`: a torn event is seen.
Event numbered(int64_t number) {
  Event event;
  event.peer = static_cast<int32_t>(number);
  event.time_ns = event.bytes = event.ns = number;
  event.seq = static_cast<uint64_t>(number);
  return event;
}

void expect_untorn(const Event& event) {
  EXPECT_EQ(event.peer, event.time_ns);
  EXPECT_EQ(event.bytes, event.time_ns);
  EXPECT_EQ(event.ns, event.time_ns);
  EXPECT_EQ(event.seq, static_cast<uint64_t>(event.time_ns));
}

TEST(Ring, GivesBackWhatWasWritten) {
  Ring ring(4);
  EXPECT_TRUE(ring.read().empty());
  Event event = numbered(7);
  event.kind = Kind::kBlocked;
  event.dtype = DType::kBF16;
  event.op = ReduceOp::kAvg;
  event.group = 3;
  event.thread = 99;
  event.name = "all_reduce";
  ring.write(event);
  const auto events = ring.read();
  ASSERT_EQ(events.size(), 1u);
  expect_untorn(events[0]);
  EXPECT_EQ(events[0].kind, Kind::kBlocked);
  EXPECT_EQ(events[0].dtype, DType::kBF16);
  EXPECT_EQ(events[0].op, ReduceOp::kAvg);
  EXPECT_EQ(events[0].group, 3);
  EXPECT_EQ(events[0].thread, 99);
  EXPECT_STREQ(events[0].name, "all_reduce");
}

TEST(Ring, KeepsTheLatestInOrderOfTime) {
  Ring ring(8);
  for (int64_t number = 20; number > 0; --number) ring.write(numbered(number));
  const auto events = ring.read();
  ASSERT_EQ(events.size(), 8u);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(events[i].time_ns, i + 1);
  EXPECT_EQ(ring.written(), 20u);
  EXPECT_EQ(ring.lost(), 0u);
}

TEST(Ring, WhatThreadsWroteInAnyOrderIsReadInOrderOfTime) {
  std::vector<int64_t> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), 1);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(7));
  Ring ring(numbers.size());
  for (const int64_t number : numbers) ring.write(numbered(number));
  const auto events = ring.read();
  ASSERT_EQ(events.size(), numbers.size());
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].seq, i + 1);
}

TEST(Ring, OfNoSizeKeepsNothing) {
  Ring ring(0);
  ring.write(numbered(1));
  EXPECT_TRUE(ring.read().empty());
  EXPECT_EQ(ring.written(), 0u);
}

// Writers overtake each other in a ring of few slots while a reader looks; what is lost is counted.
TEST(Ring, ManyThreadsWriteAndOneReadsWithoutTornEvents) {
  constexpr int kThreads = 4;
  constexpr int64_t kEvents = 20'000;
  Ring ring(16);
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      for (const Event& event : ring.read()) expect_untorn(event);
    }
  });
  std::vector<std::thread> writers;
  for (int thread = 0; thread < kThreads; ++thread) {
    writers.emplace_back([&, thread] {
      for (int64_t i = 0; i < kEvents; ++i) ring.write(numbered(thread * kEvents + i));
    });
  }
  for (auto& writer : writers) writer.join();
  done = true;
  reader.join();
  EXPECT_EQ(ring.written(), static_cast<uint64_t>(kThreads * kEvents));
  EXPECT_LT(ring.lost(), ring.written());
  const auto events = ring.read();
  EXPECT_FALSE(events.empty());
  for (const Event& event : events) expect_untorn(event);
}

TEST(Delays, WhoWaitsLeastCameLast) {
  const Delay delay = delay_of({200, 190, 3, 210});
  EXPECT_EQ(delay.rank, 2);
  EXPECT_EQ(delay.ns, 187);  // had rank 2 come with rank 1
}

TEST(Delays, WhoeverCameTogetherDelaysNobody) {
  EXPECT_EQ(delay_of({50, 0, 0}).ns, 0);
  EXPECT_EQ(delay_of({0, 0}).ns, 0);
}

TEST(Delays, WhatIsNotKnownOfAllIsOfNone) {
  EXPECT_EQ(delay_of({100, -1, 5}).ns, 0);
  EXPECT_EQ(delay_of({100}).ns, 0);
  EXPECT_EQ(delay_of({}).ns, 0);
}

TEST(Delays, AddUpByRank) {
  Delays delays(3);
  delays.add(delay_of({10, 0, 30}));
  delays.add(delay_of({0, 5, 9}));
  delays.add(delay_of({20, 0, 30}));
  delays.add(delay_of({-1, -1, -1}));
  EXPECT_EQ(delays.by_rank(), (std::vector<int64_t>{5, 30, 0}));
}

}  // namespace
}  // namespace ringdp::trace
