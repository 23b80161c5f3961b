#include "collective/executor.h"

#include <gtest/gtest.h>

#include <array>

#include "collective/recorder.h"
#include "plan/builder.h"
#include "world.h"

namespace ringdp::collective::testing {
namespace {

TEST(Executor, CountersEqualThePlansTotals) {
  for (const Case& c : kCases) {
    for (int ranks = 2; ranks <= 8; ++ranks) {
      World world(ranks, c, 20011);
      world.start(1, std::vector<int>(ranks, 5));
      world.run();
      for (int r = 0; r < ranks; ++r) {
        const PlanTotals planned = totals(world.plan(r));
        const trace::Totals& ran = world.executor(r).totals();
        EXPECT_EQ(ran.steps, static_cast<uint64_t>(planned.steps));
        EXPECT_EQ(ran.rounds, static_cast<uint64_t>(planned.rounds));
        EXPECT_EQ(ran.wire_bytes_sent, static_cast<uint64_t>(planned.bytes_sent));
        EXPECT_EQ(ran.wire_bytes_received, static_cast<uint64_t>(planned.bytes_received));
        EXPECT_EQ(ran.memory_bytes_read, static_cast<uint64_t>(planned.memory_read));
        EXPECT_EQ(ran.memory_bytes_written, static_cast<uint64_t>(planned.memory_written));
        for (const float x : world.out(r)) ASSERT_EQ(x, ranks * (ranks + 1) / 2.0f);
      }
    }
  }
}

TEST(Executor, RepeatedCollectivesReuseSlotsAndNotes) {
  for (const Case& c : kCases) {
    World world(3, c, 3001);
    for (uint64_t seq = 1; seq <= 7; ++seq) {
      world.start(seq, {1, 1, 1});
      world.run();
      for (int r = 0; r < 3; ++r) ASSERT_EQ(world.out(r)[3000], 6.0f) << "collective " << seq;
    }
  }
}

TEST(Executor, NamesTheRankThatCameAndThenStopped) {
  for (const Case& c : kCases) {
    World world(2, c, 20011);
    world.start(1, {1, 1});
    while (!world.executor(0).silent_ranks().empty() || !world.executor(1).silent_ranks().empty()) {
      world.advance(0);
      world.advance(1);
    }
    for (int turn = 0; turn < 50; ++turn) world.advance(0);
    EXPECT_EQ(world.executor(0).awaited_ranks(), std::vector<int>{1});
  }
}

// Two ranks and a plan that the test made, each with its own problem.
struct Pair {
  explicit Pair(const std::array<plan::Problem, 2>& problems) {
    for (int r = 0; r < 2; ++r) {
      plans[r] = plan::make_plan(AlgorithmChoice::kDirect, Order::kRank, problems[r]);
      links[r] = arenas[r]->link_to(1 - r);
      fabrics[r].links = {r == 0 ? nullptr : links[r].get(), r == 0 ? links[r].get() : nullptr};
    }
  }
  Executor make(int rank, Buffers buffers) {
    Opening opening;
    opening.seq = 9;
    opening.check = [](int, const transport::Note&) {};
    return Executor(plans[rank], std::move(buffers), fabrics[rank], workspaces[rank], std::move(opening));
  }

  std::vector<std::unique_ptr<transport::ShmArena>> arenas = transport::make_local_arenas(2, 4096, 4096);
  std::array<plan::Plan, 2> plans;
  std::array<std::unique_ptr<transport::Link>, 2> links;
  std::array<Fabric, 2> fabrics;
  std::array<Workspace, 2> workspaces;
};

TEST(Executor, AnAverageIsDividedByTheDivisorGiven) {
  plan::Problem problem;
  problem.op = ReduceOp::kAvg;
  problem.world = 2;
  problem.count = 3;
  std::array<plan::Problem, 2> problems = {problem, problem};
  problems[1].rank = 1;
  Pair pair(problems);
  std::array<std::vector<float>, 2> tensors = {{{1, 2, 3}, {4, 5, 6}}};
  std::vector<Executor> executors;
  for (int r = 0; r < 2; ++r) executors.push_back(pair.make(r, {{tensors[r].data()}, {tensors[r].data()}, 7.0}));
  while (!executors[0].done() || !executors[1].done()) {
    for (Executor& executor : executors) executor.advance();
  }
  for (const auto& tensor : tensors) EXPECT_EQ(tensor, (std::vector<float>{5 / 7.0f, 7 / 7.0f, 9 / 7.0f}));
}

// Rank 0 sends 3 elements to rank 1, which expects 2: no byte of them may be written.
TEST(Executor, AnAnnouncedLengthThatIsNotExpectedIsAMismatch) {
  std::array<plan::Problem, 2> problems;
  for (int r = 0; r < 2; ++r) {
    problems[r].what = plan::Collective::kAllToAll;
    problems[r].rank = r;
    problems[r].world = 2;
  }
  problems[0].sends = {1, 3}, problems[0].recvs = {1, 1};
  problems[1].sends = {1, 1}, problems[1].recvs = {2, 1};
  Pair pair(problems);
  std::vector<float> from(4, 1), to(4, -1);
  Executor sender = pair.make(0, {{from.data(), from.data() + 1}, {to.data(), to.data() + 1}});
  Executor receiver = pair.make(1, {{from.data(), from.data() + 1}, {to.data() + 2, to.data()}});
  std::string said;
  for (int turn = 0; turn < 50 && said.empty(); ++turn) {
    sender.advance();
    try {
      receiver.advance();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
      EXPECT_EQ(error.culprit(), 0);
      said = error.what();
    }
  }
  EXPECT_NE(said.find("rank 0 sends 12 bytes to rank 1, which expects 8"), std::string::npos) << said;
  EXPECT_EQ(to[2], -1) << "bytes of the mismatch were written";
}

// As a tree does: halves are widened, partial sums added to each other, and the last one rounded.
TEST(Executor, FoldsPartialSumsWithEachOther) {
  plan::Problem problem;
  problem.dtype = DType::kBF16;
  plan::Builder builder("test", problem);
  const int lane = builder.add_lane("fold");
  const plan::Ref first = plan::Builder::scratch(builder.reserve_scratch(64), plan::Form::kWide, 16);
  const plan::Ref second = plan::Builder::scratch(builder.reserve_scratch(64), plan::Form::kWide, 16);
  builder.fold(lane, {builder.input(0, {0, 16})}, {first}, false);
  builder.fold(lane, {builder.input(1, {0, 16})}, {second}, false);
  builder.fold(lane, {first, second}, {first}, false);
  builder.fold(lane, {first}, {builder.output(0, {0, 16})}, true);
  const plan::Plan plan = builder.finish();
  const std::vector<uint16_t> one(16, 0x3f80), three(16, 0x4040);  // bfloat16
  std::vector<uint16_t> sum(16);
  const Fabric fabric;
  Workspace workspace;
  Executor executor(plan, Buffers{{one.data(), three.data()}, {sum.data()}}, fabric, workspace, Opening{});
  while (!executor.done()) executor.advance();
  EXPECT_EQ(sum, std::vector<uint16_t>(16, 0x4080));  // four
}

}  // namespace
}  // namespace ringdp::collective::testing
