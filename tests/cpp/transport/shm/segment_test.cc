#include "transport/shm/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/shm/control_block.h"
#include "transport/shm/shm_link.h"
#include "transport/thrown.h"

namespace ringdp::transport {
namespace {

struct stat status_of(int fd) {
  struct stat status {};
  EXPECT_EQ(::fstat(fd, &status), 0);
  return status;
}

TEST(SegmentLayout, PartsAreAlignedAndDoNotOverlap) {
  for (const int members : {1, 2, 7, 16}) {
    for (const int64_t slot_bytes : {64, 4096, 1 << 20}) {
      for (const int64_t stream_bytes : {1, 64, 4096, 512 << 10}) {
        const SegmentLayout layout{members, slot_bytes, stream_bytes};
        std::vector<std::pair<int64_t, int64_t>> parts{{0, sizeof(ControlBlock)}};
        for (int parity = 0; parity < 2; ++parity) {
          EXPECT_EQ(layout.slot_offset(parity) % 64, 0);
          parts.emplace_back(layout.slot_offset(parity), slot_bytes);
        }
        for (const Traffic traffic : {Traffic::kCollectives, Traffic::kMessages}) {
          for (int member = 0; member < members; ++member) {
            EXPECT_EQ(layout.stream_offset(member, traffic) % kLinePairBytes, 0u);
            parts.emplace_back(layout.stream_offset(member, traffic), kStreamHeaderBytes + stream_bytes);
          }
        }
        parts.emplace_back(layout.total_bytes(), 0);
        for (size_t i = 1; i < parts.size(); ++i) EXPECT_GE(parts[i].first, parts[i - 1].first + parts[i - 1].second);
        EXPECT_EQ(layout.total_bytes() % 4096, 0);
      }
    }
  }
}

TEST(Segment, StartsAsZerosThatOccupyNothing) {
  const SegmentLayout layout{16, 64 << 20, 64 << 20};
  const Segment segment = Segment::create(layout);
  ASSERT_EQ(segment.size(), static_cast<size_t>(layout.total_bytes()));
  EXPECT_EQ(status_of(segment.fd()).st_blocks, 0);
  EXPECT_EQ(segment.data()[0], std::byte{0});
  EXPECT_EQ(segment.data()[segment.size() - 1], std::byte{0});
  segment.data()[layout.slot_offset(1)] = std::byte{1};
  const auto occupied = status_of(segment.fd()).st_blocks * 512;
  EXPECT_GT(occupied, 0);
  EXPECT_LT(occupied, layout.total_bytes() / 4);
}

TEST(Segment, ItsSizeCannotChange) {
  const Segment segment = Segment::create({2, 64, 64});
  const auto size = static_cast<off_t>(segment.size());
  for (const off_t other : {off_t{0}, size - 4096, size + 4096}) {
    EXPECT_EQ(::ftruncate(segment.fd(), other), -1);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_TRUE(::fcntl(segment.fd(), F_GETFD) & FD_CLOEXEC);
}

TEST(Segment, APeersMappingIsTheSameMemory) {
  const SegmentLayout layout{2, 4096, 4096};
  const Segment mine = Segment::create(layout);
  const Segment theirs = Segment::map(UniqueFd(::dup(mine.fd())), layout);
  ASSERT_NE(mine.data(), theirs.data());
  for (size_t i = 0; i < mine.size(); ++i) mine.data()[i] = static_cast<std::byte>(i * 31);
  EXPECT_EQ(std::memcmp(mine.data(), theirs.data(), mine.size()), 0);
}

TEST(Segment, AMappingOutlivesItsDescriptor) {
  const SegmentLayout layout{2, 4096, 4096};
  Segment mine = Segment::create(layout);
  const Segment theirs = Segment::map(UniqueFd(::dup(mine.fd())), layout);
  EXPECT_EQ(theirs.fd(), -1);
  const int closed = mine.fd();
  mine.close_fd();
  EXPECT_EQ(mine.fd(), -1);
  EXPECT_EQ(::fcntl(closed, F_GETFD), -1);
  mine.data()[layout.total_bytes() - 1] = std::byte{5};
  EXPECT_EQ(theirs.data()[layout.total_bytes() - 1], std::byte{5});
}

TEST(Segment, MovingKeepsTheMappingAndReleasesTheOld) {
  const SegmentLayout layout{1, 64, 64};
  Segment first = Segment::create(layout);
  first.data()[0] = std::byte{42};
  Segment second = Segment::create(layout);
  const int replaced = second.fd();
  {
    Segment moved(std::move(first));
    second = std::move(moved);
  }
  EXPECT_EQ(second.data()[0], std::byte{42});
  EXPECT_EQ(::fcntl(replaced, F_GETFD), -1);
}

TEST(Segment, AHeapCostsMemoryOnlyWhereItIsTouched) {
  constexpr int64_t kBytes = int64_t{4} << 30;
  const Segment segment = Segment::create_heap(kBytes);
  const auto held = [&] { return status_of(segment.fd()).st_blocks * int64_t{512}; };
  const int64_t before = held();
  segment.data()[kBytes - 1] = std::byte{1};
  EXPECT_GT(held(), before);
  EXPECT_LT(held(), 1 << 20);
}

TEST(Segment, RefusesAMemfdOfAnotherSize) {
  const Segment mine = Segment::create({2, 64, 64});
  const SegmentLayout larger{2, 1 << 20, 64};
  EXPECT_EQ(kind_thrown([&] { Segment::map(UniqueFd(::dup(mine.fd())), larger); }), ErrorKind::kInternal);
}

TEST(Segment, RefusesAMemfdThatCouldShrink) {
  const SegmentLayout layout{2, 64, 64};
  UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), layout.total_bytes()), 0);
  EXPECT_EQ(kind_thrown([&] { Segment::map(UniqueFd(::dup(unsealed.get())), layout); }), ErrorKind::kInternal);
  ASSERT_EQ(::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_NO_THROW(Segment::map(std::move(unsealed), layout));
}

TEST(Segment, RefusesWhatIsNoMemoryFile) {
  EXPECT_EQ(kind_thrown([] {
              Segment::map(UniqueFd(::open("/dev/null", O_RDWR)), {2, 64, 64});
            }),
            ErrorKind::kInternal);
  EXPECT_EQ(kind_thrown([] { Segment::map(UniqueFd(), {2, 64, 64}); }), ErrorKind::kInternal);
}

TEST(Segment, RefusesImpossibleGeometry) {
  const SegmentLayout bad[] = {{0, 64, 64},
                               {-1, 64, 64},
                               {5000, 64, 64},
                               {2, 0, 64},
                               {2, 100, 64},
                               {2, -64, 64},
                               {2, 64, 0},
                               {2, 64, 48},
                               {2, 64, INT64_MIN},
                               {2, INT64_MAX - 63, 64},
                               {2, 64, 64, -4096},
                               {2, 64, 64, 100},
                               {2, 64, 64, INT64_MAX / 4096 * 4096}};
  for (const SegmentLayout& layout : bad) {
    EXPECT_EQ(kind_thrown([&] { Segment::create(layout); }), ErrorKind::kInvalidArgument)
        << layout.members << " " << layout.slot_bytes << " " << layout.stream_bytes << " " << layout.heap_bytes;
  }
  EXPECT_EQ(kind_thrown([] { Segment::create_heap(100); }), ErrorKind::kInvalidArgument);
}

TEST(Segment, HasNoNameInTheFileSystem) {
  const Segment segment = Segment::create({2, 64, 64});
  const struct stat mine = status_of(segment.fd());
  EXPECT_EQ(mine.st_nlink, 0u);
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    struct stat named {};
    if (::lstat(entry.path().c_str(), &named) != 0) continue;
    EXPECT_FALSE(named.st_dev == mine.st_dev && named.st_ino == mine.st_ino) << entry.path();
  }
}

// Two mappings of one memfd stand for two processes.
TEST(Segment, WhatIsMadePrivateHearsOfNoOthersAndItsSurroundingsStay) {
  constexpr int64_t kBytes = 4 << 20;
  const Segment mine = Segment::create_heap(kBytes);
  const Segment theirs = Segment::map_heap(UniqueFd(::dup(mine.fd())), kBytes);
  const auto byte_at = [&](int64_t i) { return static_cast<std::byte>(i % 251); };
  for (int64_t i = 0; i < kBytes; ++i) mine.data()[i] = byte_at(i);
  const int64_t begin = (1 << 20) + 5000, bytes = (2 << 20) + 4321;  // cut anywhere
  mine.make_private(begin, bytes);
  const auto is_inside = [&](int64_t i) { return begin <= i && i < begin + bytes; };
  for (int64_t i = 0; i < kBytes; ++i) {
    ASSERT_EQ(mine.data()[i], is_inside(i) ? std::byte{0} : byte_at(i)) << i;
  }
  for (int64_t i = 0; i < kBytes; ++i) theirs.data()[i] = std::byte{255};
  for (int64_t i = begin; i < begin + bytes; ++i) ASSERT_EQ(mine.data()[i], std::byte{0}) << i;
  EXPECT_EQ(mine.data()[begin - 8192], std::byte{255}) << "pages before it stay shared";
  EXPECT_EQ(mine.data()[begin + bytes + 4096], std::byte{255}) << "pages after it stay shared";
}

TEST(Segment, AForkedChildDoesNotHaveIt) {
  const Segment segment = Segment::create({2, 64, 64});
  segment.data()[0] = std::byte{7};
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    *static_cast<volatile std::byte*>(segment.data()) = std::byte{8};
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << "status " << status;
  EXPECT_EQ(segment.data()[0], std::byte{7});
}

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
  EXPECT_NO_THROW(Segment::create_heap(heap));
}

TEST(ReservableHeap, IsNoneWhereTheLargestFileIsSmall) {
  const Limit limit(RLIMIT_FSIZE, 1 << 20);
  EXPECT_EQ(reservable_heap(int64_t{64} << 30, 2), 0);
}

}  // namespace
}  // namespace ringdp::transport
