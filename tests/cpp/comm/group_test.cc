#include "comm/group.h"

#include <gtest/gtest.h>

#include <atomic>

#include "comm/fleet.h"
#include "transport/tcp/certificates.h"

namespace ringdp::comm {
namespace {

struct Choice {
  const char* name;
  std::vector<std::pair<std::string, std::string>> settings;
  bool tls = false;
};

const Choice kCases[] = {
    {"arena", {}},
    {"arena_small_slots", {{"slot_bytes", "4096"}}},
    {"direct_shm", {{"algorithm", "direct"}, {"segment_bytes", "256"}, {"link_bytes", "4096"}}},
    {"ring_shm", {{"algorithm", "ring"}, {"segment_bytes", "256"}, {"link_bytes", "4096"}}},
    {"rotated_shm", {{"algorithm", "ring"}, {"order", "rotated"}, {"segment_bytes", "256"}}},
    {"direct_tcp", {{"transport", "tcp"}, {"segment_bytes", "4096"}}},
    {"direct_tcp_fp16", {{"transport", "tcp"}, {"segment_bytes", "4096"}, {"wire", "fp16"}}},
    {"direct_tcp_striped", {{"transport", "tcp"}, {"tcp_streams", "3"}}},
    {"direct_tls_striped", {{"transport", "tcp"}, {"segment_bytes", "4096"}, {"tcp_streams", "3"}}, true},
    {"ring_tcp", {{"transport", "tcp"}, {"algorithm", "ring"}, {"segment_bytes", "4096"}}},
    {"rotated_tcp", {{"transport", "tcp"}, {"algorithm", "ring"}, {"order", "rotated"}}},
};

// Integer-valued, so that every order of the sum gives the same bits.
float value(int rank, int64_t i, int round) { return static_cast<float>((rank + 1) * 7 + i % 101 + round); }

class GroupCases : public ::testing::TestWithParam<std::tuple<Choice, int>> {};

TEST_P(GroupCases, EveryCollectiveEqualsTheOracle) {
  const auto& [c, world] = GetParam();
  Settings settings = with(c.settings);
  if (c.tls) {
    RINGDP_NEEDS_CERTIFICATES();
    settings = transport::Certificates::get().put_into(settings);
  }
  expect_no_errors(run_fleet(world, settings, [world = world](int rank, Group& group, Runtime&) {
    for (const int64_t n : {0, 1, world - 1, world, 1000, 40007}) {
      std::vector<float> sum(n);
      for (int64_t i = 0; i < n; ++i) sum[i] = value(rank, i, 0);
      run_op(group, all_reduce(sum));
      std::vector<float> copy(n);
      for (int64_t i = 0; i < n; ++i) copy[i] = value(rank, i, 1);
      Request broadcast = all_reduce(copy);
      broadcast.desc.what = plan::Collective::kBroadcast;
      broadcast.desc.root = world - 1;
      run_op(group, std::move(broadcast));
      std::vector<float> part(n), all(n * world), scattered(n);
      for (int64_t i = 0; i < n; ++i) part[i] = value(rank, i, 2);
      Request gather = all_reduce(part);
      gather.desc.what = plan::Collective::kAllGather;
      gather.buffers.outputs.clear();
      for (int r = 0; r < world; ++r) gather.buffers.outputs.push_back(all.data() + r * n);
      run_op(group, std::move(gather));
      Request scatter = all_reduce(part);
      scatter.desc.what = plan::Collective::kReduceScatter;
      scatter.buffers = {{}, {scattered.data()}};
      for (int r = 0; r < world; ++r) scatter.buffers.inputs.push_back(all.data() + r * n);
      run_op(group, std::move(scatter));
      for (int64_t i = 0; i < n; ++i) {
        float expected = 0;
        for (int r = 0; r < world; ++r) expected += value(r, i, 0);
        ASSERT_EQ(sum[i], expected) << "all_reduce, " << n << " elements, at " << i;
        ASSERT_EQ(copy[i], value(world - 1, i, 1)) << "broadcast at " << i;
        for (int r = 0; r < world; ++r) ASSERT_EQ(all[r * n + i], value(r, i, 2)) << "all_gather at " << i;
        ASSERT_EQ(scattered[i], world * value(rank, i, 2)) << "reduce_scatter at " << i;
      }
      run_op(group, barrier());
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(All, GroupCases, ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Values(1, 2, 3, 5)),
                         [](const auto& p) {
                           return std::string(std::get<0>(p.param).name) + "_" + std::to_string(std::get<1>(p.param));
                         });

TEST(Group, RunsCollectivesInOrderWithoutBeingWaitedFor) {
  expect_no_errors(run_fleet(3, Settings{}, [](int rank, Group& group, Runtime& runtime) {
    constexpr int kOps = 50;
    std::vector<std::vector<float>> data(kOps, std::vector<float>(100, static_cast<float>(rank + 1)));
    std::atomic<int> finished{0};
    std::vector<std::shared_ptr<Op>> ops;
    for (auto& d : data) {
      Request request = all_reduce(d);
      request.ending.on_done = [&](std::exception_ptr) { ++finished; };
      ops.push_back(group.submit(std::move(request)));
    }
    // Nobody waits for an op: the progress thread alone must finish them.
    while (finished < kOps) std::this_thread::yield();
    for (int i = 0; i < kOps; ++i) {
      EXPECT_TRUE(ops[i]->done());
      EXPECT_EQ(ops[i]->desc().seq, static_cast<uint64_t>(i + 1));
      EXPECT_EQ(data[i][99], 6.0f);
    }
    EXPECT_FALSE(runtime.engine.any_active());
    EXPECT_EQ(group.sequence(), static_cast<uint64_t>(kOps));
  }));
}

TEST(Group, EndsAnOpInOrder) {
  expect_no_errors(run_fleet(2, Settings{}, [](int, Group& group, Runtime&) {
    std::vector<float> data(100, 1.0f);
    std::shared_ptr<Op> op;
    std::atomic<bool> submitted{false}, over{false};
    std::string calls;
    const auto note = [&](const char* call) {
      while (!submitted) std::this_thread::yield();
      calls += std::string(call) + (op->done() ? ", done; " : "; ");
    };
    Request request = all_reduce(data);
    request.ending = {[&] { note("epilogue"); }, [&](std::exception_ptr) { note("before_done"); },
                      [&](std::exception_ptr) {
                        note("on_done");
                        over = true;
                      }};
    op = group.submit(std::move(request));
    submitted = true;
    while (!over) std::this_thread::yield();
    EXPECT_EQ(calls, "epilogue; before_done; on_done, done; ");
  }));
}

TEST(Group, TwoGroupsWaitedForInCrossedOrderDoNotDeadlock) {
  MemoryStore stores[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Runtime runtime;
      const Deadline limit = Deadline::after(std::chrono::seconds(60));
      std::shared_ptr<Group> groups[2];
      for (int g = 0; g < 2; ++g) groups[g] = Group::create(runtime, stores[g], {std::to_string(g), rank, 2, {}}, limit);
      std::vector<float> a(1000, 1), b(1000, 2);
      const int first = rank, second = 1 - rank;
      Request r0 = all_reduce(first == 0 ? a : b), r1 = all_reduce(second == 0 ? a : b);
      r0.asynchronous = r1.asynchronous = false;
      const auto op0 = groups[first]->submit(std::move(r0));
      const auto op1 = groups[second]->submit(std::move(r1));
      EXPECT_TRUE(groups[first]->wait(*op0, limit));
      EXPECT_TRUE(groups[second]->wait(*op1, limit));
      EXPECT_EQ(a[0] + b[0], 6.0f);
      for (auto& group : groups) group->leave();
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Group, CountsTheBytesOfTheRing) {
  const Settings settings = with({{"algorithm", "ring"}, {"order", "rotated"}});
  expect_no_errors(run_fleet(4, settings, [](int, Group& group, Runtime&) {
    std::vector<float> data(4000, 1);
    run_op(group, all_reduce(data));
    const trace::Totals t = group.counters();
    EXPECT_EQ(t.wire_bytes_sent, 2u * 3 * 4000 * sizeof(float) / 4);
    EXPECT_EQ(t.wire_bytes_received, t.wire_bytes_sent);
    EXPECT_EQ(t.rounds, 6u);
    EXPECT_EQ(t.collectives, 1u);
  }));
}

TEST(Group, RefusesRanksWithDifferentSettings) {
  const auto errors = run_fleet(
      2, [](int rank) { return with({{"segment_bytes", rank == 0 ? "4096" : "8192"}}); }, [](int, Group&, Runtime&) {});
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("Mismatch"), std::string::npos) << error;
    EXPECT_NE(error.find("segment_bytes=8192"), std::string::npos) << error;
    EXPECT_NE(error.find("segment_bytes=4096"), std::string::npos) << error;
  }
}

TEST(Group, SaysHowBytesReachPeersAndWhy) {
  expect_no_errors(run_fleet(2, with({{"transport", "tcp"}}), [](int rank, Group& group, Runtime&) {
    const std::string text = group.description();
    EXPECT_NE(text.find("rank " + std::to_string(1 - rank)), std::string::npos) << text;
    EXPECT_NE(text.find("tcp"), std::string::npos) << text;
    EXPECT_NE(text.find("plan: direct"), std::string::npos) << text;
  }));
}

TEST(Group, RefusesWorkAfterLeave) {
  expect_no_errors(run_fleet(2, Settings{}, [](int, Group& group, Runtime&) {
    run_op(group, barrier());
    group.leave();
    group.leave();
    EXPECT_THROW(group.submit(barrier()), Error);
  }));
}

}  // namespace
}  // namespace ringdp::comm
