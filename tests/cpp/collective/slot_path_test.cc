#include "collective/slot_path.h"

#include <gtest/gtest.h>

namespace ringdp::collective {
namespace {

using std::chrono::nanoseconds;

constexpr uint64_t kLong = 100;
constexpr size_t kBytes = 1 << 20;

// One plan, whose reads take so long each way; true when it went past the caches.
bool run(SlotPath& path, uint64_t stages, nanoseconds through, nanoseconds past) {
  path.begin(stages);
  for (int i = 0; i < 10; ++i) path.saw(SlotPath::Work::kCopyOut, kBytes, path.past_caches() ? past : through);
  return path.past_caches();
}

int count_past(SlotPath& path, int plans, nanoseconds through, nanoseconds past) {
  int count = 0;
  for (int i = 0; i < plans; ++i) count += run(path, kLong, through, past);
  return count;
}

constexpr nanoseconds kFast{50'000}, kSlow{300'000}, kMemory{100'000};

TEST(SlotPath, StaysInTheCachesWhereTheyAreFaster) {
  SlotPath path;
  EXPECT_EQ(count_past(path, 128, kFast, kMemory), 2) << "it looked twice";
}

TEST(SlotPath, GoesPastThemWhereTheyAreSlower) {
  SlotPath path;
  EXPECT_EQ(count_past(path, 128, kSlow, kMemory), 128 - 2) << "the first, and one look";
}

TEST(SlotPath, FollowsCoresThatAreMoved) {
  SlotPath path;
  count_past(path, 64, kFast, kMemory);
  EXPECT_EQ(count_past(path, 64, kSlow, kMemory), 64 - 2) << "the first, and one look";
  count_past(path, 64, kFast, kMemory);  // found at the next look
  EXPECT_LE(count_past(path, 64, kFast, kMemory), 1);
}

TEST(SlotPath, ShortPlansStayInTheCachesAndAreNoLook) {
  SlotPath path;
  count_past(path, 10, kSlow, kMemory);
  EXPECT_TRUE(run(path, 8, kSlow, kMemory));
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(run(path, 7, kSlow, kMemory));
}

TEST(SlotPath, EveryKindOfWorkCounts) {
  SlotPath path;
  for (int i = 0; i < 10; ++i) {
    path.begin(kLong);
    for (int k = 0; k < 10; ++k) {
      path.saw(SlotPath::Work::kCopyIn, kBytes, path.past_caches() ? kMemory : kSlow);
      path.saw(SlotPath::Work::kFold, kBytes, path.past_caches() ? kMemory : kSlow);
      path.saw(SlotPath::Work::kCopyOut, kBytes, path.past_caches() ? kMemory : kFast);
    }
    EXPECT_EQ(path.past_caches(), i != 0) << i;
  }
}

TEST(SlotWatch, OnlyLargeStepsOnSlotsAreTold) {
  for (const bool large : {false, true}) {
    for (const bool on_slots : {false, true}) {
      plan::Step step;
      step.srcs.resize(1);
      step.dsts.resize(1);
      step.dsts[0].space = on_slots ? plan::Space::kSlot : plan::Space::kOutput;
      SlotPath path;
      for (int i = 0; i < 3; ++i) {  // through the caches 1 s a byte, then past them what these steps take
        path.begin(kLong);
        for (int k = 0; k < 4; ++k) {
          if (!path.past_caches()) path.saw(SlotPath::Work::kCopyIn, 1, std::chrono::seconds(1));
          if (path.past_caches()) const SlotWatch watch(path, step, SlotPath::kLarge - !large);
        }
      }
      EXPECT_EQ(path.past_caches(), large && on_slots);
    }
  }
}

// Ranks are interrupted while they copy.
TEST(SlotPath, AFewSlowCopiesTellNothing) {
  SlotPath path;
  for (int i = 0; i < 10; ++i) {
    path.begin(kLong);
    for (int k = 0; k < 10; ++k)
      path.saw(SlotPath::Work::kCopyOut, kBytes,
               k < 4                ? nanoseconds(10'000'000)
               : path.past_caches() ? kMemory
                                    : kFast);
    EXPECT_EQ(path.past_caches(), i == 1);
  }
}

TEST(SlotPath, TooFewSamplesTellNothing) {
  SlotPath path;
  for (int i = 0; i < 10; ++i) {
    path.begin(kLong);
    for (int k = 0; k < 3; ++k) path.saw(SlotPath::Work::kCopyOut, kBytes, path.past_caches() ? kMemory : kSlow);
    EXPECT_EQ(path.past_caches(), i == 1);
  }
}

}  // namespace
}  // namespace ringdp::collective
