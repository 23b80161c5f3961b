// What a group tells the recorder: by itself, and in a fleet of ranks that are threads of this process.
#include "comm/group_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "comm/fleet.h"

namespace ringdp::comm {
namespace {

using trace::Event;
using trace::Kind;

OpDesc described(plan::Collective what, int64_t count, uint64_t seq = 1) {
  OpDesc desc;
  desc.what = what;
  desc.dtype = DType::kF32;
  desc.count = count;
  desc.seq = seq;
  return desc;
}

TEST(GroupLog, BytesAreThoseOfAllParts) {
  trace::Recorder recorder(16);
  const GroupLog log(recorder, "g", 0, {0, 1, 2});
  log.enqueued(described(plan::Collective::kAllReduce, 10), 1);
  log.enqueued(described(plan::Collective::kAllGather, 10), 2);
  OpDesc uneven = described(plan::Collective::kReduceScatter, 0);
  uneven.counts = {1, 2, 4};
  log.enqueued(uneven, 3);
  OpDesc exchanged = described(plan::Collective::kAllToAll, 0);
  exchanged.sends = {5, 6, 7};
  log.enqueued(exchanged, 4);
  const auto events = recorder.ring().read();
  ASSERT_EQ(events.size(), 4u);
  const int64_t bytes[] = {40, 120, 28, 72};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(events[i].bytes, bytes[i]) << events[i].name;
}

// Ranks whose headers are there at the first look were not waited for.
TEST(GroupLog, TheLastToComeIsNamed) {
  trace::Recorder recorder(16);
  GroupLog log(recorder, "g", 1, {0, 1, 2});
  const auto last = [&](bool looked) {
    log.started(described(plan::Collective::kBarrier, 0), trace::now_ns());
    log.entered(2, {});
    if (looked) log.looked();
    log.entered(0, {});
    return recorder.ring().read().back();
  };
  EXPECT_EQ(last(false).peer, 1);
  EXPECT_EQ(last(true).peer, 0);
  EXPECT_EQ(last(true).kind, Kind::kArrived);
}

// The wait of each collective goes out with the next one's header; then all know who delayed whom.
TEST(GroupLog, WaitsOfTheCollectiveBeforeMakeDelays) {
  trace::Recorder recorder(16);
  GroupLog log(recorder, "g", 0, {0, 1, 2});
  EXPECT_EQ(log.remarks(1, 7).waited_ns, -1);
  EXPECT_EQ(log.remarks(1, 7).digest, 7u);
  log.started(described(plan::Collective::kBarrier, 0, 1), trace::now_ns() - 1'000'000);
  log.entered(1, {0, -1});
  log.entered(2, {0, -1});
  const int64_t own = log.remarks(2, 0).waited_ns;
  EXPECT_GE(own, 1'000'000);
  log.started(described(plan::Collective::kBarrier, 0, 2), trace::now_ns());
  log.entered(1, {0, own + 500});
  log.entered(2, {0, own - 300});
  EXPECT_EQ(log.delays(), (std::vector<int64_t>{0, 0, 300}));
}

TEST(GroupLog, FullLinksAreToldOfByPeer) {
  trace::Recorder recorder(16);
  GroupLog log(recorder, "g", 0, {0, 1});
  log.started(described(plan::Collective::kAllReduce, 4), 5);
  log.running("direct");
  log.ended(described(plan::Collective::kAllReduce, 4), {{0, 0}, {4096, 77}}, /*failed=*/false);
  const auto events = recorder.ring().read();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].kind, Kind::kBlocked);
  EXPECT_EQ(events[1].peer, 1);
  EXPECT_EQ(events[1].bytes, 4096);
  EXPECT_EQ(events[1].ns, 77);
  EXPECT_EQ(events[2].kind, Kind::kFinished);
  EXPECT_STREQ(events[2].name, "direct");
}

int next_group() {
  const auto groups = trace::recorder().groups();
  return groups.empty() ? 0 : groups.rbegin()->first + 1;
}

// Events of groups that were made since, by rank in the group.
std::map<int, std::vector<Event>> events_by_rank(int first) {
  const auto groups = trace::recorder().groups();
  std::map<int, std::vector<Event>> events;
  for (const Event& event : trace::recorder().ring().read()) {
    if (event.group >= first) events[groups.at(event.group).rank].push_back(event);
  }
  return events;
}

TEST(GroupLog, EveryRankOfAFleetTellsOfEveryCollective) {
  const int before = next_group();
  for (const char* transport : {"shm", "tcp"}) {
    expect_no_errors(run_fleet(3, with({{"transport", transport}}), [](int rank, Group& group, Runtime&) {
      std::vector<float> data(1000, static_cast<float>(rank));
      for (int i = 0; i < 4; ++i) run_op(group, all_reduce(data));
    }));
  }
  const auto events = events_by_rank(before);
  ASSERT_EQ(events.size(), 3u);
  for (const auto& [rank, of_rank] : events) {
    std::map<Kind, int> counts;
    for (const Event& event : of_rank) ++counts[event.kind];
    for (const Kind kind : {Kind::kEnqueued, Kind::kStarted, Kind::kArrived, Kind::kFinished}) {
      EXPECT_EQ(counts[kind], 8) << "rank " << rank << ", " << name_of(kind);
    }
    EXPECT_EQ(counts[Kind::kFailed], 0);
  }
}

// The machine may keep a rank from its core for longer than any nap, so rank 1 comes once the others wait, and again
// until that outweighs everything else. All ranks compute the same, and end together.
TEST(GroupLog, ASleeperIsWhoDelaysTheOthers) {
  constexpr auto kNap = std::chrono::milliseconds(20);
  constexpr int kOften = 200;
  std::atomic<int> waiting{0};
  expect_no_errors(run_fleet(3, Settings{}, [&](int rank, Group& group, Runtime&) {
    const auto is_blamed = [&] {
      const std::vector<int64_t> delays = group.delays();  // of all but the latest
      return delays[1] > delays[0] + delays[2];
    };
    for (int round = 1; round <= 4 || (!is_blamed() && round < kOften); ++round) {
      while (rank == 1 && waiting < 2 * round) std::this_thread::yield();
      if (rank == 1) std::this_thread::sleep_for(kNap);
      const auto work = group.submit(barrier());
      if (rank != 1) ++waiting;
      ASSERT_TRUE(group.wait(*work, Deadline::after(kLong)));
    }
    EXPECT_TRUE(is_blamed());
  }));
}

TEST(GroupLog, DigestsOfAllRanksComeWithACollective) {
  for (const char* transport : {"shm", "tcp"}) {
    expect_no_errors(run_fleet(3, with({{"transport", transport}}), [](int rank, Group& group, Runtime&) {
      std::vector<float> data(64);
      Request request = all_reduce(data);
      const auto digests = std::make_shared<Digests>();
      digests->own = rank == 2 ? 0 : 100 + rank;
      request.digests = digests;
      run_op(group, std::move(request));
      EXPECT_EQ(digests->all, (std::vector<uint64_t>{100, 101, 0}));
    }));
  }
}

}  // namespace
}  // namespace ringdp::comm
