#include "comm/placement.h"

#include <gtest/gtest.h>

#include "transport/shm/local_arenas.h"

namespace ringdp::comm {
namespace {

constexpr int kMembers = 3;
constexpr int64_t kHeapBytes = 1 << 20, kCount = 1000;

class PlacementTest : public testing::Test {
 protected:
  plan::Problem problem(plan::Collective what) const {
    plan::Problem p;
    p.what = what;
    p.world = kMembers;
    p.rank = 1;
    p.root = 2;
    p.count = kCount;
    return p;
  }
  transport::Arena& arena() { return *arenas_[1]; }
  std::byte* block(int64_t bytes) { return arena().heap()->take(bytes); }
  int64_t offset(const std::byte* at) { return at - arena().heap_at(1); }

  std::vector<std::unique_ptr<transport::ShmArena>> arenas_ =
      transport::make_local_arenas({kMembers, 64, 64, kHeapBytes});
};

TEST_F(PlacementTest, ATensorInTheHeapHasAnOffset) {
  std::byte* tensor = block(kCount * 4);
  const Placement found = place(problem(plan::Collective::kAllReduce), {{tensor}, {tensor}}, arena());
  EXPECT_EQ(found.inputs, offset(tensor));
  EXPECT_EQ(found.output, offset(tensor));
}

TEST_F(PlacementTest, MemoryOutsideTheOwnHeapIsElsewhere) {
  std::vector<float> ordinary(kCount);
  std::byte* of_another = arenas_[0]->heap_at(0);
  std::byte* beyond = arena().heap_at(1) + kHeapBytes - kCount * 4 + 4;
  for (void* tensor :
       {static_cast<void*>(ordinary.data()), static_cast<void*>(of_another), static_cast<void*>(beyond)}) {
    const Placement found = place(problem(plan::Collective::kAllReduce), {{tensor}, {tensor}}, arena());
    EXPECT_EQ(found.inputs, Placement::kElsewhere);
    EXPECT_EQ(found.output, Placement::kElsewhere);
  }
}

TEST_F(PlacementTest, PartsMustFollowEachOther) {
  plan::Problem p = problem(plan::Collective::kReduceScatter);
  p.counts = {10, 0, 30};
  std::byte* whole = block(400);
  const auto with_third_at = [&](std::byte* third) {
    return place(p, {{whole, nullptr, third}, {nullptr}}, arena()).inputs;
  };
  EXPECT_EQ(with_third_at(whole + 40), offset(whole)) << "an empty part may lie anywhere";
  EXPECT_EQ(with_third_at(whole + 44), Placement::kElsewhere);
}

TEST_F(PlacementTest, RootsLieAnywhereFromACacheLineOn) {
  plan::Problem p = problem(plan::Collective::kReduceScatter);
  p.count = 16;
  const int64_t bytes = kMembers * 64;
  p.roots = std::make_shared<plan::Roots>(plan::Roots{4, {{{0, 1}}, {{1, 2}, {3, 4}}, {{2, 3}}}});
  std::byte *first = block(bytes), *between = block(100), *second = block(bytes + 64);
  std::vector<float> ordinary(3 * 16);
  const auto at = [&](const void* of_first, const void* of_second) {
    std::vector<const void*> inputs;
    for (const void* root : {of_first, of_second}) {
      for (int q = 0; q < kMembers; ++q) inputs.push_back(static_cast<const std::byte*>(root) + 64 * q);
    }
    return place(p, {inputs, {nullptr}}, arena());
  };
  ASSERT_NE(between, nullptr);
  const Placement found = at(first, second);
  EXPECT_EQ(found.inputs, offset(first));
  EXPECT_EQ(found.further, std::vector<int64_t>{offset(second)});
  EXPECT_EQ(at(first, second + 4).inputs, Placement::kElsewhere) << "there is no room for it in a header";
  EXPECT_EQ(at(first, ordinary.data()).inputs, Placement::kElsewhere);
  EXPECT_EQ(at(ordinary.data(), second).inputs, Placement::kElsewhere);
  const auto tensors = locate(p, {{128}, found, {256}}, arena());
  ASSERT_TRUE(tensors);
  EXPECT_EQ((*tensors)[1].inputs[1], second);
  EXPECT_EQ((*tensors)[2].inputs.size(), 1u);
  Placement short_of_one = found, outside = found;
  short_of_one.further.clear();
  outside.further[0] = kHeapBytes - bytes + 64;
  EXPECT_FALSE(locate(p, {{128}, short_of_one, {256}}, arena()));
  EXPECT_FALSE(locate(p, {{128}, outside, {256}}, arena()));
  EXPECT_TRUE(allows_heaps(p, 0, {128}, kHeapBytes));
  p.roots = std::make_shared<plan::Roots>(plan::Roots{4, {{}, {{0, 2}}, {{2, 4}}}});
  EXPECT_TRUE(allows_heaps(p, 0, {}, kHeapBytes)) << "it has none";
}

TEST_F(PlacementTest, PartsOfAScatterLieEndToEndOnTheRoot) {
  plan::Problem p = problem(plan::Collective::kScatter);
  p.rank = p.root = 1;
  p.count = 10;
  std::byte* whole = block(120);
  EXPECT_EQ(place(p, {{whole, whole + 40, whole + 80}, {nullptr}}, arena()).inputs, offset(whole));
  EXPECT_EQ(place(p, {{whole, whole + 80, whole + 40}, {nullptr}}, arena()).inputs, Placement::kElsewhere);
  p.root = 0;
  EXPECT_EQ(place(p, {{}, {nullptr}}, arena()).inputs, Placement::kElsewhere) << "only the root has inputs";
}

TEST_F(PlacementTest, OnlyWhatOthersReachIntoIsPlaced) {
  std::byte* tensor = block(kCount * 4);
  const Placement gathered = place(problem(plan::Collective::kAllGather), {{tensor}, {tensor}}, arena());
  EXPECT_EQ(gathered.inputs, offset(tensor));
  EXPECT_EQ(gathered.output, Placement::kElsewhere);
  const plan::Problem broadcast = problem(plan::Collective::kBroadcast);
  EXPECT_EQ(place(broadcast, {{tensor}, {tensor}}, arena()).inputs, Placement::kElsewhere) << "rank 1 is not the root";
  EXPECT_TRUE(allows_heaps(broadcast, 1, {}, kHeapBytes));
  EXPECT_FALSE(allows_heaps(broadcast, 2, {}, kHeapBytes));
}

TEST_F(PlacementTest, AnAllToAllNeedsTheSamePartsEverywhere) {
  plan::Problem p = problem(plan::Collective::kAllToAll);
  p.count = 10;
  std::byte* whole = block(120);
  const Placement own = place(p, {{whole, whole + 40, whole + 80}, {nullptr, nullptr, nullptr}}, arena());
  EXPECT_EQ(own.inputs, offset(whole));
  EXPECT_EQ(own.output, Placement::kElsewhere);
  EXPECT_EQ(own.part, 10);
  EXPECT_TRUE(locate(p, {own, own, own}, arena()));
  Placement other = own;
  other.part = 11;
  EXPECT_FALSE(locate(p, {own, other, own}, arena()));
}

TEST_F(PlacementTest, EverybodysTensorsAreFoundInTheirHeaps) {
  const auto tensors = locate(problem(plan::Collective::kAllReduce), {{64, 64}, {0, 128}, {4096, 4096}}, arena());
  ASSERT_TRUE(tensors);
  EXPECT_EQ((*tensors)[0].inputs[0], arena().heap_at(0) + 64);
  EXPECT_EQ((*tensors)[1].output, arena().heap_at(1) + 128);
  EXPECT_EQ((*tensors)[2].inputs[0], arena().heap_at(2) + 4096);
}

TEST_F(PlacementTest, OneTensorElsewhereRulesItOut) {
  const plan::Problem p = problem(plan::Collective::kAllReduce);
  EXPECT_FALSE(locate(p, {{64, 64}, {64, 64}, {}}, arena()));
  EXPECT_FALSE(locate(p, {{64, 64}, {64, Placement::kElsewhere}, {64, 64}}, arena()));
}

// A damaged header must not make this rank read or write outside the heap it names.
TEST_F(PlacementTest, OffsetsThatLeaveTheHeapAreNotFollowed) {
  const plan::Problem p = problem(plan::Collective::kAllReduce);
  const int64_t last = kHeapBytes - kCount * 4;
  EXPECT_TRUE(locate(p, {{0, 0}, {last, last}, {0, 0}}, arena()));
  for (const int64_t bad : {last + 1, kHeapBytes, INT64_MAX, INT64_MIN, int64_t{-2}}) {
    EXPECT_FALSE(locate(p, {{0, 0}, {bad, 0}, {0, 0}}, arena())) << bad;
    EXPECT_FALSE(locate(p, {{0, 0}, {0, bad}, {0, 0}}, arena())) << bad;
  }
}

}  // namespace
}  // namespace ringdp::comm
