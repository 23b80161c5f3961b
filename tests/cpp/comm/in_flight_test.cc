#include "comm/in_flight.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <vector>

#include "comm/fleet.h"

namespace ringdp::comm {
namespace {

using plan::Collective;

const Settings kOnLinks = with({{"transport", "tcp"}});

plan::Problem problem_of(Collective what, int64_t count) {
  plan::Problem problem;
  problem.what = what;
  problem.rank = 1;
  problem.world = 3;
  problem.count = count;
  return problem;
}

TEST(InFlight, MemoryIsAsLargeAsTheTensors) {
  std::vector<float> a(100), b(300);
  const auto at = [](const float* element) { return reinterpret_cast<uintptr_t>(element); };
  std::vector<Accessed> memory = accessed_by(problem_of(Collective::kAllReduce, 100), {{a.data()}, {b.data()}});
  ASSERT_EQ(memory.size(), 2u);
  EXPECT_EQ(memory[0].begin, at(a.data()));
  EXPECT_EQ(memory[0].end, at(a.data() + 100));
  EXPECT_FALSE(memory[0].written);
  EXPECT_EQ(memory[1].end, at(b.data() + 100));
  EXPECT_TRUE(memory[1].written);

  plan::Problem uneven = problem_of(Collective::kAllGather, 0);
  uneven.counts = {10, 20, 0};
  memory = accessed_by(uneven, {{a.data()}, {b.data(), b.data() + 100, b.data() + 200}});
  ASSERT_EQ(memory.size(), 3u) << "a part without elements has no memory";
  EXPECT_EQ(memory[0].end, at(a.data() + 20));
  EXPECT_EQ(memory[1].end, at(b.data() + 10));
  EXPECT_EQ(memory[2].end, at(b.data() + 120));

  plan::Problem splits = problem_of(Collective::kAllToAll, 0);
  splits.sends = {1, 2, 3}, splits.recvs = {4, 5, 6};
  memory = accessed_by(splits, {{a.data(), a.data(), a.data()}, {b.data(), b.data(), b.data()}});
  ASSERT_EQ(memory.size(), 6u);
  EXPECT_EQ(memory[2].end, at(a.data() + 3));
  EXPECT_EQ(memory[3].end, at(b.data() + 4));
  EXPECT_TRUE(accessed_by(problem_of(Collective::kBarrier, 0), {}).empty());
}

TEST(InFlight, OnlyWritingConflicts) {
  const std::vector<Accessed> reads{{100, 200, false}}, writes{{150, 160, true}}, beside{{200, 300, true}};
  EXPECT_FALSE(conflict(reads, reads));
  EXPECT_TRUE(conflict(reads, writes));
  EXPECT_TRUE(conflict(writes, reads));
  EXPECT_TRUE(conflict(writes, writes));
  EXPECT_FALSE(conflict(reads, beside));
  EXPECT_FALSE(conflict({}, writes));
}

// Whether rank 0 begins `second` while `first` runs, which rank 1 calls only afterwards.
bool begins_beside(const Settings& settings, const std::function<void(Request& first, Request& second)>& change) {
  std::atomic<bool> beside{false};
  std::promise<void> looked;
  expect_no_errors(run_fleet(2, settings, [&](int rank, Group& group, Runtime&) {
    std::vector<float> one(1000, 1), other(1000, 2);
    Request first = all_reduce(one), second = all_reduce(other);
    change(first, second);
    if (rank == 1) looked.get_future().wait_for(kLong);
    std::shared_ptr<Op> op;
    if (rank == 0) second.ready = [&] { return beside = !op->done(), true; };
    op = group.submit(std::move(first));
    const auto next = group.submit(std::move(second));
    if (rank == 0) {
      // A call that is driven until it times out: the driver has looked at the queue for so long.
      EXPECT_FALSE(group.wait(*op, Deadline::after(std::chrono::milliseconds(100))));
      looked.set_value();
    }
    EXPECT_TRUE(group.wait(*next, Deadline::after(kLong)));
    EXPECT_TRUE(op->done());
  }));
  return beside;
}

TEST(InFlight, TheNextOneBeginsBesideOthersOnLinks) {
  const auto as_it_is = [](Request&, Request&) {};
  EXPECT_TRUE(begins_beside(kOnLinks, as_it_is));
  EXPECT_FALSE(begins_beside(Settings{}, as_it_is)) << "in an arena";
  EXPECT_TRUE(begins_beside(kOnLinks, [](Request& first, Request& second) {
    first = barrier();
    second = barrier();
  }));
}

TEST(InFlight, WhatMayWriteToItsMemoryIsWaitedFor) {
  EXPECT_FALSE(begins_beside(kOnLinks, [](Request& first, Request& second) { second.buffers = first.buffers; }));
  EXPECT_FALSE(begins_beside(kOnLinks, [](Request& first, Request&) { first.ending.epilogue = [] {}; }));
  EXPECT_FALSE(
      begins_beside(kOnLinks, [](Request& first, Request&) { first.buffers.on_result = [](int64_t, int64_t) {}; }));
  EXPECT_FALSE(
      begins_beside(kOnLinks, [](Request&, Request& second) { second.buffers.on_result = [](int64_t, int64_t) {}; }));
  EXPECT_TRUE(begins_beside(kOnLinks, [](Request&, Request& second) { second.ending.epilogue = [] {}; }));
}

// All kinds of collectives in a row, several for each tensor, submitted without waiting: the same as one by one.
TEST(InFlight, ARowOfCollectivesEndsAsOneByOne) {
  constexpr int kWorld = 3, kRounds = 12;
  constexpr int64_t kCount = 5000;
  for (const auto& settings :
       {kOnLinks, with({{"transport", "tcp"}, {"algorithm", "ring"}, {"segment_bytes", "4096"}}),
        with({{"transport", "tcp"}, {"tcp_streams", "3"}}), with({{"transport", "tcp"}, {"algorithm", "exchange"}})}) {
    expect_no_errors(run_fleet(kWorld, settings, [&](int rank, Group& group, Runtime&) {
      using Tensors = std::vector<std::vector<float>>;
      const auto run = [&](bool one_by_one) {
        Tensors sums(4), parts(4), wholes(4);
        for (int t = 0; t < 4; ++t) {
          sums[t].assign(kCount, static_cast<float>(rank + t + 1));
          parts[t].assign(kCount / kWorld, 0);
          wholes[t].assign(kCount / kWorld * kWorld, 0);
        }
        std::vector<std::shared_ptr<Op>> ops;
        const auto submit = [&](Request request) {
          ops.push_back(group.submit(std::move(request)));
          if (one_by_one) ASSERT_TRUE(group.wait(*ops.back(), Deadline::after(kLong)));
        };
        for (int round = 0; round < kRounds; ++round) {
          const int t = round % 4;
          submit(all_reduce(sums[t], ReduceOp::kAvg));
          Request scatter = all_reduce(parts[t]);
          scatter.desc.what = Collective::kReduceScatter;
          scatter.buffers = {{}, {parts[t].data()}};
          for (int r = 0; r < kWorld; ++r) scatter.buffers.inputs.push_back(sums[t].data() + r * (kCount / kWorld));
          submit(std::move(scatter));
          Request gather = all_reduce(parts[t]);
          gather.desc.what = Collective::kAllGather;
          gather.buffers = {{parts[t].data()}, {}};
          for (int r = 0; r < kWorld; ++r) gather.buffers.outputs.push_back(wholes[t].data() + r * (kCount / kWorld));
          submit(std::move(gather));
          submit(barrier());
          Request broadcast = all_reduce(sums[(t + 1) % 4]);
          broadcast.desc.what = Collective::kBroadcast;
          broadcast.desc.root = round % kWorld;
          submit(std::move(broadcast));
        }
        for (const auto& op : ops) EXPECT_TRUE(group.wait(*op, Deadline::after(kLong)));
        return std::vector<Tensors>{sums, parts, wholes};
      };
      EXPECT_EQ(run(false), run(true));
    }));
  }
}

// What ranks ask for differs in the third of three collectives under way: the error says so, on both.
TEST(InFlight, AnErrorBelongsToTheCollectiveThatMetIt) {
  const auto errors = run_fleet(2, kOnLinks, [](int rank, Group& group, Runtime&) {
    std::vector<float> one(1000, 1), other(1000, 2), more(1000 + rank);
    group.submit(all_reduce(one));
    group.submit(all_reduce(other));
    run_op(group, all_reduce(more));
  });
  expect_all(errors, {"Mismatch", "#3", "float32 x 1000", "float32 x 1001"});
}

// Its last words name it in the error, whatever has become of the link.
TEST(InFlight, APeerThatLeavesIsNamedByTheOneItNeverCalls) {
  const auto errors = run_fleet(2, kOnLinks, [](int rank, Group& group, Runtime&) {
    std::vector<float> one(1000, 1), other(1000, 2);
    const auto first = group.submit(all_reduce(one));
    const auto second = rank == 0 ? group.submit(all_reduce(other)) : nullptr;
    EXPECT_TRUE(group.wait(*first, Deadline::after(kLong)));
    EXPECT_EQ(one[0], 2);
    if (rank == 1) return group.leave("ValueError: no data");
    group.wait(*second, Deadline::after(kLong));
  });
  EXPECT_NE(errors[0].find("PeerLost: rank 1"), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find("ValueError: no data"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[1], "");
}

TEST(InFlight, HeadersOfFramesAreCounted) {
  expect_no_errors(run_fleet(2, kOnLinks, [](int, Group& group, Runtime&) {
    for (int i = 0; i < 3; ++i) run_op(group, barrier());
    EXPECT_EQ(group.counters().header_bytes_sent, 3 * (sizeof(transport::Header) + sizeof(collective::Frame)));
  }));
}

TEST(InFlight, WaitsAreToldOfLaterWhereSeveralRun) {
  constexpr int kNaps = 3, kOps = static_cast<int>(collective::kMostInFlight) + kNaps;
  expect_no_errors(run_fleet(3, kOnLinks, [](int rank, Group& group, Runtime&) {
    for (int i = 0; i < kOps; ++i) {
      if (rank == 1 && i < kNaps) std::this_thread::sleep_for(std::chrono::milliseconds(40));
      run_op(group, barrier());
    }
    const std::vector<int64_t> delays = group.delays();
    EXPECT_GT(delays[1], delays[0] + delays[2]);
  }));
}

}  // namespace
}  // namespace ringdp::comm
