#include "collective/executor.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

#include "base/error.h"
#include "collective/recorder.h"
#include "plan/catalog.h"
#include "transport/shm/local_arenas.h"

namespace ringdp::collective {
namespace {

// N ranks in one thread over shared-memory links and arenas.
class World {
 public:
  World(int ranks, AlgorithmChoice algorithm, Order order, int64_t count)
      : arenas_(transport::make_local_arenas(ranks, 4096, 4096)), parts_(ranks) {
    for (int r = 0; r < ranks; ++r) {
      Part& part = parts_[r];
      plan::Problem problem;
      problem.rank = r;
      problem.world = ranks;
      problem.count = count;
      problem.segment_bytes = 256;
      problem.slot_bytes = 4096;
      part.plan = plan::make_plan(algorithm, order, problem);
      part.in.assign(count, static_cast<float>(r + 1));
      part.out.assign(count, -1);
      part.fabric.arena = arenas_[r].get();
      for (int peer = 0; peer < ranks; ++peer) {
        part.links.push_back(peer == r ? nullptr : arenas_[r]->link_to(peer));
        part.fabric.links.push_back(part.links.back().get());
      }
    }
  }

  // `announced[r]` is the one byte of rank r's note; ranks compare it with their own.
  void start(uint64_t seq, const std::vector<int>& announced) {
    for (size_t r = 0; r < parts_.size(); ++r) {
      Opening opening;
      opening.seq = seq;
      opening.note.bytes[0] = static_cast<std::byte>(announced[r]);
      opening.check = [mine = opening.note.bytes[0]](int rank, const transport::Note& theirs) {
        if (theirs.bytes[0] != mine) throw Error(ErrorKind::kMismatch, "differs", rank);
      };
      Part& part = parts_[r];
      part.executor = std::make_unique<Executor>(part.plan, Buffers{{part.in.data()}, {part.out.data()}}, part.fabric,
                                                 part.workspace, std::move(opening));
    }
  }

  bool advance(int rank) { return parts_[rank].executor->advance(); }
  bool done() const {
    for (const Part& part : parts_) {
      if (!part.executor->done()) return false;
    }
    return true;
  }
  void run() {
    while (!done()) {
      for (size_t r = 0; r < parts_.size(); ++r) advance(static_cast<int>(r));
    }
  }
  const Executor& executor(int rank) const { return *parts_[rank].executor; }
  const plan::Plan& plan(int rank) const { return parts_[rank].plan; }
  const std::vector<float>& out(int rank) const { return parts_[rank].out; }

 private:
  struct Part {
    plan::Plan plan;
    std::vector<float> in, out;
    std::vector<std::unique_ptr<transport::Link>> links;
    Fabric fabric;
    Workspace workspace;
    std::unique_ptr<Executor> executor;
  };
  std::vector<std::unique_ptr<transport::ShmArena>> arenas_;
  std::deque<Part> parts_;
};

struct Case {
  AlgorithmChoice algorithm;
  Order order;
};
const Case kCases[] = {{AlgorithmChoice::kArena, Order::kRank},
                       {AlgorithmChoice::kDirect, Order::kRank},
                       {AlgorithmChoice::kRing, Order::kRank},
                       {AlgorithmChoice::kRing, Order::kRotated}};

TEST(Executor, CountersEqualThePlansTotals) {
  for (const Case& c : kCases) {
    for (int ranks = 2; ranks <= 8; ++ranks) {
      World world(ranks, c.algorithm, c.order, 20011);
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
    World world(3, c.algorithm, c.order, 3001);
    for (uint64_t seq = 1; seq <= 7; ++seq) {
      world.start(seq, {1, 1, 1});
      world.run();
      for (int r = 0; r < 3; ++r) ASSERT_EQ(world.out(r)[3000], 6.0f) << "collective " << seq;
    }
  }
}

TEST(Executor, NothingOfAMismatchingPeerIsUsed) {
  for (const Case& c : kCases) {
    World world(3, c.algorithm, c.order, 50);
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
    World world(2, c.algorithm, c.order, 20011);
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
    World world(3, c.algorithm, c.order, 50);
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

}  // namespace
}  // namespace ringdp::collective
