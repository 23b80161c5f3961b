// Whether a group runs a collective on the tensors where they lie: all ranks decide alike, from everybody's notes.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <future>
#include <vector>

#include "base/error.h"
#include "comm/fleet.h"

namespace ringdp::comm {
namespace {

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

TEST(GroupStart, TensorsInHeapsAreReducedWhereTheyLie) {
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

// Ranks with ordinary tensors start at once; those with tensors in heaps wait for all notes. The plan is the same for all.
TEST(GroupStart, OneOrdinaryTensorMakesEverybodyUseSlots) {
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
TEST(GroupStart, PlacesMayDifferBetweenRanks) {
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

TEST(GroupStart, OnlyTheRootsTensorMatters) {
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

TEST(GroupStart, PartsOfOneTensorAreReachedTogether) {
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
    for (int64_t i = 0; i < kWorld * kManyElements; ++i) ASSERT_EQ(*whole.at(i), static_cast<float>(i / kManyElements)) << i;
  }));
}

TEST(GroupStart, AMismatchIsFoundBeforeAnyTensorIsTouched) {
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

TEST(GroupStart, ARankThatDoesNotComeIsNamed) {
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
TEST(GroupStart, RankZerosThresholdsDecideForAll) {
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

TEST(GroupStart, WithoutSharedMemoryThereIsNoHeap) {
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
