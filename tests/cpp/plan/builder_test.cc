// What a builder records, and which problems and plans are refused.
#include "plan/builder.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "plan/validate.h"

namespace ringdp::plan {
namespace {

Problem problem_of_doubles() {
  Problem problem;
  problem.dtype = DType::kF64;
  problem.rank = 1;
  problem.world = 3;
  return problem;
}

TEST(Builder, HandlesCountTheStepsOfTheirChannel) {
  Builder builder("test", problem_of_doubles());
  const int send = builder.add_send_channel(2), recv = builder.add_recv_channel(0);
  EXPECT_EQ(builder.send(send, 2, 0, builder.input(0, {0, 1})).steps, 1);
  const After second = builder.send(send, 2, 1, builder.input(0, {1, 2}));
  EXPECT_EQ(second.steps, 2);
  EXPECT_EQ(second.channel, send);
  EXPECT_EQ(builder.recv(recv, 0, 0, builder.output(0, {0, 1}), {second}).steps, 1);
  const Plan plan = builder.finish();
  EXPECT_EQ(plan.channels[send].name, "send>2");
  EXPECT_EQ(plan.channels[recv].name, "recv<0");
  EXPECT_EQ(plan.channels[recv].steps[0].after[0].steps, 2);
}

TEST(Builder, AnnouncedTransfersAreMarked) {
  Builder builder("test", problem_of_doubles());
  const int channel = builder.add_channel("both");
  builder.send_announced(channel, 2, 0, builder.input(2, {0, 0}));
  builder.recv_announced(channel, 2, 0, builder.output(2, {0, 4}));
  builder.send(channel, 2, 0, builder.input(2, {0, 1}));
  const std::vector<Step> steps = builder.finish().channels[channel].steps;
  EXPECT_TRUE(steps[0].announce && steps[0].verb == Verb::kSend);
  EXPECT_TRUE(steps[1].announce && steps[1].verb == Verb::kRecv);
  EXPECT_FALSE(steps[2].announce);
}

TEST(Builder, OnlyCopiesIntoOutputsGoPastCaches) {
  Problem problem = problem_of_doubles();
  problem.what = Collective::kAllGather;
  problem.count = 4;
  for (const bool large : {false, true}) {
    problem.nontemporal_bytes = problem.world * problem.world * 4 * 8 - large;
    Builder builder("test", problem);
    const int channel = builder.add_channel("arena");
    builder.copy(channel, builder.input(0, {0, 4}), builder.slot(0, 0, 0, 4));
    builder.copy(channel, builder.slot(1, 0, 0, 4), builder.output(1, {0, 4}));
    const std::vector<Step> steps = builder.finish().channels[channel].steps;
    EXPECT_FALSE(steps[0].nontemporal);
    EXPECT_EQ(steps[1].nontemporal, large);
  }
}

TEST(Builder, ExtentsBecomeByteOffsets) {
  const Builder builder("test", problem_of_doubles());
  const Ref ref = builder.output(2, {5, 9});
  EXPECT_EQ(ref.space, Space::kOutput);
  EXPECT_EQ(ref.index, 2);
  EXPECT_EQ(ref.offset, 5 * 8);
  EXPECT_EQ(ref.count, 4);
}

TEST(Builder, ScratchPiecesAreAlignedAndDisjoint) {
  Builder builder("test", problem_of_doubles());
  const int64_t first = builder.reserve_scratch(1), second = builder.reserve_scratch(65);
  EXPECT_EQ(first % 64, 0);
  EXPECT_EQ(second % 64, 0);
  EXPECT_GE(second, first + 1);
  EXPECT_GE(builder.finish().scratch_bytes, second + 65);
}

TEST(Builder, RecodingStepsHaveOneSourceAndOneDestination) {
  Builder builder("test", problem_of_doubles());
  const int channel = builder.add_channel("own");
  const Ref bytes = Builder::scratch(0, Form::kEncoded, 5);
  builder.encode(channel, builder.input(0, {0, 5}), bytes);
  builder.decode(channel, bytes, builder.output(0, {0, 5}), {{channel, 1}});
  const std::vector<Step> steps = builder.finish().channels[channel].steps;
  EXPECT_TRUE(steps[0].verb == Verb::kEncode && steps[0].srcs[0].space == Space::kInput);
  EXPECT_TRUE(steps[1].verb == Verb::kDecode && steps[1].dsts[0].space == Space::kOutput);
  EXPECT_EQ(steps[1].after.size(), 1u);
}

// Of the sums it applies to.
TEST(Builder, ThePlanCarriesTheWireType) {
  Problem problem = problem_of_doubles();
  problem.what = Collective::kAllReduce;
  problem.op = ReduceOp::kSum;
  problem.wire = WireType::kInt8;
  EXPECT_EQ(Builder("test", problem).finish().wire, WireType::kInt8);
  problem.what = Collective::kBroadcast;
  EXPECT_EQ(Builder("test", problem).finish().wire, WireType::kFp32);
}

TEST(Builder, ThePlanCarriesTheProblem) {
  Problem problem = problem_of_doubles();
  problem.what = Collective::kReduceScatter;
  problem.op = ReduceOp::kAvg;
  const Plan plan = Builder("test", problem).finish();
  EXPECT_EQ(plan.algorithm, "test");
  EXPECT_EQ(plan.what, problem.what);
  EXPECT_EQ(plan.dtype, problem.dtype);
  EXPECT_EQ(plan.op, problem.op);
  EXPECT_EQ(plan.rank, problem.rank);
  EXPECT_EQ(plan.world, problem.world);
}

Problem sound_gather() {
  Problem problem;
  problem.what = Collective::kAllGather;
  problem.world = 4;
  problem.rank = 3;
  problem.count = 100;
  return problem;
}

void expect_refused(const std::function<void(Problem&)>& spoil, const std::string& named) {
  Problem problem = sound_gather();
  spoil(problem);
  try {
    validate(problem);
    FAIL() << "accepted a bad " << named;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
  }
}

TEST(Validate, AcceptsSoundProblems) {
  Problem problem = sound_gather();
  EXPECT_NO_THROW(validate(problem));
  problem.counts = {0, 1, 2, 3};
  problem.hosts = {0, 1, 3};
  EXPECT_NO_THROW(validate(problem));
  problem.counts.clear();
  problem.what = Collective::kAllToAll;
  problem.sends = {1, 2, 3, 4};
  problem.recvs = {9, 0, 0, 4};
  EXPECT_NO_THROW(validate(problem));
}

TEST(Validate, RefusesNumbersOutOfRangeByName) {
  expect_refused([](Problem& p) { p.world = 0; }, "world=0");
  expect_refused([](Problem& p) { p.rank = 4; }, "rank=4");
  expect_refused([](Problem& p) { p.rank = -1; }, "rank=-1");
  expect_refused([](Problem& p) { p.root = 4; }, "root=4");
  expect_refused([](Problem& p) { p.count = -1; }, "count=-1");
  expect_refused([](Problem& p) { p.segment_bytes = 0; }, "segment_bytes=0");
  expect_refused([](Problem& p) { p.slot_bytes = 0; }, "slot_bytes=0");
  expect_refused([](Problem& p) { p.count = INT64_MAX / 8; }, "does not fit");
}

TEST(Validate, RefusesBadPartsByName) {
  using Field = std::vector<int64_t> Problem::*;
  const std::pair<Field, std::string> fields[] = {
      {&Problem::counts, "counts"}, {&Problem::sends, "sends"}, {&Problem::recvs, "recvs"}};
  for (const auto& [field, name] : fields) {
    expect_refused([f = field](Problem& p) { p.*f = {1, 2, 3}; }, name + " has 3 entries for world=4");
    expect_refused([f = field](Problem& p) { p.*f = {1, 2, -3, 4}; }, name + "[2]=-3");
    expect_refused([f = field](Problem& p) { p.*f = {INT64_MAX, 1, 0, 0}; }, "sum of " + name);
    expect_refused([f = field](Problem& p) { p.*f = {INT64_MAX / 4, INT64_MAX / 4, 0, 0}; }, "does not fit");
  }
}

TEST(Validate, RefusesCountsOfACollectiveWithoutParts) {
  for (int what = 0; what < kCollectiveCount; ++what) {
    Problem problem = sound_gather();
    problem.what = static_cast<Collective>(what);
    problem.counts = {1, 2, 3, 4};
    if (problem.has_parts()) {
      EXPECT_NO_THROW(validate(problem)) << name_of(problem.what);
    } else {
      expect_refused([&](Problem& p) { p = problem; }, "counts must be empty");
    }
  }
}

TEST(Validate, RefusesAnOwnPartOfTwoSizes) {
  const auto spoil = [](Problem& p) {
    p.what = Collective::kAllToAll;
    p.sends = {1, 2, 3, 4};
    p.recvs = {1, 2, 3, 5};
  };
  expect_refused(spoil, "sends[3]=4 must equal recvs[3]=5");
}

TEST(Validate, RefusesHostsThatAreNoPartitionByName) {
  expect_refused([](Problem& p) { p.hosts = {1, 2}; }, "hosts[0]=1");
  expect_refused([](Problem& p) { p.hosts = {0, 2, 2}; }, "hosts[2]=2");
  expect_refused([](Problem& p) { p.hosts = {0, 3, 1}; }, "hosts[2]=1");
  expect_refused([](Problem& p) { p.hosts = {0, 4}; }, "hosts[1]=4");
}

}  // namespace
}  // namespace ringdp::plan
