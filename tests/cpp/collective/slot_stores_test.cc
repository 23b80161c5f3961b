#include "collective/slot_stores.h"

#include <gtest/gtest.h>

namespace ringdp::collective {
namespace {

using std::chrono::nanoseconds;

constexpr uint64_t kLong = 100;
constexpr size_t kBytes = 1 << 20;

// One plan, whose reads take so long each way; true when it used non-temporal stores.
bool run(SlotStores& stores, uint64_t stages, nanoseconds through, nanoseconds past) {
  stores.begin(stages);
  for (int i = 0; i < 10; ++i)
    stores.measured(SlotStores::Work::kCopyOut, kBytes, stores.nontemporal() ? past : through);
  return stores.nontemporal();
}

int count_past(SlotStores& stores, int plans, nanoseconds through, nanoseconds past) {
  int count = 0;
  for (int i = 0; i < plans; ++i) count += run(stores, kLong, through, past);
  return count;
}

constexpr nanoseconds kFast{50'000}, kSlow{300'000}, kMemory{100'000};

TEST(SlotStores, StaysInTheCachesWhereTheyAreFaster) {
  SlotStores stores;
  EXPECT_EQ(count_past(stores, 128, kFast, kMemory), 2) << "it looked twice";
}

TEST(SlotStores, GoesPastThemWhereTheyAreSlower) {
  SlotStores stores;
  EXPECT_EQ(count_past(stores, 128, kSlow, kMemory), 128 - 2) << "the first, and one look";
}

TEST(SlotStores, FollowsCoresThatAreMoved) {
  SlotStores stores;
  count_past(stores, 64, kFast, kMemory);
  EXPECT_EQ(count_past(stores, 64, kSlow, kMemory), 64 - 2) << "the first, and one look";
  count_past(stores, 64, kFast, kMemory);  // found at the next look
  EXPECT_LE(count_past(stores, 64, kFast, kMemory), 1);
}

TEST(SlotStores, ShortPlansStayInTheCachesAndAreNoLook) {
  SlotStores stores;
  count_past(stores, 10, kSlow, kMemory);
  EXPECT_TRUE(run(stores, 8, kSlow, kMemory));
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(run(stores, 7, kSlow, kMemory));
}

TEST(SlotStores, EveryKindOfWorkCounts) {
  SlotStores stores;
  for (int i = 0; i < 10; ++i) {
    stores.begin(kLong);
    for (int k = 0; k < 10; ++k) {
      stores.measured(SlotStores::Work::kCopyIn, kBytes, stores.nontemporal() ? kMemory : kSlow);
      stores.measured(SlotStores::Work::kFold, kBytes, stores.nontemporal() ? kMemory : kSlow);
      stores.measured(SlotStores::Work::kCopyOut, kBytes, stores.nontemporal() ? kMemory : kFast);
    }
    EXPECT_EQ(stores.nontemporal(), i != 0) << i;
  }
}

TEST(SlotTimer, OnlyLargeStepsOnSlotsAreTold) {
  for (const bool large : {false, true}) {
    for (const bool on_slots : {false, true}) {
      plan::Step step;
      step.srcs.resize(1);
      step.dsts.resize(1);
      step.dsts[0].space = on_slots ? plan::Space::kSlot : plan::Space::kOutput;
      SlotStores stores;
      for (int i = 0; i < 3; ++i) {  // through the caches 1 s a byte, then past them what these steps take
        stores.begin(kLong);
        for (int k = 0; k < 4; ++k) {
          if (!stores.nontemporal()) stores.measured(SlotStores::Work::kCopyIn, 1, std::chrono::seconds(1));
          if (stores.nontemporal()) const SlotTimer timer(stores, step, SlotStores::kLarge - !large);
        }
      }
      EXPECT_EQ(stores.nontemporal(), large && on_slots);
    }
  }
}

// Ranks are interrupted while they copy.
TEST(SlotStores, AFewSlowCopiesTellNothing) {
  SlotStores stores;
  for (int i = 0; i < 10; ++i) {
    stores.begin(kLong);
    for (int k = 0; k < 10; ++k)
      stores.measured(SlotStores::Work::kCopyOut, kBytes,
                      k < 4                  ? nanoseconds(10'000'000)
                      : stores.nontemporal() ? kMemory
                                             : kFast);
    EXPECT_EQ(stores.nontemporal(), i == 1);
  }
}

TEST(SlotStores, TooFewSamplesTellNothing) {
  SlotStores stores;
  for (int i = 0; i < 10; ++i) {
    stores.begin(kLong);
    for (int k = 0; k < 3; ++k)
      stores.measured(SlotStores::Work::kCopyOut, kBytes, stores.nontemporal() ? kMemory : kSlow);
    EXPECT_EQ(stores.nontemporal(), i == 1);
  }
}

}  // namespace
}  // namespace ringdp::collective
