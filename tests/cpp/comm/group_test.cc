#include "comm/group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <vector>

#include "base/error.h"
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

INSTANTIATE_TEST_SUITE_P(All, GroupCases,
                         ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Values(1, 2, 3, 5)),
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
    const auto remember = [&](const char* call) {
      while (!submitted) std::this_thread::yield();
      calls += std::string(call) + (op->done() ? ", done; " : "; ");
    };
    Request request = all_reduce(data);
    request.ending = {[&] { remember("epilogue"); }, [&](std::exception_ptr) { remember("before_done"); },
                      [&](std::exception_ptr) {
                        remember("on_done");
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
      for (int g = 0; g < 2; ++g)
        groups[g] = Group::create(runtime, stores[g], {std::to_string(g), rank, 2, {}}, limit);
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
      2,
      [](int rank) {
        return with({{"segment_bytes", rank == 0 ? "4096" : "8192"}});
      },
      [](int, Group&, Runtime&) {});
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

// Whether a group runs a collective on the tensors where they lie: all ranks decide the same, from the headers of all
// ranks.

constexpr int64_t kManyElements = 100'003;  // far beyond one shot

// A tensor in the group's heap, or in ordinary memory.
class Tensor {
 public:
  Tensor(Group& group, bool in_heap, int64_t count, float value) {
    if (in_heap) {
      heap_ = group.heap();
      at_ = reinterpret_cast<float*>(heap_->take(count * static_cast<int64_t>(sizeof(float))));
    } else {
      own_.resize(count);
      at_ = own_.data();
    }
    std::fill_n(at_, count, value);
  }
  ~Tensor() {
    if (heap_) heap_->release(reinterpret_cast<std::byte*>(at_));
  }
  float* at(int64_t element = 0) const { return at_ + element; }

 private:
  std::shared_ptr<transport::Heap> heap_;
  std::vector<float> own_;
  float* at_ = nullptr;
};

Request request(plan::Collective what, int64_t count, std::vector<const void*> inputs, std::vector<void*> outputs) {
  Request request;
  request.desc.what = what;
  request.desc.dtype = DType::kF32;
  request.desc.count = count;
  request.buffers = {std::move(inputs), std::move(outputs)};
  request.deadline = Deadline::after(std::chrono::seconds(60));
  return request;
}

Settings small_heap() { return with({{"heap_bytes", "67108864"}}); }

// Bytes that a collective read and wrote in memory, summed over the ranks: slots show in it.
struct Traffic {
  std::atomic<uint64_t> read{0}, written{0};
  void add(const trace::Totals& totals) {
    read += totals.memory_bytes_read;
    written += totals.memory_bytes_written;
  }
};

TEST(GroupPlans, TensorsInHeapsAreReducedWhereTheyLie) {
  for (const int world : {2, 3, 4}) {
    Traffic traffic;
    expect_no_errors(run_fleet(world, small_heap(), [&](int rank, Group& group, Runtime&) {
      const Tensor tensor(group, true, kManyElements, static_cast<float>(rank + 1));
      run_op(group, request(plan::Collective::kAllReduce, kManyElements, {tensor.at()}, {tensor.at()}));
      for (int64_t i = 0; i < kManyElements; ++i) ASSERT_EQ(*tensor.at(i), world * (world + 1) / 2.0f) << i;
      traffic.add(group.counters());
    }));
    EXPECT_EQ(traffic.read, static_cast<uint64_t>(world) * kManyElements * 4);
    EXPECT_EQ(traffic.written, static_cast<uint64_t>(world) * kManyElements * 4);
  }
}

// Ranks with ordinary tensors start at once; those with tensors in heaps wait for all headers. The plan is the same for
// all.
TEST(GroupPlans, OneOrdinaryTensorMakesEverybodyUseSlots) {
  constexpr int kWorld = 3;
  for (int ordinary = 0; ordinary < kWorld; ++ordinary) {
    Traffic traffic;
    expect_no_errors(run_fleet(kWorld, small_heap(), [&](int rank, Group& group, Runtime&) {
      const Tensor tensor(group, rank != ordinary, kManyElements, static_cast<float>(rank + 1));
      for (int turn = 0; turn < 3; ++turn) {
        std::fill_n(tensor.at(), kManyElements, static_cast<float>(rank + 1));
        run_op(group, request(plan::Collective::kAllReduce, kManyElements, {tensor.at()}, {tensor.at()}));
        for (int64_t i = 0; i < kManyElements; ++i) ASSERT_EQ(*tensor.at(i), 6.0f) << i;
      }
      traffic.add(group.counters());
    }));
    EXPECT_GT(traffic.read, uint64_t{3} * kWorld * kManyElements * 4);
  }
}

// Ranks allocate what they like in any order: equal places in the heaps are no condition.
TEST(GroupPlans, PlacesMayDifferBetweenRanks) {
  expect_no_errors(run_fleet(3, small_heap(), [&](int rank, Group& group, Runtime&) {
    const Tensor before(group, true, 1000 * rank + 1, 0);
    const Tensor tensor(group, true, 2 * kManyElements, static_cast<float>(rank));
    float* middle = tensor.at(100 * rank + 1);  // in the middle of a tensor, not even aligned to a cache line
    run_op(group, request(plan::Collective::kAllReduce, kManyElements, {middle}, {middle}));
    EXPECT_EQ(*tensor.at(100 * rank), static_cast<float>(rank)) << "written before its begin";
    for (int64_t i = 0; i < kManyElements; ++i) ASSERT_EQ(middle[i], 3.0f) << i;
    EXPECT_EQ(middle[kManyElements], static_cast<float>(rank)) << "written beyond its end";
  }));
}

TEST(GroupPlans, OnlyTheRootsTensorMatters) {
  constexpr int kRoot = 1, kWorld = 3;
  for (const bool root_in_heap : {true, false}) {
    Traffic traffic;
    expect_no_errors(run_fleet(kWorld, small_heap(), [&](int rank, Group& group, Runtime&) {
      const Tensor tensor(group, rank == kRoot && root_in_heap, kManyElements, static_cast<float>(rank));
      Request broadcast = request(plan::Collective::kBroadcast, kManyElements, {tensor.at()}, {tensor.at()});
      broadcast.desc.root = kRoot;
      run_op(group, std::move(broadcast));
      for (int64_t i = 0; i < kManyElements; ++i) ASSERT_EQ(*tensor.at(i), static_cast<float>(kRoot)) << i;
      traffic.add(group.counters());
    }));
    const uint64_t copies = root_in_heap ? kWorld - 1 : kWorld;  // slots: the root copies in
    EXPECT_EQ(traffic.read, copies * kManyElements * 4);
  }
}

TEST(GroupPlans, PartsOfOneTensorAreReachedTogether) {
  constexpr int kWorld = 3;
  expect_no_errors(run_fleet(kWorld, small_heap(), [&](int rank, Group& group, Runtime&) {
    const Tensor whole(group, true, kWorld * kManyElements, 0), part(group, false, kManyElements, 0);
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    for (int q = 0; q < kWorld; ++q) {
      std::fill_n(whole.at(q * kManyElements), kManyElements, static_cast<float>(10 * q + rank));
      inputs.push_back(whole.at(q * kManyElements));
      outputs.push_back(whole.at(q * kManyElements));
    }
    run_op(group, request(plan::Collective::kReduceScatter, kManyElements, inputs, {part.at()}));
    for (int64_t i = 0; i < kManyElements; ++i) ASSERT_EQ(*part.at(i), 30.0f * rank + 3) << i;
    EXPECT_EQ(group.counters().memory_bytes_read, uint64_t{kWorld} * kManyElements * 4);
    EXPECT_EQ(group.counters().memory_bytes_written, uint64_t{kManyElements} * 4) << "no slot was written";
    std::fill_n(whole.at(rank * kManyElements), kManyElements, static_cast<float>(rank));
    run_op(group, request(plan::Collective::kAllGather, kManyElements, {whole.at(rank * kManyElements)}, outputs));
    for (int64_t i = 0; i < kWorld * kManyElements; ++i)
      ASSERT_EQ(*whole.at(i), static_cast<float>(i / kManyElements)) << i;
  }));
}

// The sum of leaves begin..end-1 by the definition of the tree; their order shows in its bits.
float sum_of_leaves(int begin, int end, int64_t element) {
  if (end - begin == 1) return 1.0f / static_cast<float>(3 + 7 * begin + element % 1000);
  const int middle = begin + (end - begin + 1) / 2;
  return sum_of_leaves(begin, middle, element) + sum_of_leaves(middle, end, element);
}

using LeavesByRank = std::vector<std::vector<int>>;

plan::RootsPtr roots_of(const LeavesByRank& leaves) {
  plan::Roots roots;
  for (const auto& of_rank : leaves) roots.micro_batches += static_cast<int>(of_rank.size());
  for (const auto& of_rank : leaves) roots.by_rank.push_back(plan::roots_of(roots.micro_batches, of_rank));
  return std::make_shared<plan::Roots>(roots);
}

// Averages leaves of which each rank has added up its roots; the parts of all ranks are of `part` elements.
void check_mean_of_leaves(Group& group, int rank, const LeavesByRank& leaves, int64_t part, bool scatters,
                          bool in_heap) {
  const int parts = scatters ? static_cast<int>(leaves.size()) : 1;
  const plan::RootsPtr roots = roots_of(leaves);
  const Tensor before(group, in_heap, 100 * rank + 1, 0), result(group, in_heap, part, -1);
  Request mean =
      request(scatters ? plan::Collective::kReduceScatter : plan::Collective::kAllReduce, part, {}, {result.at()});
  std::vector<std::unique_ptr<Tensor>> tensors;
  for (const plan::LeafNode root : roots->by_rank[rank]) {
    const Tensor& tensor = *tensors.emplace_back(std::make_unique<Tensor>(group, in_heap, parts * part, 0.0f));
    for (int64_t i = 0; i < parts * part; ++i) *tensor.at(i) = sum_of_leaves(root.begin, root.end, i);
    for (int q = 0; q < parts; ++q) mean.buffers.inputs.push_back(tensor.at(q * part));
  }
  mean.desc.op = ReduceOp::kAvg;
  mean.desc.divisor = roots->micro_batches;
  mean.desc.roots = roots;
  run_op(group, std::move(mean));
  const int64_t first = scatters ? rank * part : 0;
  for (int64_t i = 0; i < part; ++i) {
    ASSERT_EQ(*result.at(i), sum_of_leaves(0, roots->micro_batches, first + i) / roots->micro_batches) << i;
  }
}

// Two roots, two, one and none.
const LeavesByRank kSomeLeaves = {{0, 1, 2}, {3, 4, 5}, {6, 7}, {}};

TEST(GroupPlans, RootsOfLeavesInHeapsAreReadOnceWhereTheyLie) {
  for (const bool scatters : {false, true}) {
    constexpr int64_t kPart = 30'001;
    Traffic traffic;
    const Settings settings = with({{"heap_bytes", "67108864"}, {"order", "tree"}});
    expect_no_errors(run_fleet(4, settings, [&](int rank, Group& group, Runtime&) {
      check_mean_of_leaves(group, rank, kSomeLeaves, kPart, scatters, true);
      traffic.add(group.counters());
    }));
    EXPECT_EQ(traffic.read, uint64_t{5} * kPart * (scatters ? 4 : 1) * 4);
    EXPECT_EQ(traffic.written, uint64_t{4} * kPart * 4);
  }
}

// One group after the other: also of other leaves with as many roots, and of more roots than fit into a header.
TEST(GroupPlans, AnyAllotmentOfLeavesIsReducedInSlotsAndOverLinks) {
  const LeavesByRank others = {{0, 2, 3}, {1, 4, 5}, {6, 7}, {}};
  const LeavesByRank many = {{0, 2, 4, 6, 8, 10, 12, 14}, {1, 3, 5}, {7, 9, 11}, {13, 15}};
  for (const char* transport : {"shm", "tcp"}) {
    const Settings settings = with({{"heap_bytes", "67108864"}, {"order", "tree"}, {"transport", transport}});
    expect_no_errors(run_fleet(4, settings, [&](int rank, Group& group, Runtime&) {
      for (const auto& leaves : {kSomeLeaves, others, many}) {
        for (const int64_t part : {0, 7, 30'001}) {
          for (const bool scatters : {false, true}) {
            check_mean_of_leaves(group, rank, leaves, part, scatters, std::string(transport) == "shm" && part == 7);
          }
        }
      }
      if (std::string(transport) == "shm") check_mean_of_leaves(group, rank, many, 30'001, false, true);
    }));
  }
}

// Two ideas of who has run which leaf: the same number of roots, of the same sizes.
TEST(GroupPlans, AnotherAllotmentOfLeavesIsAMismatch) {
  const auto errors = run_fleet(2, with({{"order", "tree"}}), [&](int rank, Group& group, Runtime&) {
    std::vector<float> data(10, 1.0f), result(10, -1.0f);
    Request sum = request(plan::Collective::kAllReduce, 10, {data.data()}, {result.data()});
    sum.desc.roots = roots_of({{rank}, {1 - rank}});
    try {
      run_op(group, std::move(sum));
    } catch (...) {
      EXPECT_EQ(result, std::vector<float>(10, -1.0f));
      throw;
    }
  });
  expect_all(errors, {"Mismatch", "(allotment of leaves to ranks)", "2 roots of leaves, allotment "});
}

TEST(GroupPlans, AMismatchIsFoundBeforeAnyTensorIsTouched) {
  const auto errors = run_fleet(2, small_heap(), [&](int rank, Group& group, Runtime&) {
    const Tensor tensor(group, true, 2 * kManyElements, static_cast<float>(rank));
    try {
      run_op(group, request(plan::Collective::kAllReduce, kManyElements + rank, {tensor.at()}, {tensor.at()}));
    } catch (...) {
      for (int64_t i = 0; i < 2 * kManyElements; ++i) EXPECT_EQ(*tensor.at(i), static_cast<float>(rank));
      throw;
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error.rfind("Mismatch", 0), 0u) << error;
}

TEST(GroupPlans, ARankThatDoesNotComeIsNamed) {
  std::promise<void> gave_up;
  const auto errors = run_fleet(2, small_heap(), [&](int rank, Group& group, Runtime&) {
    if (rank == 1) return gave_up.get_future().wait();
    const Tensor tensor(group, true, kManyElements, 1);
    Request lonely = request(plan::Collective::kAllReduce, kManyElements, {tensor.at()}, {tensor.at()});
    lonely.deadline = Deadline::after(std::chrono::milliseconds(200));
    try {
      run_op(group, std::move(lonely));
    } catch (const Error&) {
      EXPECT_EQ(group.absent(), std::vector<int>{1});
      gave_up.set_value();
      throw;
    }
  });
  EXPECT_EQ(errors[0].rfind("Timeout", 0), 0u) << errors[0];
  EXPECT_NE(errors[0].find("rank 1"), std::string::npos) << errors[0];
}

// Ranks that were tuned differently: one shot reads N tensors and copies one in, stages leave out the own slice.
TEST(GroupPlans, RankZerosThresholdsDecideForAll) {
  constexpr int kWorld = 2;
  constexpr int64_t kElements = 1000, kBytes = 4 * kElements;
  for (const int64_t limit_of_zero : {kBytes - 1, kBytes}) {
    const auto tuned = [&](int rank) {
      Settings settings;
      settings.thresholds.one_shot_bytes_of_two = rank == 0 ? limit_of_zero : 2 * kBytes - 1 - limit_of_zero;
      return settings;
    };
    expect_no_errors(run_fleet(kWorld, tuned, [&](int rank, Group& group, Runtime&) {
      std::vector<float> values(kElements, static_cast<float>(rank + 1));
      run_op(group, all_reduce(values));
      EXPECT_EQ(values, std::vector<float>(kElements, 3.0f));
      const uint64_t one_shot = kBytes + kWorld * kBytes, staged = kBytes / 2 + kWorld * kBytes / 2 + kBytes / 2;
      EXPECT_EQ(group.counters().memory_bytes_read, limit_of_zero == kBytes ? one_shot : staged);
    }));
  }
}

TEST(GroupPlans, WithoutSharedMemoryThereIsNoHeap) {
  const std::pair<Settings, std::string> rows[] = {{with({{"transport", "tcp"}}), "not connected by shared memory"},
                                                   {with({{"heap_bytes", "0"}}), "heap_bytes is 0"}};
  for (const auto& [settings, reason] : rows) {
    run_fleet(2, settings, [&, want = reason](int, Group& group, Runtime&) {
      try {
        group.heap();
        FAIL() << "a heap";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
        EXPECT_NE(std::string(error.what()).find(want), std::string::npos) << error.what();
      }
    });
  }
}

}  // namespace
}  // namespace ringdp::comm
