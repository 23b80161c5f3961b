#include "trace/events.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace ringdp::trace {
namespace {

TEST(Event, EveryKindHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int kind = 0; kind < kKindCount; ++kind) names.insert(name_of(static_cast<Kind>(kind)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kKindCount));
  EXPECT_STREQ(name_of(Kind::kEnqueued), "enqueued");
  EXPECT_STREQ(name_of(Kind::kStepped), "stepped");
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

}  // namespace

}  // namespace ringdp::trace
