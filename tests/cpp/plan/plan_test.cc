// The plan's own functions, and that the simulator which judges plans sees the faults it is trusted to see.
#include "plan/plan.h"

#include <gtest/gtest.h>

#include "plan/builder.h"
#include "simulate.h"

namespace ringdp::plan::testing {
namespace {

TEST(Plan, NamesEveryCollective) {
  for (int what = 0; what < kCollectiveCount; ++what) {
    const std::string name = name_of(static_cast<Collective>(what));
    EXPECT_EQ(name.find("unknown"), std::string::npos) << what;
    for (int other = 0; other < what; ++other) EXPECT_NE(name, name_of(static_cast<Collective>(other)));
  }
  EXPECT_STREQ(name_of(Collective::kReduceScatter), "reduce_scatter");
}

TEST(Plan, WideRefsCountTheBytesOfPartialSums) {
  for (int i = 0; i < kDTypeCount; ++i) {
    Plan plan;
    plan.dtype = static_cast<DType>(i);
    Ref ref;
    ref.count = 10;
    EXPECT_EQ(bytes_of(plan, ref), 10 * size_of(plan.dtype));
    ref.form = Form::kWide;
    EXPECT_EQ(bytes_of(plan, ref), 10 * size_of(wide_of(plan.dtype)));
  }
}

TEST(Problem, SharedBytesAreWhatAllRanksKnow) {
  for (int i = 0; i < kCollectiveCount; ++i) {
    Problem problem;
    problem.what = static_cast<Collective>(i);
    problem.dtype = DType::kF64;
    problem.world = 3;
    problem.count = 7;
    const bool moves_pairwise = problem.what == Collective::kAllToAll || problem.what == Collective::kBarrier;
    EXPECT_EQ(problem.total_bytes(), moves_pairwise ? 0 : problem.has_parts() ? 3 * 7 * 8 : 7 * 8) << i;
    if (!problem.has_parts()) continue;
    problem.counts = {1, 0, 5};
    EXPECT_EQ(problem.total_bytes(), (1 + 0 + 5) * 8) << i;
  }
}

// All ranks' outputs count: whoever writes them shares one cache.
TEST(Problem, MovesOverflowCachesByWhatAllRanksWrite) {
  const int world = 4;
  for (int i = 0; i < kCollectiveCount; ++i) {
    Problem problem;
    problem.what = static_cast<Collective>(i);
    problem.world = world;
    problem.count = 100;
    const bool all_write_all = problem.what == Collective::kAllGather || problem.what == Collective::kAllToAll;
    const bool moves = all_write_all || problem.what == Collective::kBroadcast || problem.what == Collective::kGather ||
                       problem.what == Collective::kScatter;
    const int64_t written = (all_write_all ? world * world : world) * problem.count * 4;
    problem.nontemporal_bytes = written;
    EXPECT_FALSE(problem.overflows_caches()) << i;
    --problem.nontemporal_bytes;
    EXPECT_EQ(problem.overflows_caches(), moves) << i;
  }
}

TEST(Problem, PartsAreOfCountUnlessCounted) {
  Problem problem;
  problem.world = 3;
  problem.count = 5;
  EXPECT_EQ(problem.part(2), 5);
  EXPECT_EQ(problem.largest_part(), 5);
  EXPECT_EQ(problem.sent_to(1), 5);
  EXPECT_EQ(problem.received_from(1), 5);
  problem.counts = {1, 9, 0};
  problem.sends = {4, 3, 2};
  problem.recvs = {4, 6, 8};
  EXPECT_EQ(problem.part(2), 0);
  EXPECT_EQ(problem.largest_part(), 9);
  EXPECT_EQ(problem.sent_to(1), 3);
  EXPECT_EQ(problem.received_from(1), 6);
}

Problem pair(int rank) {
  Problem problem;
  problem.rank = rank;
  problem.world = 2;
  return problem;
}

std::string simulate(std::vector<Plan> plans, const std::vector<int>& hosts = {}) {
  Simulator simulator(2, 4, 64, 1, hosts);
  std::vector<Bytes> tensors(2, Bytes(16));
  for (int r = 0; r < 2; ++r) {
    const Memory memory = {tensors[r].data(), 16};
    simulator.add(r, {&plans[r], {memory}, {memory}});
  }
  return simulator.run();
}

TEST(Simulator, SeesADeadlock) {
  std::vector<Plan> plans;
  for (int r = 0; r < 2; ++r) {
    Builder builder("test", pair(r));
    const int channel = builder.add_channel("both send first");
    builder.send(channel, 1 - r, 0, builder.input(0, {0, 4}));
    builder.recv(channel, 1 - r, 0, builder.output(0, {0, 4}));
    plans.push_back(builder.finish());
  }
  EXPECT_EQ(simulate(plans), "deadlock: rank 0");
}

TEST(Simulator, SeesAMessageNobodyReceives) {
  Builder builder("test", pair(0));
  builder.send(builder.add_send_channel(1), 1, 0, builder.input(0, {0, 1}));
  EXPECT_EQ(simulate({builder.finish(), Builder("test", pair(1)).finish()}), "left over: bytes from rank 0");
}

TEST(Simulator, SeesAnAnnouncementOfAnotherLength) {
  Builder sender("test", pair(0)), receiver("test", pair(1));
  sender.send_announced(sender.add_send_channel(1), 1, 0, sender.input(0, {0, 1}));
  receiver.recv_announced(receiver.add_recv_channel(0), 0, 0, receiver.output(0, {0, 2}));
  EXPECT_EQ(simulate({sender.finish(), receiver.finish()}), "announced: 4 bytes, expected 8");
}

TEST(Simulator, SeesASlotOfAnotherHost) {
  Builder builder("test", pair(0));
  builder.copy(builder.add_channel("arena"), builder.slot(1, 0, 0, 2), builder.output(0, {0, 2}));
  EXPECT_EQ(simulate({builder.finish(), Builder("test", pair(1)).finish()}, {0, 1}), "bounds: a slot of another host");
}

// A barrier holds the ranks of one host together, and no others.
TEST(Simulator, BarriersEndAtTheHost) {
  const auto waiting = [] {
    Builder builder("test", pair(0));
    const int channel = builder.add_channel("arena");
    builder.arrive(channel);
    builder.wait(channel);
    return builder.finish();
  };
  EXPECT_EQ(simulate({waiting(), Builder("test", pair(1)).finish()}, {0, 1}), "");
  EXPECT_EQ(simulate({waiting(), Builder("test", pair(1)).finish()}), "deadlock: rank 0");
}

TEST(Simulator, SeesARefBeyondItsBuffer) {
  Builder builder("test", pair(0));
  builder.copy(builder.add_channel("copy"), builder.input(0, {1, 5}), builder.output(0, {0, 4}));
  EXPECT_EQ(simulate({builder.finish(), Builder("test", pair(1)).finish()}).rfind("bounds", 0), 0u);
}

// Stages 0 and 2 share a slot and nothing orders them: right or wrong by luck, a race always.
TEST(Simulator, SeesASlotWrittenUnderItsReader) {
  std::vector<Plan> plans;
  for (int r = 0; r < 2; ++r) {
    Builder builder("test", pair(r));
    const int channel = builder.add_channel("arena");
    builder.copy(channel, builder.input(0, {0, 2}), builder.slot(r, 0, 0, 2));
    builder.arrive(channel);
    builder.wait(channel);
    builder.copy(channel, builder.slot(1 - r, 0, 0, 2), builder.output(0, {2, 4}));
    builder.copy(channel, builder.input(0, {0, 2}), builder.slot(r, 2, 0, 2));
    plans.push_back(builder.finish());
  }
  EXPECT_EQ(simulate(plans).rfind("race", 0), 0u);
}

TEST(Simulator, SeesASlotReadWithoutABarrier) {
  std::vector<Plan> plans;
  for (int r = 0; r < 2; ++r) {
    Builder builder("test", pair(r));
    const int channel = builder.add_channel("arena");
    builder.copy(channel, builder.input(0, {0, 2}), builder.slot(r, 0, 0, 2));
    builder.copy(channel, builder.slot(1 - r, 0, 0, 2), builder.output(0, {2, 4}));
    plans.push_back(builder.finish());
  }
  EXPECT_EQ(simulate(plans).rfind("race", 0), 0u);
}

}  // namespace
}  // namespace ringdp::plan::testing
