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

// A link whose peer has not read for a while: the first sends find it full.
class FullAtFirst : public transport::Link {
 public:
  FullAtFirst(std::unique_ptr<transport::Link> link, int refusals) : link_(std::move(link)), refusals_(refusals) {}
  size_t try_send(const void* bytes, size_t size) override {
    return refusals_-- > 0 ? 0 : link_->try_send(bytes, size);
  }
  size_t try_recv(void* bytes, size_t size) override { return link_->try_recv(bytes, size); }
  const char* kind() const override { return link_->kind(); }

 private:
  std::unique_ptr<transport::Link> link_;
  int refusals_;
};

// N ranks in one thread over shared-memory links and arenas; rank 0's links may be full at first.
class World {
 public:
  World(int ranks, AlgorithmChoice algorithm, Order order, int64_t count, int refusals_of_rank_0 = 0)
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
        auto link = peer == r ? nullptr : arenas_[r]->link_to(peer);
        if (link && r == 0) link = std::make_unique<FullAtFirst>(std::move(link), refusals_of_rank_0);
        part.links.push_back(std::move(link));
        part.fabric.links.push_back(part.links.back().get());
      }
    }
  }

  // `announced[r]` is the one byte of rank r's note; ranks compare it with their own.
  void start(uint64_t seq, const std::vector<int>& announced) {
    for (size_t r = 0; r < parts_.size(); ++r) start_rank(static_cast<int>(r), seq, announced[r]);
  }
  void start_rank(int r, uint64_t seq, int announced) {
    Opening opening;
    opening.seq = seq;
    opening.note.bytes[0] = static_cast<std::byte>(announced);
    opening.check = [mine = opening.note.bytes[0]](int rank, const transport::Note& theirs) {
      if (theirs.bytes[0] != mine) throw Error(ErrorKind::kMismatch, "differs", rank);
    };
    Part& part = parts_[r];
    part.executor = std::make_unique<Executor>(part.plan, Buffers{{part.in.data()}, {part.out.data()}}, part.fabric,
                                               part.workspace, std::move(opening));
  }

  bool advance(int rank) { return parts_[rank].executor->advance(); }
  bool done() const {
    for (const Part& part : parts_) {
      if (!part.executor || !part.executor->done()) return false;
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

// A rank may have heard all others before its own note is out: it must still send it.
TEST(Executor, TheOwnNoteGoesOutThoughItsLinksWereFullWhileThePeersNotesCame) {
  for (const Case& c : kCases) {
    for (int refusals = 0; refusals < 6; ++refusals) {
      World world(3, c.algorithm, c.order, 50, refusals);
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
