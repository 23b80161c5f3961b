// Python's side, torch's own analyser included, is in tests/python/observe; here what goes in.
#include "trace/flight.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace ringdp::trace {
namespace {

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Event event(Kind kind, int group, uint64_t seq, int64_t time_ns) {
  Event event;
  event.kind = kind;
  event.group = group;
  event.seq = seq;
  event.time_ns = time_ns;
  event.bytes = 64;
  event.name = "all_reduce";
  return event;
}

const Process kProcess{1, 42, "node", "boot", 1000, 10};

TEST(Flight, ACollectiveIsInTheStateThatItsEventsSay) {
  Recorder recorder(64);
  recorder.open({"0", 1, {0, 1}});
  recorder.note(event(Kind::kEnqueued, 0, 1, 11));
  recorder.note(event(Kind::kStarted, 0, 1, 12));
  recorder.note(event(Kind::kFinished, 0, 1, 13));
  recorder.note(event(Kind::kEnqueued, 0, 2, 14));
  recorder.note(event(Kind::kStarted, 0, 2, 15));
  recorder.note(event(Kind::kFailed, 0, 2, 16));
  recorder.note(event(Kind::kEnqueued, 0, 3, 17));
  const std::string dump = flight_of(recorder, kProcess);
  EXPECT_EQ(count_of(dump, "profiling_name"), 3u);
  EXPECT_EQ(count_of(dump, "completed"), 1u + 4u);  // and the keys: 3 times of entries, 1 number of the group
  EXPECT_EQ(count_of(dump, "scheduled"), 1u);
  EXPECT_EQ(count_of(dump, "gloo:all_reduce"), 3u);
}

// What began before the oldest event that is left has no entry: its call is not known.
TEST(Flight, WhatWasOverwrittenHasNoEntry) {
  Recorder recorder(64);
  recorder.open({"0", 0, {0}});
  recorder.note(event(Kind::kFinished, 0, 1, 11));
  recorder.note(event(Kind::kEnqueued, 0, 2, 12));
  EXPECT_EQ(count_of(flight_of(recorder, kProcess), "profiling_name"), 1u);
}

TEST(Flight, OfGroupsThatShareANameTheLatestHasEntries) {
  Recorder recorder(64);
  recorder.open({"0", 0, {0}});
  recorder.open({"0", 0, {0}});
  recorder.note(event(Kind::kEnqueued, 0, 1, 11));
  recorder.note(event(Kind::kEnqueued, 1, 1, 12));
  const std::string dump = flight_of(recorder, kProcess);
  EXPECT_EQ(count_of(dump, "profiling_name"), 1u);
  EXPECT_EQ(count_of(dump, "enqueued") - count_of(dump, "last_enqueued"), 2u);  // all events are there
}

// Groups are named by their places in the dump, whatever was forgotten before them.
TEST(Flight, AGroupThatIsForgottenTakesItsEventsWithIt) {
  Recorder recorder(8);
  for (size_t number = 0; number <= Recorder::kMostClosed; ++number) recorder.close(recorder.open({"old", 0, {0}}));
  const int latest = recorder.open({"new", 0, {0}});
  recorder.note(event(Kind::kEnqueued, 0, 1, 11));
  recorder.note(event(Kind::kEnqueued, latest, 1, 12));
  const std::string dump = flight_of(recorder, kProcess);
  EXPECT_EQ(count_of(dump, "profiling_name"), 1u);
  EXPECT_EQ(count_of(dump, "enqueued") - count_of(dump, "last_enqueued"), 1u);
}

TEST(Flight, ThisProcessSaysWhoAndWhen) {
  const Process process = this_process(3);
  EXPECT_EQ(process.rank, 3);
  EXPECT_EQ(process.pid, ::getpid());
  EXPECT_FALSE(process.host.empty());
  EXPECT_GT(process.wall_ns, 0);
  EXPECT_LE(process.steady_ns, now_ns());
}

}  // namespace
}  // namespace ringdp::trace
