#include "trace/recorder.h"

#include <gtest/gtest.h>

#include <thread>

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

}  // namespace
}  // namespace ringdp::trace
