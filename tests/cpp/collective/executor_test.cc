#include "collective/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include "collective/executor_world.h"
#include "collective/inspect.h"
#include "long_tests.h"
#include "plan/builder.h"

namespace ringdp::collective {
namespace {

TEST(Executor, CountersEqualThePlansTotals) {
  for (const Case& c : kCases) {
    for (int ranks = 2; ranks <= 8; ranks += once_will_do() ? 3 : 1) {
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
        ASSERT_EQ(world.out(r), std::vector<float>(world.out(r).size(), ranks * (ranks + 1) / 2.0f));
      }
    }
  }
}

TEST(Executor, HeadersAreOnLinksOnlyWhereNoArenaHoldsAllRanks) {
  for (const Case& c : kCases) {
    World world(3, c, 100);
    world.start(1, {1, 1, 1});
    world.run();
    const uint64_t on_links = c.shared ? 0 : 2 * sizeof(transport::Header);
    for (int r = 0; r < 3; ++r) EXPECT_EQ(world.executor(r).totals().header_bytes_sent, on_links);
  }
}

TEST(Executor, RepeatedCollectivesReuseSlotsAndHeaders) {
  for (const Case& c : kCases) {
    World world(3, c, 3001);
    for (uint64_t seq = 1; seq <= 7; ++seq) {
      world.start(seq, {1, 1, 1});
      world.run();
      for (int r = 0; r < 3; ++r) ASSERT_EQ(world.out(r)[3000], 6.0f) << "collective " << seq;
    }
  }
}

// A rank may have heard all others before its own header is out: it must still send it.
TEST(Executor, TheOwnHeaderGoesOutThoughItsLinksWereFullWhileThePeersHeadersCame) {
  for (const Case& c : kCases) {
    for (int refusals = 0; refusals < 6; ++refusals) {
      World world(3, c, 50, refusals);
      world.start(1, {1, 1, 1});
      for (int turn = 0; turn < 1000 && !world.done(); ++turn) {
        for (const int rank : {2, 1, 0}) world.advance(rank);
      }
      ASSERT_TRUE(world.done()) << "stuck after " << refusals << " refusals";
    }
  }
}

TEST(Executor, NothingOfAMismatchingPeerIsUsed) {
  for (const Case& c : kCases) {
    World world(3, c, 50);
    world.start(1, {1, 2, 1});
    std::vector<bool> refused(3, false);
    for (int turn = 0; turn < 100; ++turn) {
      for (int r = 0; r < 3; ++r) {
        try {
          if (!refused[r]) world.advance(r);
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
          refused[r] = true;
        }
      }
    }
    for (int r = 0; r < 3; ++r) {
      EXPECT_TRUE(refused[r]) << "rank " << r;
      EXPECT_FALSE(world.executor(r).done());
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

TEST(Executor, NamesTheRanksThatHaveNotCome) {
  for (const Case& c : kCases) {
    World world(3, c, 50);
    world.start(1, {1, 1, 1});
    for (int turn = 0; turn < 50; ++turn) {
      world.advance(0);
      world.advance(2);
    }
    EXPECT_EQ(world.executor(0).silent_ranks(), std::vector<int>{1});
    EXPECT_FALSE(world.executor(0).done());
    EXPECT_FALSE(world.executor(0).awaited_ranks().empty());
    world.run();
    EXPECT_TRUE(world.executor(0).silent_ranks().empty());
    EXPECT_TRUE(world.executor(0).awaited_ranks().empty());
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
    opening.check = [](int, const transport::Header&) {};
    return Executor(plans[rank], std::move(buffers), fabrics[rank], workspaces[rank],
                    HeaderExchange(fabrics[rank], rank, 2, std::move(opening)));
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

// A plan of one rank that reads and writes where the headers said its peers' tensors lie.
TEST(Executor, TensorsOfPeersAreReachedWhereTheyLie) {
  plan::Problem problem;
  plan::Builder builder("test", problem);
  const int channel = builder.add_channel("fold");
  builder.fold(channel, {builder.input(0, {1, 3}), builder.peer_input(1, {1, 3})},
               {builder.output(0, {1, 3}), builder.peer_output(1, {1, 3})}, true);
  const plan::Plan plan = builder.finish();
  std::vector<float> mine = {1, 2, 3, 4}, theirs = {10, 20, 30, 40};
  const auto at = reinterpret_cast<std::byte*>(theirs.data());
  const Fabric fabric;
  Workspace workspace;
  Buffers buffers{{mine.data()}, {mine.data()}};
  buffers.peers = {{}, {{at}, at}};
  Executor executor(plan, buffers, fabric, workspace, HeaderExchange(fabric, 0, 1, {}));
  while (!executor.done()) executor.advance();
  EXPECT_EQ(mine, (std::vector<float>{1, 22, 33, 4}));
  EXPECT_EQ(theirs, (std::vector<float>{10, 22, 33, 40}));
}

// As a tree does: halves are widened, partial sums added to each other, and the last one rounded.
TEST(Executor, FoldsPartialSumsWithEachOther) {
  plan::Problem problem;
  problem.dtype = DType::kBF16;
  plan::Builder builder("test", problem);
  const int channel = builder.add_channel("fold");
  const plan::Ref first = plan::Builder::scratch(builder.reserve_scratch(64), plan::Form::kWide, 16);
  const plan::Ref second = plan::Builder::scratch(builder.reserve_scratch(64), plan::Form::kWide, 16);
  builder.fold(channel, {builder.input(0, {0, 16})}, {first}, false);
  builder.fold(channel, {builder.input(1, {0, 16})}, {second}, false);
  builder.fold(channel, {first, second}, {first}, false);
  builder.fold(channel, {first}, {builder.output(0, {0, 16})}, true);
  const plan::Plan plan = builder.finish();
  const std::vector<uint16_t> one(16, 0x3f80), three(16, 0x4040);  // bfloat16
  std::vector<uint16_t> sum(16);
  const Fabric fabric;
  Workspace workspace;
  Executor executor(plan, Buffers{{one.data(), three.data()}, {sum.data()}}, fabric, workspace,
                    HeaderExchange(fabric, 0, 1, {}));
  while (!executor.done()) executor.advance();
  EXPECT_EQ(sum, std::vector<uint16_t>(16, 0x4080));  // four
}

// Of an all_reduce each rank folds its slice, or on one server all of it; the rest is copied and nobody is told.
TEST(ExecutorMemory, FoldedResultsAreToldOnceWhenTheyAreThere) {
  constexpr int64_t kCount = 100'003;
  for (const Case& c : kCases) {
    if (c.wire != WireType::kFp32) continue;
    World world(3, c, kCount, 0, 1 << 20);
    std::vector<std::vector<int>> told(3, std::vector<int>(kCount, 0));
    world.on_result = [&](int rank, int64_t begin, int64_t count) {
      const float* const there = world.out(rank).data() + begin;
      ASSERT_EQ(std::count(there, there + count, 6.0f), count);
      for (int64_t i = begin; i < begin + count; ++i) ++told[rank][i];
    };
    world.start(1, {1, 1, 1});
    world.run();
    int64_t all = 0;
    for (const std::vector<int>& counts : told) {
      ASSERT_LE(*std::max_element(counts.begin(), counts.end()), 1);
      all += std::accumulate(counts.begin(), counts.end(), int64_t{0});
    }
    EXPECT_GE(all, kCount) << static_cast<int>(c.algorithm);
  }
}

TEST(ExecutorMemory, WhatIsStagedPastTheCachesArrives) {
  constexpr int64_t kCount = 1 << 20, kSlotBytes = 256 << 10;
  for (int ranks = 2; ranks <= 3; ++ranks) {
    World world(ranks, {AlgorithmChoice::kArena, Order::kRank, true}, kCount, 0, kSlotBytes);
    int nontemporal = 0;
    for (uint64_t seq = 1; seq <= 3; ++seq) {
      for (int r = 0; r < ranks; ++r) {
        for (int64_t i = 0; i < kCount; ++i) world.in(r)[i] = static_cast<float>(i % 1009 + r * static_cast<int>(seq));
      }
      world.start(seq, std::vector<int>(ranks, 1));
      nontemporal += world.workspace(0).slot_stores.nontemporal();
      world.run();
      for (int r = 0; r < ranks; ++r) {
        const auto extra = static_cast<float>(static_cast<int>(seq) * ranks * (ranks - 1) / 2);
        std::vector<float> right(kCount);
        for (int64_t i = 0; i < kCount; ++i) right[i] = static_cast<float>(ranks * (i % 1009)) + extra;
        ASSERT_TRUE(world.out(r) == right);
      }
    }
    EXPECT_GT(nontemporal, 0) << "the second long plan looks whether they are slower";
  }
}

}  // namespace

}  // namespace ringdp::collective
