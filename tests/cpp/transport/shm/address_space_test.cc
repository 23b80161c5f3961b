#include "transport/shm/address_space.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "transport/shm/segment.h"

namespace ringdp::transport {
namespace {

// Sets a limit of this process while it lives.
class Limit {
 public:
  Limit(__rlimit_resource which, rlim_t value) : which_(which) {
    EXPECT_EQ(::getrlimit(which_, &before_), 0);
    const rlimit lower{value, before_.rlim_max};
    EXPECT_EQ(::setrlimit(which_, &lower), 0);
  }
  ~Limit() { ::setrlimit(which_, &before_); }

 private:
  const __rlimit_resource which_;
  rlimit before_{};
};

TEST(ReservableHeap, IsWhatWasAskedForWhereThereIsRoom) {
  EXPECT_EQ(reservable_heap(1 << 20, 2), 1 << 20);
  EXPECT_EQ(reservable_heap(0, 2), 0);
  EXPECT_EQ(reservable_heap((1 << 20) + 5, 2), 1 << 20) << "whole pages";
}

TEST(ReservableHeap, ShrinksWithTheNumberOfRanksUntilItFits) {
  const int64_t few = reservable_heap(int64_t{1} << 40, 2), many = reservable_heap(int64_t{1} << 40, 256);
  EXPECT_GT(few, 0);
  EXPECT_GT(many, 0);
  EXPECT_LT(many, few);
  EXPECT_EQ(reservable_heap(int64_t{1} << 40, 1 << 30), 0) << "nothing useful is left";
}

TEST(ReservableHeap, StaysBelowTheLargestFile) {
  const Limit limit(RLIMIT_FSIZE, rlim_t{4} << 30);
  const int64_t heap = reservable_heap(int64_t{64} << 30, 2);
  EXPECT_GT(heap, 0);
  EXPECT_NO_THROW(Segment::create({2, 64, 64, heap}));
}

TEST(ReservableHeap, IsNoneWhereTheLargestFileIsSmall) {
  const Limit limit(RLIMIT_FSIZE, 1 << 20);
  EXPECT_EQ(reservable_heap(int64_t{64} << 30, 2), 0);
}

}  // namespace
}  // namespace ringdp::transport
